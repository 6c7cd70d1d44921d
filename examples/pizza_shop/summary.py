"""The results of the demo, as tables on the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.table import Table as IcebergTable
from rich.console import Console
from rich.table import Table

from kafka_lake.catalog.history import schema_history
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import RUN_ID, summary_of
from kafka_lake.cli.commands.status import collect
from kafka_lake.common.environment import SCHEMA_REGISTRY_URL
from kafka_lake.common.text import counted, readable
from kafka_lake.devstack.dagster_runs import CheckResult, Materialization, RunReport
from kafka_lake.devstack.running import Ports
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource
from kafka_lake.spec.topic_table import TopicTable


@dataclass(frozen=True)
class Column:
    """A column, and the snapshot and the run that added it; no run for a column of the first commit."""

    name: str
    type: str
    snapshot_id: int
    run_id: str


def columns_of(table: IcebergTable) -> list[Column]:
    """Return a table's columns, and nested fields that were added later, oldest first."""
    columns = []
    for version in schema_history(table):
        snapshot = table.metadata.snapshot_by_id(version.snapshot_id) if version.snapshot_id is not None else None
        if snapshot is not None:
            run_id = summary_of(snapshot).get(RUN_ID, "")
            added = (change for change in version.changes if change.kind == "added")
            columns += [Column(c.column, readable(c.after), snapshot.snapshot_id, run_id) for c in added]
    return columns


_BEST = 10


def print_orders(
    spec: TopicTable, top_stores: tuple[str, str], loads: Mapping[str, RunReport], seconds: float, console: Console
) -> None:
    """Print the loaded orders, their checks, and the content of their tables."""
    catalog = CatalogResource().open()
    status = collect([spec], KafkaResource().cluster(), catalog)[0]
    events = [event for load in loads.values() for event in _partitions(load, spec)]
    console.print(_loaded(spec.topic, events))
    console.print(_checks([check for load in loads.values() for check in load.checks]))
    console.print(_best_stores(catalog, top_stores))
    new = sum(_number(event, "dagster/partition_row_count") for event in events)
    console.print(
        f"[bold green]{counted(new, 'new row')}[/], {counted(status.rows, 'row')} in {status.table} now, snapshot "
        f"{status.snapshot_id}, lag {status.lag}; {seconds:.0f} s from the start of Dagster to the last table.",
        soft_wrap=True,
    )


def print_deliveries(spec: TopicTable, loads: Mapping[str, RunReport], console: Console) -> None:
    """Print the loaded deliveries, and the columns of their table."""
    catalog = CatalogResource().open()
    status = collect([spec], KafkaResource().cluster(), catalog)[0]
    table = catalog.table(spec.identifier)
    columns = columns_of(table) if table else []
    runs = Table("run", title=f"Runs that loaded {spec.topic}")
    runs.add_column("rows", justify="right")
    for heading in ("checks", "new columns"):
        runs.add_column(heading)
    for run_id, load in loads.items():
        rows = sum(_number(event, "dagster/partition_row_count") for event in _partitions(load, spec))
        new = ", ".join(column.name for column in columns if column.run_id == run_id)
        runs.add_row(run_id[:8], f"{rows:,}", _verdict(load.checks), new)
    console.print(runs)
    shown = Table("column", "type", "added by", title=f"The columns of {status.table}")
    for column in columns:
        if column.name != METADATA_COLUMN:
            came_with = f"snapshot {column.snapshot_id}, run {column.run_id[:8]}" if column.run_id else "the table"
            shown.add_row(column.name, column.type, came_with, style="bold green" if column.run_id else "")
    console.print(shown)
    console.print(
        f"{counted(status.rows, 'row')} in {status.table} now, snapshot {status.snapshot_id}, lag {status.lag}.",
        soft_wrap=True,
    )


def print_how_to_go_on(ports: Ports, avro: TopicTable | None, console: Console) -> None:
    """Print what to do next."""
    lines = [
        ("make dev", f"keeps everything running, with live records; Dagster's UI is http://{ports.ui.address}"),
        ("kafka-lake status", "shows rows and lag of each table"),
        (f"make demo{' AVRO=1' if avro else ''}", "adds more orders: only new records are ingested"),
    ]
    if avro:
        lines.insert(2, (f"kafka-lake schema {avro.topic} --history", "shows when each column was added"))
    width = max(len(command) for command, _ in lines)
    console.print("\nNext:")
    for command, text in lines:
        console.print(f"  {command:{width}}  {text}", soft_wrap=True)
    if avro:
        url = SCHEMA_REGISTRY_URL.value()
        page = f"http://{ports.ui.address}/assets/{'/'.join(avro.identifier)}"
        console.print(
            f"\nTopic {avro.topic} needs a schema registry; name it for kafka-lake:\n"
            f"  export {SCHEMA_REGISTRY_URL.name}={url}\n"
            f"\nWith make dev, its table is at {page}. Its check schema_evolution shows the changes of a run.",
            soft_wrap=True,
        )
    console.print()


def _partitions(load: RunReport, spec: TopicTable) -> list[Materialization]:
    key = "/".join(spec.identifier)
    return [event for event in load.materializations if event.asset == key and event.partition]


def _loaded(topic: str, events: Sequence[Materialization]) -> Table:
    shown = Table("partition", title=f"Loaded from {topic}")
    for heading in ("from offset", "to offset", "rows", "lag after"):
        shown.add_column(heading, justify="right")
    for item in sorted(events, key=lambda event: int(event.partition)):
        labels = ("start_offset", "end_offset", "dagster/partition_row_count", "lag_after")
        shown.add_row(item.partition, *(f"{_number(item, label):,}" for label in labels))
    return shown


def _number(event: Materialization, label: str) -> int:
    return int(event.metadata.get(label) or 0)


def _checks(checks: Sequence[CheckResult]) -> Table:
    shown = Table("check", "asset", "result", title="Checks")
    for check in checks:
        result = "[green]passed[/]" if check.passed else f"[red]failed[/] {check.description}"
        shown.add_row(check.check, check.asset, result)
    return shown


def _verdict(checks: Sequence[CheckResult]) -> str:
    failed = [check.check for check in checks if not check.passed]
    return f"[red]failed: {', '.join(failed)}[/]" if failed else f"[green]{len(checks)} passed[/]"


def _best_stores(catalog: LakeCatalog, identifier: tuple[str, str]) -> Table:
    shown = Table("store", title="Top stores")
    shown.add_column("pizzas", justify="right")
    if table := catalog.table(identifier):
        ranked = table.scan(selected_fields=("store_id", "pizzas")).to_arrow().sort_by([("pizzas", "descending")])
        for store in ranked.slice(0, _BEST).to_pylist():
            shown.add_row(str(store["store_id"]), f"{store['pizzas']:,}")
    return shown
