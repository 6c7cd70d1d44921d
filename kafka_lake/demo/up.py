"""The local stack that stays up: a warm Spark Connect server, Dagster, and for the demo live records to follow."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

from kafka_lake.cli.project import configured_cluster, topic_tables
from kafka_lake.common.errors import KafkaLakeError
from kafka_lake.components.register_partitions import register_topics
from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.demo import deliveries, orders, topics
from kafka_lake.demo.columns import columns_of
from kafka_lake.local_stack.environment import use_registry
from kafka_lake.local_stack.ports import Ports, check_free
from kafka_lake.local_stack.running import check_alone
from kafka_lake.local_stack.stack import Stack, interruptible, needs_connect
from kafka_lake.spark.jars import JarsError

VERSION_2_AFTER_S = 60.0

_ORDERS_PER_DELIVERY = 5

Trickle = Callable[[Event], None]


def stay_up(ports: Ports, demo: bool, rate: float, say: Callable[[str], None]) -> None:
    """Run the local stack until a signal or until one of its servers ends; nothing is left behind.

    A Spark Connect server is started unless ``SPARK_REMOTE`` names one that isn't this stack's own. It may die, and is
    started again then; only if it dies too often, that ends the stack.

    Args:
        ports: Where the servers listen.
        demo: Start the embedded broker and the schema registry too, and let orders and deliveries trickle in. Where
            the registry can't be retrieved, the deliveries are left out, and ``say`` tells so.
        rate: Orders per second of that trickle; a fifth as many deliveries.
        say: Called with lines for the user.

    Raises:
        KafkaLakeError: If a port is taken, or a server can't start or ends by itself.
        SystemExit: At a signal, with the shell's code for it.
    """
    check_alone()
    connect = needs_connect(ports)
    check_free(*([ports.broker, ports.registry] if demo else []), ports.ui, *([ports.connect] if connect else []))
    with interruptible(), Stack(ports, say, shared=True) as stack:
        trickles = demo_trickles(stack, rate, say) if demo else []
        if connect:
            stack.start_connect()
        url = stack.start_dagster()
        trickles.append(lambda _stop: _register_topics(say))
        say(f"All is up: {url} (Ctrl-C ends it; logs are in {stack.log_dir})")
        with _live(trickles) as running:
            while True:
                stack.check()
                for each in running:
                    if each.done():
                        each.result()
                time.sleep(1)


def demo_trickles(stack: Stack, rate: float, say: Callable[[str], None]) -> list[Trickle]:
    """Start broker and registry, make the topics, and return what fills them until told to stop.

    Args:
        stack: Starts the servers.
        rate: Orders per second; a fifth as many deliveries.
        say: Called with lines for the user; with the reason, if the registry can't be retrieved and the deliveries
            are left out.

    Raises:
        KafkaLakeError: If a server can't start or a topic can't be made.
    """
    bootstrap = stack.start_broker()
    topics.ensure_topic(bootstrap, orders.TOPIC, orders.PARTITIONS)
    trickles: list[Trickle] = [lambda stop: orders.trickle(bootstrap, orders.TOPIC, rate, stop)]
    try:
        registry_url = stack.start_registry()
    except JarsError as error:
        use_registry("")
        say(f"Going on without the schema registry and the topic that needs it, {deliveries.TOPIC}. {error}")
        return trickles
    topics.ensure_topic(bootstrap, deliveries.TOPIC, deliveries.PARTITIONS)
    version = deliveries.registered_version(registry_url, deliveries.TOPIC)
    producer = deliveries.DeliveryProducer(bootstrap, deliveries.TOPIC, registry_url, version)
    trickles.append(lambda stop: _deliver(producer, bootstrap, rate / _ORDERS_PER_DELIVERY, stop, say))
    if version == 1:
        trickles.append(lambda stop: _await_new_column(stack.ports, stop, say))
    return trickles


def _register_topics(say: Callable[[str], None]) -> None:
    try:
        specs, cluster = topic_tables(), configured_cluster()
    except KafkaLakeError as error:
        # Dagster's pages say so too, and load the definitions again once they are mended.
        say(str(error))
        return
    register_topics(specs, cluster, say)


def _deliver(
    producer: deliveries.DeliveryProducer, bootstrap: str, rate: float, stop: Event, say: Callable[[str], None]
) -> None:
    if producer.version == 1:
        say(f"Deliveries are written by version 1 of their schema; version 2 comes in {VERSION_2_AFTER_S:.0f} s")
    first_id = deliveries.next_order_id(bootstrap, deliveries.TOPIC)
    deliveries.trickle(producer, first_id, rate, VERSION_2_AFTER_S, stop, say)


def _await_new_column(ports: Ports, stop: Event, say: Callable[[str], None]) -> None:
    """Say once by which run the deliveries' table got its new column; unless it is as old as the table."""
    while not stop.wait(2):
        table = CatalogResource().open().table(deliveries.TABLE)
        columns = columns_of(table) if table else []
        if came := next((column for column in columns if column.name == deliveries.NEW_FIELD), None):
            if came.run_id:
                run = f"http://{ports.ui.address}/runs/{came.run_id}"
                say(f"{'.'.join(deliveries.TABLE)} has the column {came.name} now, by the run {run}")
            return


@contextmanager
def _live(trickles: list[Trickle]) -> Iterator[list[Future[None]]]:
    stop = Event()
    with ThreadPoolExecutor(max(len(trickles), 1)) as pool:
        try:
            yield [pool.submit(trickle, stop) for trickle in trickles]
        finally:
            stop.set()
