"""The live records of `make dev`."""

from collections.abc import Callable
from threading import Event

from examples.pizza_shop import deliveries, orders, topics
from examples.pizza_shop.summary import columns_of
from kafka_lake.cli.commands.up import Task
from kafka_lake.cli.project import topic_tables
from kafka_lake.devstack.running import Ports, use_registry
from kafka_lake.devstack.stack import Stack
from kafka_lake.errors import ConfigurationError, JarsError, KafkaLakeError
from kafka_lake.orchestration.resources import CatalogResource

VERSION_2_AFTER_S = 60.0

_ORDERS_PER_DELIVERY = 5


def check_project() -> None:
    """Check that the current project has the demo's tables. A project that can't be loaded passes."""
    try:
        specs = topic_tables()
    except KafkaLakeError:
        # Dagster's pages show the error.
        return
    if orders.TOPIC not in {spec.topic for spec in specs}:
        raise ConfigurationError(
            f"The demo produces records to the topics {orders.TOPIC} and {deliveries.TOPIC}, and this project has no "
            "table of them.",
            "Run it in a clone of kafka_lake's repository: `make dev` or `make demo`. Here, `kafka-lake up` starts "
            "without it.",
        )


def start_demo(stack: Stack, rate: float, tell_user: Callable[[str], None]) -> list[Task]:
    """Start broker and registry, create the topics, and return the tasks that fill them."""
    bootstrap = stack.start_broker()
    topics.ensure_topic(bootstrap, orders.TOPIC, orders.PARTITIONS)
    trickles: list[Task] = [lambda stop: orders.trickle(bootstrap, orders.TOPIC, rate, stop)]
    try:
        registry_url = stack.start_registry()
    except JarsError as error:
        use_registry("")
        tell_user(f"Going on without the schema registry and the topic that needs it, {deliveries.TOPIC}. {error}")
        return trickles
    topics.ensure_topic(bootstrap, deliveries.TOPIC, deliveries.PARTITIONS)
    per_second = rate / _ORDERS_PER_DELIVERY
    trickles.append(lambda stop: _deliver(bootstrap, registry_url, rate=per_second, stop=stop, tell_user=tell_user))
    if deliveries.registered_version(registry_url, deliveries.TOPIC) == 1:
        trickles.append(lambda stop: _await_new_column(stack.ports, stop, tell_user))
    return trickles


def _deliver(bootstrap: str, registry_url: str, rate: float, stop: Event, tell_user: Callable[[str], None]) -> None:
    version = deliveries.registered_version(registry_url, deliveries.TOPIC)
    producer = deliveries.DeliveryProducer(bootstrap, deliveries.TOPIC, registry_url, version)
    if producer.version == 1:
        tell_user(f"Deliveries have version 1 of their schema; version 2 comes in {VERSION_2_AFTER_S:.0f} s")
    first_id = deliveries.next_order_id(bootstrap, deliveries.TOPIC)
    deliveries.trickle(producer, first_id, rate=rate, upgrade_after=VERSION_2_AFTER_S, stop=stop, tell_user=tell_user)


def _await_new_column(ports: Ports, stop: Event, tell_user: Callable[[str], None]) -> None:
    """Report once which run added the new column to the deliveries' table."""
    while not stop.wait(2):
        table = CatalogResource().open().table(deliveries.TABLE)
        columns = columns_of(table) if table else []
        if came := next((column for column in columns if column.name == deliveries.NEW_FIELD), None):
            if came.run_id:
                run = f"http://{ports.ui.address}/runs/{came.run_id}"
                tell_user(f"{'.'.join(deliveries.TABLE)} has the column {came.name} now, by the run {run}")
            return
