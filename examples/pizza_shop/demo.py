"""The demo: produce records to Kafka, wait until the sensor's runs have them in tables, and show the tables."""

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.pizza_shop import deliveries, orders, topics
from examples.pizza_shop.deliveries import DeliveryProducer
from examples.pizza_shop.many import NAMESPACES, many
from examples.pizza_shop.summary import print_deliveries, print_how_to_go_on, print_orders
from examples.pizza_shop.up import check_project
from examples.pizza_shop.watch import TIMEOUT_S, Watch, made
from kafka_lake.catalog.positions import head_of
from kafka_lake.cli.commands.status import collect
from kafka_lake.cli.find_project import code_locations, dagster_folder, other_locations, targets
from kafka_lake.derived.upstream import record_of
from kafka_lake.devstack.dagster_runs import DagsterRuns, Run, RunReport
from kafka_lake.devstack.running import Ports, check_alone, check_free, use_registry
from kafka_lake.devstack.stack import Stack, interruptible, needs_connect
from kafka_lake.errors import KafkaLakeError
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource
from kafka_lake.spec.topic_table import TopicTable

if TYPE_CHECKING:
    from examples.pizza_shop.captured import Captured

ORDERS = TopicTable(orders.TOPIC, "pizza", "completed_pizzas")
TOP_STORES = ("pizza", "top_stores")
DELIVERIES = TopicTable(deliveries.TOPIC, *deliveries.TABLE)
SEED = 42

_ORDERS_PER_DELIVERY = 10
_ORDERS_PER_EVENT = 5
_OTHERS = ("shop/", *(f"{namespace}/" for namespace in NAMESPACES))
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Extras:
    """Optional parts of the demo.

    Args:
        avro: Deliveries in Avro, whose schema gets a second version.
        cdc: A database that Debezium captures while it changes; compared with its tables at the end.
        many: A topic with routes, topics of a pattern, and derived tables; compared at the end.
    """

    avro: bool = False
    cdc: bool = False
    many: bool = False


def run_demo(records: int, extras: Extras, ports: Ports, console: Console) -> None:
    """Run the demo from an empty machine to filled tables, and stop everything again."""
    locations = targets()
    check_project()
    check_alone()
    avro = extras.avro
    # With more runs, a warm Spark is faster.
    connect = (avro or extras.cdc or extras.many) and needs_connect(ports)
    check_free(ports.broker, *([ports.registry] if avro else []), ports.ui, *([ports.connect] if connect else []))
    with interruptible(), Stack(ports, console.print) as stack, ExitStack() as beside:
        try:
            bootstrap = stack.start_broker()
            producer = _delivery_producer(bootstrap, stack.start_registry(), console) if avro else None
            if producer is None:
                use_registry("")
            _produce_orders(bootstrap, records, console)
            half, now = max(records // _ORDERS_PER_DELIVERY // 2, 1), datetime.now(UTC)
            if producer:
                _deliver(producer, bootstrap, number=half, begin=now - _DAY, end=now - _DAY / 2, console=console)
            beyond = many(bootstrap, max(records // _ORDERS_PER_EVENT, 100), SEED, console) if extras.many else None
            source = _start_source(stack, bootstrap, console, beside) if extras.cdc else None
            if connect:
                stack.start_connect(CatalogResource().open())
            runs = DagsterRuns(
                stack.start_dagster(code_locations(locations), dagster_folder(locations), other_locations(locations))
            )
            with console.status("Waiting for the sensor") as status:
                timeout = 2 * TIMEOUT_S if source or beyond else TIMEOUT_S
                watch = Watch(runs, stack.dagster_began, stack.check, tell_user=status.update, timeout=timeout)
                if producer and producer.version == 1:
                    watch.until(lambda seen: bool(_loads(seen, DELIVERIES, watch.began)), "the sensor")
                    producer.use(2)
                    _deliver(producer, bootstrap, number=half, begin=now - _DAY / 2, end=now, console=console)
                seen = watch.until(lambda seen: _all_done(seen, watch.began, avro), "the tables to follow")
                if beyond:
                    beyond.await_tables(watch)
                if source:
                    source.await_tables(watch)
            seconds = max(run.ended for run in seen) - watch.began
            print_orders(
                ORDERS,
                TOP_STORES,
                loads=_reports(runs, _loads(seen, ORDERS, watch.began), ORDERS),
                seconds=seconds,
                console=console,
            )
            if producer:
                delivered = _reports(runs, _loads(seen, DELIVERIES, watch.began), DELIVERIES)
                print_deliveries(DELIVERIES, delivered, console)
            if beyond:
                beyond.print_comparison(console)
            if source:
                source.print_comparison(console)
            print_how_to_go_on(ports, DELIVERIES if avro else None, console)
            console.print("Stopping what was started")
        except KafkaLakeError as error:
            raise KafkaLakeError(str(error), f"\nLogs: {stack.log_dir}") from error


def _start_source(stack: Stack, bootstrap: str, console: Console, beside: ExitStack) -> "Captured":
    try:
        from examples.pizza_shop.captured import captured
    except ImportError as error:
        if error.name != "psycopg2":
            raise
        raise KafkaLakeError("The client of PostgreSQL is missing.", "Run pip install psycopg2-binary.") from None
    return beside.enter_context(captured(stack, bootstrap, console))


def _produce_orders(bootstrap: str, records: int, console: Console) -> None:
    _ensure_topic(bootstrap, orders.TOPIC, orders.PARTITIONS, console)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("Producing orders", total=records)
        orders.produce_orders(
            bootstrap,
            orders.TOPIC,
            count=records,
            seed=SEED,
            progress=lambda done: progress.update(task, completed=done),
        )


def _delivery_producer(bootstrap: str, registry_url: str, console: Console) -> DeliveryProducer:
    _ensure_topic(bootstrap, deliveries.TOPIC, deliveries.PARTITIONS, console)
    version = deliveries.registered_version(registry_url, deliveries.TOPIC)
    return DeliveryProducer(bootstrap, deliveries.TOPIC, registry_url, version)


def _deliver(
    producer: DeliveryProducer, bootstrap: str, number: int, begin: datetime, end: datetime, console: Console
) -> None:
    first_id = deliveries.next_order_id(bootstrap, deliveries.TOPIC)
    for delivery in deliveries.generate_deliveries(number, SEED, first_id=first_id, begin=begin, end=end):
        producer.send_delivery(delivery)
    producer.flush()
    new = f", which adds {deliveries.NEW_FIELD}" if producer.version == 2 else ""
    console.print(f"Produced {number:,} deliveries by version {producer.version} of their schema{new}")


def _ensure_topic(bootstrap: str, topic: str, partitions: int, console: Console) -> None:
    created = topics.ensure_topic(bootstrap, topic, partitions)
    console.print(f"Topic {topic} {'created' if created else 'already exists'}")


def _loads(seen: list[Run], spec: TopicTable, began: float) -> list[Run]:
    return made(seen, spec.identifier, began, by_sensor=True)


def _all_done(seen: list[Run], began: float, avro: bool) -> bool:
    loads = _loads(seen, ORDERS, began)
    # `Captured` and `Many` wait for their own tables.
    seen = [run for run in seen if not any(asset.startswith(_OTHERS) for asset in run.assets)]
    if not (loads and _stores_follow(seen, began) and all(run.status == "SUCCESS" for run in seen)):
        return False
    return not avro or collect([DELIVERIES], KafkaResource().cluster(), CatalogResource().open())[0].lag == 0


def _stores_follow(seen: list[Run], began: float) -> bool:
    """Return whether the derived table has all orders; its run may have begun before the last orders came."""
    catalog = CatalogResource().open()
    stores, source = catalog.table(TOP_STORES), catalog.table(ORDERS.identifier)
    if stores is None or source is None or not made(seen, TOP_STORES, began):
        return False
    record = record_of(stores)
    return record is not None and record.upstream[ORDERS.table].snapshot == head_of(source)


def _reports(runs: DagsterRuns, loads: list[Run], spec: TopicTable) -> dict[str, RunReport]:
    """Return the reports of runs, restricted to a table: several topics may share a run."""
    return {run.run_id: runs.report(run.run_id).of("/".join(spec.identifier)) for run in loads}
