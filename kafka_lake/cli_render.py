"""The command line's tables and progress bars. What they show is found elsewhere."""

from collections.abc import Sequence
from uuid import uuid4

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kafka_lake.doctor import Diagnosis
from kafka_lake.ingest.pipeline import ingest
from kafka_lake.ingest.plan import Plan
from kafka_lake.ingest.report import Commit, RunReport
from kafka_lake.ingest.systems import Systems
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.resource import KafkaResource
from kafka_lake.lake.resource import CatalogResource
from kafka_lake.spark.resource import SparkResource
from kafka_lake.status import TopicStatus


def status_table(status: TopicStatus) -> Table:
    """Return one topic's status as a table, a row per Kafka partition."""
    if status.error:
        caption = f"[red]{escape(status.error)}[/]"
    elif status.snapshot_id is None:
        caption = "no table yet"
    else:
        caption = f"snapshot {status.snapshot_id}, {status.committed_at}"
    caption += f"\n{status.rows:,} rows, {status.dead_letters:,} dead letters, lag {status.lag:,}"
    table = Table("partition", title=f"{status.topic} → {status.table}", caption=caption, min_width=60)
    for heading in ("position", "end", "lag"):
        table.add_column(heading, justify="right")
    for each in status.partitions:
        position = "none" if each.position is None else f"{each.position:,}"
        table.add_row(str(each.partition), position, f"{each.end:,}", f"{each.lag:,}")
    return table


def diagnosis_table(diagnoses: Sequence[Diagnosis]) -> Table:
    """Return the doctor's findings as a table, a row per part."""
    table = Table("", "part", "finding")
    for each in diagnoses:
        mark = "[green]✓[/]" if each.healthy else "[red]✗[/]"
        finding = escape(each.finding) if each.healthy else f"{escape(each.finding)}\n[bold]{escape(each.remedy)}[/]"
        table.add_row(mark, each.part, finding)
    return table


def ingest_with_progress(spec: TopicTable, backlog: int, console: Console) -> RunReport:
    """Bring one table up to date in this process, with a progress bar.

    Args:
        spec: The topic and its table.
        backlog: Offsets to consume, for the bar.
        console: Gets the bar.

    Raises:
        KafkaLakeError: What ``ingest`` raises; commits before it stay.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    catalog = CatalogResource()
    kafka = KafkaResource()
    spark = SparkResource(spark_config={}, catalog=catalog)
    systems = Systems(kafka.cluster(), kafka.spark_options(), catalog.open(), lambda: spark.spark_session)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(spec.topic, total=backlog)

        def on_commit(_commit: Commit, plan: Plan) -> None:
            progress.advance(task, plan.records_at_most)

        def on_step(step: str) -> None:
            progress.update(task, description=f"{spec.topic}: {step}")

        try:
            return ingest(spec, systems, str(uuid4()), on_commit=on_commit, on_step=on_step)
        finally:
            spark.stop()
