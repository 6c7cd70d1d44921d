"""What ``kafka-lake dead-letters``, ``replay``, ``reset`` and ``clean`` ask and tell, as plain data."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, In, Or, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind
from pyiceberg.table import Table
from pyparsing import ParseException

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.offsets import Position
from kafka_lake.errors import ConfigurationError
from kafka_lake.formats import meaning_of
from kafka_lake.ingest.jobs.dead_letter_replay import Replayed
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.record_keys import state_of
from kafka_lake.spec.topic_table import TopicTable

_VALUE_LENGTH = 500


@dataclass(frozen=True)
class DeadLetterOffsets:
    """Where the dead letters of one class are in one Kafka partition: the first and the last offset, both inclusive."""

    partition: int
    first: int
    last: int


@dataclass(frozen=True)
class DeadLetterSample:
    """One dead letter.

    Args:
        timestamp: Of the record, ISO 8601 in UTC.
        reason: What is wrong with it.
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
        meaning: What it means, in one line.
        failed_at: When the newest was found, ISO 8601 in UTC.
        offsets: Where they are, by partition.
        samples: Some of them, the first by partition and offset.
    """

    name: str
    meaning: str
    count: int
    failed_at: str
    offsets: tuple[DeadLetterOffsets, ...]
    samples: tuple[DeadLetterSample, ...]


@dataclass(frozen=True)
class DeadLetters:
    """A topic's dead letters by class, the most frequent first."""

    topic: str
    table: str
    classes: tuple[DeadLetterClass, ...]

    @property
    def count(self) -> int:
        """Return how many there are in all."""
        return sum(each.count for each in self.classes)


def dead_letters(spec: TopicTable, catalog: LakeCatalog, where: str | None = None, samples: int = 3) -> DeadLetters:
    """Count a topic's dead letters by class. Values are read for the samples only."""
    name = ".".join(spec.dead_letter_table)
    table = catalog.table(spec.dead_letter_table)
    if table is None:
        return DeadLetters(spec.topic, name, ())
    condition = _condition(table, where)
    if spec.topics:
        condition = And(condition, EqualTo(term=Reference("topic"), value=literal(spec.topic)))
    counted, first = [], []
    for batch in _scan(table, condition, "error_class", "partition", "offset", "failed_at"):
        groups = batch.group_by(["error_class", "partition"])
        counted.append(
            groups.aggregate([("offset", "count"), ("offset", "min"), ("offset", "max"), ("failed_at", "max")])
        )
        if samples:
            first.append(_first_of_each_class(batch, samples))
    if not counted:
        return DeadLetters(spec.topic, name, ())
    groups = pa.concat_tables(counted).group_by(["error_class", "partition"])
    totals = groups.aggregate(
        [("offset_count", "sum"), ("offset_min", "min"), ("offset_max", "max"), ("failed_at_max", "max")]
    )
    examples: dict[str, list[DeadLetterSample]] = {}
    if samples:
        examples = _samples(table, condition, _first_of_each_class(pa.concat_tables(first), samples), samples)
    by_class: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(totals.to_pylist(), key=lambda row: row["partition"]):
        by_class.setdefault(row["error_class"], []).append(row)
    found = [
        DeadLetterClass(
            name=each,
            meaning=meaning_of(each),
            count=sum(row["offset_count_sum"] for row in rows),
            failed_at=_time(max(row["failed_at_max_max"] for row in rows)),
            offsets=tuple(
                DeadLetterOffsets(row["partition"], row["offset_min_min"], row["offset_max_max"]) for row in rows
            ),
            samples=tuple(examples.get(each, ())),
        )
        for each, rows in by_class.items()
    ]
    return DeadLetters(spec.topic, name, tuple(sorted(found, key=lambda each: (-each.count, each.name))))


def _condition(table: Table, where: str | None) -> BooleanExpression:
    if not where:
        return AlwaysTrue()
    try:
        condition = parse(where)
        bind(table.schema(), condition, case_sensitive=False)
    except (ParseException, TypeError, ValueError) as error:
        reason = str(error).rstrip(".")
        if isinstance(error, ParseException):
            # The grammar of what could have come instead fills lines; where it broke off is what helps.
            reason = f"not understood from {where[error.loc :]!r} on" if error.loc else "not understood"
        raise ConfigurationError(
            f"where: {where!r} is not a condition on table {'.'.join(table.name())}: {reason}.",
            f"Its columns are {', '.join(field.name for field in table.schema().fields)}.",
        ) from error
    return condition


def _scan(table: Table, condition: BooleanExpression, *columns: str) -> Iterator[pa.Table]:
    scan = table.scan(row_filter=condition, selected_fields=columns, case_sensitive=False)
    for batch in scan.to_arrow_batch_reader():
        if batch.num_rows:
            yield pa.Table.from_batches([batch])


def _first_of_each_class(dead_letters: pa.Table, count: int) -> pa.Table:
    keys = dead_letters.select(["error_class", "partition", "offset"])
    order = [("partition", "ascending"), ("offset", "ascending")]
    names = pc.unique(keys["error_class"]).to_pylist()
    return pa.concat_tables(
        [keys.filter(pc.equal(keys["error_class"], name)).sort_by(order).slice(0, count) for name in names]
    )


def _samples(
    table: Table, condition: BooleanExpression, chosen: pa.Table, count: int
) -> dict[str, list[DeadLetterSample]]:
    offsets: dict[tuple[str, int], set[int]] = {}
    for row in chosen.to_pylist():
        offsets.setdefault((row["error_class"], row["partition"]), set()).add(row["offset"])
    places = [
        And(
            EqualTo(term=Reference("error_class"), value=literal(name)),
            EqualTo(term=Reference("partition"), value=literal(partition)),
            In(term=Reference("offset"), values={literal(each) for each in numbers}),
        )
        for (name, partition), numbers in offsets.items()
    ]
    wanted = And(condition, Or(*places) if len(places) > 1 else places[0])
    columns = ("error_class", "partition", "offset", "timestamp", "error_message", "value")
    rows = [row for batch in _scan(table, wanted, *columns) for row in batch.to_pylist()]
    found: dict[str, list[DeadLetterSample]] = {}
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        of_class = found.setdefault(row["error_class"], [])
        if len(of_class) < count:
            value = (row["value"] or b"")[: 4 * _VALUE_LENGTH].decode(errors="replace")[:_VALUE_LENGTH]
            place = row["partition"], row["offset"], _time(row["timestamp"])
            of_class.append(DeadLetterSample(*place, row["error_message"] or "", value))
    return found


def _time(moment: Any) -> str:
    return moment.isoformat(timespec="milliseconds") if moment else ""


def partitions_of(text: str | None) -> frozenset[int] | None:
    """Return the Kafka partitions that a list names; None, for all, if there is no list.

    >>> sorted(partitions_of("0, 3"))
    [0, 3]
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d+", part, re.ASCII) for part in parts):
        raise ConfigurationError(f"--partitions: {text!r} is not a list of partitions.", "Write for example 0,3.")
    return frozenset(map(int, parts))


@dataclass(frozen=True)
class PartitionReset:
    """What a reset does to one Kafka partition.

    Args:
        before: Next offset that the table would take; None if it has none.
        after: Next offset that it will take then.
        removed: Offsets whose rows leave the table, as (first, end), the end exclusive.
        skipped: Offsets that the table won't get; their end is None where nobody can tell.
        reason: Why it won't get them.
    """

    partition: int
    before: int | None
    after: int | None
    removed: tuple[int, int] | None
    skipped: tuple[int, int | None] | None
    reason: str = ""


def resets_of(before: Position | None, plan: Plan) -> list[PartitionReset]:
    """Return what a reset's plan does, by partition."""
    known = before.offsets if before else {}
    removed = {r.partition: (r.start, r.end) for r in plan.deletes}
    losses = {loss.partition: loss for loss in plan.losses}
    return [
        PartitionReset(
            partition=p,
            before=known.get(p),
            after=plan.after.offsets.get(p),
            removed=removed.get(p),
            skipped=(losses[p].start, losses[p].end) if p in losses else None,
            reason=losses[p].reason if p in losses else "",
        )
        for p in sorted({*known, *plan.after.offsets})
    ]


def pinned(before: Position | None, plan: Plan) -> str:
    """Return the targets of a reset as offsets by partition, so that what was agreed to is what is done.

    Partitions that the plan leaves where they are are not named: a run meanwhile may take them further. To stay at an
    offset of a log that has another leader since, or was replaced, is something to agree to, though.
    """
    same = before is not None and before.identity.same_as(plan.after.identity)
    known = before if before and same else Position(plan.after.identity, {})
    moved = [
        (p, o)
        for p, o in sorted(plan.after.offsets.items())
        if (known.offsets.get(p), known.epochs.get(p), known.last.get(p))
        != (o, plan.after.epochs.get(p), plan.after.last.get(p))
    ]
    return ",".join(f"{p}:{o}" for p, o in moved)


def position_of(catalog: LakeCatalog, spec: TopicTable) -> Position | None:
    """Return the table's position as its snapshots tell it; None if none does."""
    table = catalog.table(spec.identifier)
    return state_of(spec, table).position if table else None


def replayed_dead_letters(spec: TopicTable, done: Replayed) -> dict[str, Any]:
    """Return what became of dead letters, for programs."""
    classes = [{"name": c.name, "count": c.count, "reason": c.message} for c in done.report.classes()]
    table = ".".join(spec.identifier)
    return {"topic": spec.topic, "table": table, "moved": done.moved, "remaining": done.remaining, "classes": classes}
