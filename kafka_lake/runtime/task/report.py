"""The report of a writing task: its files, its rows by Kafka partition, and failed records."""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.task.batches import ERROR_CLASS, ERROR_MESSAGE
from kafka_lake.formats.task.error_classes import SAMPLE_CHARACTERS
from kafka_lake.quality.task.rules import Answer

_LARGE_GAP = 10_000


@dataclass(frozen=True)
class Span:
    """Consecutive rows of a Kafka partition with ascending offsets: count, first and last offset."""

    partition: int
    rows: int
    first: int
    last: int


class Spans:
    """Counts the rows of each Kafka partition in spans with ascending offsets and without large gaps."""

    def __init__(self) -> None:
        self._open: dict[int, Span] = {}
        self._closed: list[Span] = []

    def add(self, kept: pa.RecordBatch) -> None:
        """Count the records that became rows."""
        partitions = kept.column("partition").to_numpy()
        offsets = kept.column("offset").to_numpy()
        steps = np.diff(offsets)
        breaks = np.flatnonzero((np.diff(partitions) != 0) | (steps <= 0) | (steps > _LARGE_GAP)) + 1
        for start, end in zip([0, *breaks], [*breaks, len(offsets)], strict=True):
            self._add(Span(int(partitions[start]), int(end - start), int(offsets[start]), int(offsets[end - 1])))

    def _add(self, span: Span) -> None:
        before = self._open.get(span.partition)
        if before is not None and 0 < span.first - before.last <= _LARGE_GAP:
            span = replace(span, rows=before.rows + span.rows, first=before.first)
        elif before is not None:
            self._closed.append(before)
        self._open[span.partition] = span

    def all(self) -> tuple[Span, ...]:
        """Return the spans so far, in any order."""
        return (*self._closed, *self._open.values())


@dataclass(frozen=True)
class DeadLetterClass:
    """The dead letters of one error class, and the first of them as a sample.

    Args:
        partition: The sample's Kafka partition, the lowest of all.
        message: The sample's error, which may quote its value; empty after redaction.
        value: The beginning of the sample's value, as text; empty after redaction.
        topic: The sample's topic; set for logs, errors and Dagster's pages.
    """

    name: str
    count: int
    partition: int
    offset: int
    message: str
    value: str
    topic: str = ""

    def and_(self, other: "DeadLetterClass") -> "DeadLetterClass":
        """Return the sum of two of the same class."""
        first = min(self, other, key=lambda span: (span.partition, span.offset))
        return replace(first, count=self.count + other.count)


@dataclass(frozen=True)
class Report:
    """The work of one task for a table.

    Args:
        files: Iceberg's descriptions of the written data files, in no snapshot yet.
        tombstones: Records without a value.
        untimed: Records whose Kafka timestamp is out of range.
        spans: Rows by Kafka partition, in any order.
        seen: New fields of the batches, serialized by `dumped`.
        asked: Rows checked by rules.
        stopped: Whether the task stopped early, since the table lacks columns.
    """

    files: tuple[Any, ...] = ()
    records: int = 0
    tombstones: int = 0
    failed: int = 0
    untimed: int = 0
    classes: tuple[DeadLetterClass, ...] = ()
    oldest_ms: int | None = None
    newest_ms: int | None = None
    spans: tuple[Span, ...] = ()
    seen: tuple[str, ...] = ()
    bytes_read: int = 0
    asked: int = 0
    answers: Mapping[str, Answer] = field(default_factory=dict)
    table: str | None = None
    stopped: bool = False


def dumped_report(report: Report) -> bytes:
    """Return a serialized report, for `loaded`."""
    # As plain tuples: classes that are sent by value differ from those of the driver.
    nested = {name: [tuple(vars(entry).values()) for entry in getattr(report, name)] for name in ("spans", "classes")}
    return pickle.dumps({**vars(report), **nested})


def loaded(report: bytes) -> Report:
    """Return a report that `dumped_report` serialized."""
    fields = pickle.loads(report)
    spans = tuple(Span(*values) for values in fields["spans"])
    return Report(**{**fields, "spans": spans, "classes": tuple(DeadLetterClass(*part) for part in fields["classes"])})


def merged_classes(parts: Iterable[DeadLetterClass]) -> tuple[DeadLetterClass, ...]:
    """Return the sums of dead letters by class, the most frequent first."""
    found: dict[str, DeadLetterClass] = {}
    for part in parts:
        found[part.name] = found[part.name].and_(part) if part.name in found else part
    return tuple(sorted(found.values(), key=lambda merged: (-merged.count, merged.name)))


def classes_of_batch(failed: pa.RecordBatch) -> Iterator[DeadLetterClass]:
    """Yield the failed records of a batch by class."""
    classes = failed.column(ERROR_CLASS)
    for name in classes.unique().to_pylist():
        those = failed.filter(pc.equal(classes, name))
        places = (those.column("offset").to_numpy(), those.column("partition").to_numpy())
        first = those.slice(int(np.lexsort(places)[0]), 1).select(["partition", "offset", ERROR_MESSAGE, "value"])
        partition, offset, message, value = first.to_pylist()[0].values()
        # No character has more than 4 bytes.
        begin = (value or b"")[: 4 * SAMPLE_CHARACTERS].decode(errors="replace")[:SAMPLE_CHARACTERS]
        yield DeadLetterClass(name, len(those), partition=partition, offset=offset, message=message, value=begin)
