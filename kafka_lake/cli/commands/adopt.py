"""``kafka-lake adopt``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from rich import box
from rich.console import RenderableType
from rich.markup import escape

from kafka_lake.cli import project
from kafka_lake.cli.arguments import AsJson
from kafka_lake.cli.commands.schema import preview_tables
from kafka_lake.cli.output import Output, WideTable, add_columns, working
from kafka_lake.cli.progress import run_progress
from kafka_lake.common.text import counted
from kafka_lake.errors import AdoptionRefusedError, ConfigurationError

if TYPE_CHECKING:
    from kafka_lake.ingest.jobs.adopt import Adoption, Source
    from kafka_lake.ingest.preview import Preview
    from kafka_lake.spec.topic_table import TopicTable


def adopt(
    table: Annotated[str, typer.Argument(help="Table, as namespace.table.")],
    topic: Annotated[str, typer.Option("--topic", help="Kafka topic that filled the table.")],
    from_kafka_connect: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use the offsets of this connector of Apache Iceberg's sink.")
    ] = None,
    from_offsets: Annotated[
        str | None, typer.Option(metavar="OFFSETS", help="Use these offsets by partition, such as 0:17,1:4.")
    ] = None,
    sample: Annotated[int, typer.Option(min=0, help="Number of newest records to check against the table.")] = 1000,
    yes: Annotated[
        bool, typer.Option("--yes", help="Take the table over. Without this option, nothing changes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take over a table that another program filled from the topic. Stop that program first.

    Shows where each partition resumes and why, what Kafka has, and how the next run would change the columns. With
    --yes, writes the position in one commit without rows. Existing rows stay as they are.
    """
    from kafka_lake.ingest import run
    from kafka_lake.ingest.jobs.adopt import plan_adoption
    from kafka_lake.ingest.preview import preview

    source = source_of(from_kafka_connect, from_offsets)
    spec = spec_of(project.topic_tables(topic), table)
    output = Output(as_json)
    with project.open_connections(with_spark=yes or sample > 0, cluster=spec.cluster) as connections:
        with working(f"Planning where {table} resumes"):
            adoption = plan_adoption(spec, connections, source)
            effect = preview(spec, connections, sample) if sample else None
        output.show(*adoption_tables(adoption, effect))
        if effect is not None and effect.refused:
            raise AdoptionRefusedError(
                f"Table {table}: the next run would fail: {effect.refused}",
                "Nothing was changed. Correct the settings.",
            )
        if yes:
            with run_progress(topic) as observer:
                run.adopt(spec, connections, run_id=str(uuid4()), agreed=adoption, source=source, observer=observer)
    output.json(_document(adoption, effect, adopted=yes))
    if yes:
        output.lines(f"{table}: taken over; continues at {dict(adoption.position.offsets)}.")
    else:
        output.lines("Nothing was changed. The same command with --yes takes the table over.")


def source_of(connector: str | None, offsets: str | None) -> Source:
    """Return the source of the offsets that the options name."""
    from kafka_lake.ingest.jobs.adopt import FromKafkaConnect, FromOffsets

    if connector and not offsets:
        return FromKafkaConnect(connector)
    if offsets and not connector:
        return FromOffsets(offsets)
    raise ConfigurationError(
        f"The options --from-kafka-connect and --from-offsets are both {'set' if connector else 'missing'}.",
        "Set exactly one, as the source of the table's offsets.",
    )


def spec_of(specs: Sequence[TopicTable], table: str) -> TopicTable:
    """Return the topic's settings of a table."""
    by_table = {".".join(spec.identifier): spec for spec in specs}
    if table not in by_table:
        raise ConfigurationError(
            f"The topic's YAML document names table {', '.join(by_table)}, not {table}.",
            "Correct the name of the table in the document or in the command.",
        )
    return by_table[table]


def adoption_tables(adoption: Adoption, effect: Preview | None) -> list[RenderableType]:
    """Return the position to be written as a table with a row per Kafka partition, and notes."""
    table = WideTable(title=escape(f"{adoption.topic} → {adoption.table}"), box=box.SIMPLE_HEAD, min_width=60)
    add_columns(table, "partition", "resumes at", "Kafka has", "to read", justify="right", no_wrap=True)
    table.add_column("why", ratio=1)
    for part in adoption.partitions:
        in_kafka = f"{part.low:,} to {part.end - 1:,}" if part.end > part.low else f"none, next is {part.end:,}"
        table.add_row(
            str(part.partition), f"{part.offset:,}", in_kafka, f"{part.end - part.offset:,}", escape(part.why)
        )
    lines = [escape(f"Offsets from {adoption.source}. The table's {counted(adoption.rows, 'row')} will stay.")]
    lines += [escape(f"Note: {note}") for note in adoption.notes]
    return [table, *lines, *(preview_tables(effect) if effect is not None else [])]


def _document(adoption: Adoption, effect: Preview | None, adopted: bool) -> dict[str, Any]:
    return {
        "topic": adoption.topic,
        "table": adoption.table,
        "source": adoption.source,
        "snapshot_id": adoption.head,
        "rows": adoption.rows,
        "partitions": [asdict(partition) for partition in adoption.partitions],
        "notes": list(adoption.notes),
        "columns": [asdict(note) for note in effect.notes] if effect else [],
        "refused": effect.refused if effect else "",
        "adopted": adopted,
    }
