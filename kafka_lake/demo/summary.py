"""What the demo did, as tables on the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from kafka_lake.demo.orders import TOPIC
from kafka_lake.demo.ports import Ports
from kafka_lake.demo.runs import Materialization, RunReport
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.resource import KafkaResource
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.resource import CatalogResource
from kafka_lake.status import collect

_BEST = 10


def print_summary(
    table: tuple[str, str],
    top_stores: tuple[str, str],
    loads: Sequence[RunReport],
    seconds: float,
    ports: Ports,
    console: Console,
) -> None:
    """Print what was loaded and checked, what the tables hold now, and how to go on.

    Args:
        table: Namespace and name of the topic's table.
        top_stores: Namespace and name of the table below it.
        loads: Reports of the runs that filled the topic's table, oldest first.
        seconds: How long that took.
        ports: The local stack's ports.
        console: Gets the tables.

    Raises:
        KafkaLakeError: If brokers or catalog can't be asked.
    """
    catalog = CatalogResource().open()
    spec = TopicTable(TOPIC, *table)
    status = collect([spec], KafkaResource().cluster(), catalog)[0]
    asset = "/".join(table)
    events = [each for load in loads for each in load.materializations if each.asset == asset and each.partition]
    console.print(_loaded(TOPIC, events))
    console.print(_checks(loads))
    console.print(_best_stores(catalog, top_stores))
    new = sum(_number(each, "rows_added") for each in events)
    console.print(
        f"[bold green]{new:,} new rows[/], {status.rows:,} rows in {status.table} now, snapshot {status.snapshot_id}, "
        f"lag {status.lag}; {seconds:.0f} s from the start of Dagster to the top stores.",
        soft_wrap=True,
    )
    console.print(
        f"\nGo on:\n"
        f"  make dev            everything stays up, with live orders; the UI is http://{ports.ui.address}\n"
        f"  kafka-lake status   how far each table is, per Kafka partition\n"
        f"  make demo           once more: only what is new is ingested\n",
        soft_wrap=True,
    )


def _loaded(topic: str, events: Sequence[Materialization]) -> Table:
    shown = Table("partition", title=f"What the sensor's run took from {topic}")
    for heading in ("from offset", "to offset", "rows", "lag after"):
        shown.add_column(heading, justify="right")
    for each in sorted(events, key=lambda event: int(event.partition)):
        labels = ("start_offset", "end_offset", "rows_added", "lag_after")
        shown.add_row(each.partition, *(f"{_number(each, label):,}" for label in labels))
    return shown


def _number(event: Materialization, label: str) -> int:
    return int(event.metadata.get(label) or 0)


def _checks(loads: Sequence[RunReport]) -> Table:
    shown = Table("check", "asset", "result", title="Checks before publication")
    for check in (check for load in loads for check in load.checks):
        result = "[green]passed[/]" if check.passed else f"[red]failed[/] {check.description}"
        shown.add_row(check.check, check.asset, result)
    return shown


def _best_stores(catalog: LakeCatalog, identifier: tuple[str, str]) -> Table:
    shown = Table("store", title="Top stores")
    shown.add_column("pizzas", justify="right")
    if table := catalog.table(identifier):
        ranked = table.scan(selected_fields=("store_id", "pizzas")).to_arrow().sort_by([("pizzas", "descending")])
        for each in ranked.slice(0, _BEST).to_pylist():
            shown.add_row(str(each["store_id"]), f"{each['pizzas']:,}")
    return shown
