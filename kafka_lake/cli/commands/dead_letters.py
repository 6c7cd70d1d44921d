"""``kafka-lake dead-letters``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from pyparsing import ParseException
from rich import box
from rich.console import RenderableType
from rich.markup import escape

from kafka_lake.cli import project
from kafka_lake.cli.arguments import AsJson, Topic
from kafka_lake.cli.output import Output, WideTable, add_columns, first_partitions
from kafka_lake.cli.progress import run_progress
from kafka_lake.common.text import counted, offset_span, printable
from kafka_lake.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.ingest.report import Replayed
    from kafka_lake.spec.topic_table import TopicTable

_VALUE_LENGTH = 500


def dead_letters(
    topic: Topic,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Decode dead letters again, and move those that can become rows into the table."),
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(help="Only dead letters that meet this SQL condition, such as \"error_class = 'not_json'\"."),
    ] = None,
    samples: Annotated[int, typer.Option(min=0, help="Number of examples per class.")] = 3,
    as_json: AsJson = False,
) -> None:
    """List a topic's dead letters by class, or decode them again.

    A condition may use error_class, error_message, partition, offset, timestamp, failed_at and run_id. To list, it may
    use comparisons, in, between, is null, like 'text%', and, or, not; with --replay, any Spark SQL about one row.
    """
    from kafka_lake.ingest import run

    specs = project.topic_tables(topic)
    output, documents = Output(as_json), list[dict[str, Any]]()
    with project.open_connections(with_broker=replay, with_spark=replay, cluster=specs[0].cluster) as connections:
        for spec in chain.from_iterable(topic_spec.tables for topic_spec in specs):
            if replay:
                with run_progress(topic) as observer:
                    done = run.replay_dead_letters(
                        spec, connections, run_id=str(uuid4()), where=where, observer=observer
                    )
                documents.append(_replayed_document(spec, done))
                output.show(*replayed_tables(spec, done))
            else:
                listed = list_dead_letters(spec, connections.catalog, where, samples)
                documents.append(asdict(listed))
                output.show(*dead_letter_tables(listed))
    output.json(documents)


@dataclass(frozen=True)
class OffsetSpan:
    """The first and the last offset, both inclusive, of the dead letters of a class in a Kafka partition."""

    partition: int
    first: int
    last: int


@dataclass(frozen=True)
class DeadLetterSample:
    """One dead letter.

    Args:
        timestamp: Of the record, ISO 8601 in UTC.
        reason: Why it can't be a row.
        value: The beginning of its value as text, undecodable bytes replaced.
    """

    partition: int
    offset: int
    timestamp: str
    reason: str
    value: str


@dataclass(frozen=True)
class DeadLetterClass:
    """The dead letters of one class.

    Args:
        meaning: Of the class, in one line.
        failed_at: When the newest failed, ISO 8601 in UTC.
        samples: The first ones by partition and offset.
    """

    name: str
    meaning: str
    count: int
    failed_at: str
    offsets: tuple[OffsetSpan, ...]
    samples: tuple[DeadLetterSample, ...]


@dataclass(frozen=True)
class DeadLetters:
    """A topic's dead letters by class, the most frequent first."""

    topic: str
    table: str
    classes: tuple[DeadLetterClass, ...]

    @property
    def count(self) -> int:
        """Return how many dead letters there are in all."""
        return sum(group.count for group in self.classes)


_BY_CLASS = """
SELECT error_class, "partition", count(*) AS count, min("offset") AS first, max("offset") AS last,
  max(failed_at) AS failed_at, min("offset", {samples}) AS samples
FROM dead_letters GROUP BY ALL ORDER BY error_class, "partition"
"""


def list_dead_letters(
    spec: TopicTable, catalog: LakeCatalog, where: str | None = None, samples: int = 3
) -> DeadLetters:
    """Count a topic's dead letters by class. Values are read for the samples only."""
    from pyiceberg.expressions import And, EqualTo, Reference
    from pyiceberg.expressions.literals import literal

    from kafka_lake.formats import meaning_of
    from kafka_lake.runtime.snapshot_rows import open_database

    name = ".".join(spec.dead_letter_table)
    table = catalog.table(spec.dead_letter_table)
    if table is None:
        return DeadLetters(spec.topic, name, ())
    condition = _condition(table, where)
    if spec.topics:
        condition = And(condition, EqualTo(term=Reference("topic"), value=literal(spec.topic)))
    with open_database() as database:
        database.register("dead_letters", _read(table, condition, "error_class", "partition", "offset", "failed_at"))
        found = database.sql(_BY_CLASS.format(samples=max(samples, 1))).to_arrow_table().to_pylist()
    by_class = {name: list(rows) for name, rows in groupby(found, key=itemgetter("error_class"))}
    examples = _samples(table, condition, by_class, samples)
    classes = [
        DeadLetterClass(
            name=error_class,
            meaning=meaning_of(error_class),
            count=sum(row["count"] for row in rows),
            failed_at=_iso(max(row["failed_at"] for row in rows)),
            offsets=tuple(OffsetSpan(row["partition"], row["first"], row["last"]) for row in rows),
            samples=tuple(examples.get(error_class, ())),
        )
        for error_class, rows in by_class.items()
    ]
    return DeadLetters(spec.topic, name, tuple(sorted(classes, key=lambda group: (-group.count, group.name))))


def _condition(table: Table, where: str | None) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.expressions.parser import parse
    from pyiceberg.expressions.visitors import bind

    if not where:
        return AlwaysTrue()
    try:
        condition = parse(where)
        bind(table.schema(), condition, case_sensitive=False)
    except (ParseException, TypeError, ValueError) as error:
        reason = str(error).rstrip(".")
        if isinstance(error, ParseException):
            # The parser lists every token that it expected; the place of the error is enough.
            reason = f"unexpected from {where[error.loc :]!r} on" if error.loc else "not understood"
        raise ConfigurationError(
            f"where: {where!r} is not a condition on table {'.'.join(table.name())}: {reason}.",
            f"Its columns are {', '.join(field.name for field in table.schema().fields)}.",
        ) from error
    return condition


def _read(table: Table, condition: BooleanExpression, *columns: str) -> pa.RecordBatchReader:
    return table.scan(row_filter=condition, selected_fields=columns, case_sensitive=False).to_arrow_batch_reader()


def _samples(
    table: Table, condition: BooleanExpression, by_class: Mapping[str, Sequence[Mapping[str, Any]]], count: int
) -> dict[str, list[DeadLetterSample]]:
    from pyiceberg.expressions import And, EqualTo, In, Or, Reference
    from pyiceberg.expressions.literals import literal

    records = []
    for name, rows in by_class.items():
        missing = count
        for row in rows:
            if offsets := row["samples"][:missing]:
                missing -= len(offsets)
                records.append(
                    And(
                        EqualTo(term=Reference("error_class"), value=literal(name)),
                        EqualTo(term=Reference("partition"), value=literal(row["partition"])),
                        In(term=Reference("offset"), values={literal(offset) for offset in offsets}),
                    )
                )
    if not records:
        return {}
    condition = And(condition, Or(*records) if len(records) > 1 else records[0])
    columns = ("error_class", "partition", "offset", "timestamp", "error_message", "value")
    rows = _read(table, condition, *columns).read_all().to_pylist()
    samples: dict[str, list[DeadLetterSample]] = {}
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        of_class = samples.setdefault(row["error_class"], [])
        # Two records of a table of several topics may have the same partition and offset.
        if len(of_class) < count:
            value = (row["value"] or b"")[: 4 * _VALUE_LENGTH].decode(errors="replace")[:_VALUE_LENGTH]
            of_class.append(
                DeadLetterSample(
                    row["partition"],
                    row["offset"],
                    timestamp=_iso(row["timestamp"]),
                    reason=row["error_message"] or "",
                    value=value,
                )
            )
    return samples


def _iso(moment: Any) -> str:
    return moment.isoformat(timespec="milliseconds") if moment else ""


def dead_letter_tables(listed: DeadLetters) -> list[RenderableType]:
    """Return a table of the classes, and one of their samples if there are any."""
    if not listed.classes:
        return [f"{escape(listed.table)}: no dead letters"]
    classes = WideTable("class", title=escape(f"{listed.topic} → {listed.table}"), box=box.SIMPLE_HEAD)
    classes.add_column("count", justify="right")
    add_columns(classes, "offsets", "newest (UTC)", no_wrap=True)
    samples = WideTable("class", box=box.SIMPLE_HEAD)
    samples.add_column("record", justify="right", no_wrap=True)
    samples.add_column("time (UTC)", no_wrap=True)
    samples.add_column("reason", ratio=3)
    samples.add_column("value", ratio=2, no_wrap=True, overflow="ellipsis")
    for group in listed.classes:
        name = f"[bold]{escape(group.name)}[/]\n[dim]{escape(group.meaning)}[/]"
        offsets = first_partitions([f"{s.partition}: {offset_span(s.first, s.last + 1)}" for s in group.offsets])
        classes.add_row(name, f"{group.count:,}", offsets, _short_time(group.failed_at))
        for number, sample in enumerate(group.samples):
            samples.add_row(
                "" if number else f"[bold]{escape(group.name)}[/]",
                f"{sample.partition}:{sample.offset}",
                _short_time(sample.timestamp),
                escape(printable(sample.reason)),
                escape(printable(sample.value)),
                end_section=number == len(group.samples) - 1,
            )
    return [classes, samples] if samples.row_count else [classes]


def replayed_tables(spec: TopicTable, done: Replayed) -> list[RenderableType]:
    """Return a line about moved dead letters, and a table of the remaining ones, a row per class."""
    moved, name = counted(done.moved, "dead letter"), ".".join(spec.identifier)
    line = f"{escape(name)}: {moved} moved into the table, {done.remaining:,} of the examined ones remain"
    if not done.remaining:
        return [line]
    table = WideTable("class", box=box.SIMPLE_HEAD)
    table.add_column("count", justify="right")
    table.add_column("first", justify="right", no_wrap=True)
    table.add_column("its reason", ratio=1)
    for group in done.report.classes():
        first = f"{group.partition}:{group.offset}"
        table.add_row(f"[bold]{escape(group.name)}[/]", f"{group.count:,}", first, escape(printable(group.message)))
    return [line, table]


def _replayed_document(spec: TopicTable, done: Replayed) -> dict[str, Any]:
    classes = [{"name": c.name, "count": c.count, "reason": c.message} for c in done.report.classes()]
    table = ".".join(spec.identifier)
    return {"topic": spec.topic, "table": table, "moved": done.moved, "remaining": done.remaining, "classes": classes}


def _short_time(text: str) -> str:
    return text[:19].replace("T", " ")
