"""What ``kafka-lake adopt`` asks and tells."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.markup import escape

from kafka_lake.cli.console import FullWidth
from kafka_lake.cli.schema import preview_tables
from kafka_lake.common.text import counted
from kafka_lake.errors import AdoptionRefusedError, ConfigurationError
from kafka_lake.ingest.adopt import Adoption, FromGroup, FromKafkaConnect, FromOffsets, Source
from kafka_lake.ingest.preview import Preview
from kafka_lake.spec.topic_table import TopicTable


def source_of(connector: str | None, group: str | None, offsets: str | None) -> Source:
    """Return where the offsets come from, by the command's options."""
    given: list[Source] = []
    if connector:
        given.append(FromKafkaConnect(connector))
    if group:
        given.append(FromGroup(group))
    if offsets:
        given.append(FromOffsets(offsets))
    if len(given) != 1:
        raise ConfigurationError(
            f"{'None' if not given else len(given)} of the options --from-kafka-connect, --from-checkpoint, "
            "--from-group and --from-offsets are given.",
            "Give exactly one: it says where the table's offsets come from.",
        )
    return given[0]


def spec_of(specs: Sequence[TopicTable], table: str) -> TopicTable:
    """Return the topic's settings that are about a table."""
    for each in specs:
        if ".".join(each.identifier) == table:
            return each
    named = ", ".join(".".join(each.identifier) for each in specs)
    raise ConfigurationError(
        f"The topic's YAML document names table {named}, not {table}.",
        "Set the name of its table: in it, or correct the command.",
    )


def unfit(found: Adoption, seen: Preview) -> AdoptionRefusedError:
    """Return the error of a table that the topic's records don't fit."""
    return AdoptionRefusedError(
        f"Table {found.table}: the next run would fail: {seen.refused}", "Nothing was changed. Correct the settings."
    )


def adoption_tables(found: Adoption, seen: Preview | None) -> list[RenderableType]:
    """Return what would be written, as a table with a row per Kafka partition, and what a person must know."""
    table = FullWidth(title=escape(f"{found.topic} → {found.table}"), box=box.SIMPLE_HEAD, min_width=60)
    for heading in ("partition", "resumes at", "Kafka has", "to read"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why", ratio=1)
    for each in found.partitions:
        held = f"{each.low:,} to {each.end - 1:,}" if each.end > each.low else f"none, next is {each.end:,}"
        table.add_row(str(each.partition), f"{each.offset:,}", held, f"{each.end - each.offset:,}", escape(each.why))
    lines = [escape(f"Offsets from {found.source}. The table's {counted(found.rows, 'row')} will stay.")]
    lines += [escape(f"Note: {note}") for note in found.notes]
    return [table, *lines, *(preview_tables(seen) if seen is not None else [])]


def as_json(found: Adoption, seen: Preview | None, adopted: bool) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "topic": found.topic,
        "table": found.table,
        "source": found.source,
        "snapshot_id": found.head,
        "rows": found.rows,
        "partitions": [asdict(each) for each in found.partitions],
        "notes": list(found.notes),
        "columns": [asdict(each) for each in seen.notes] if seen else [],
        "refused": seen.refused if seen else "",
        "adopted": adopted,
    }
