"""What a task that writes says of itself: its files, its rows by Kafka partition, and what failed."""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.task import ERROR_CLASS, ERROR_MESSAGE
from kafka_lake.executors.writing.rules import Answer
from kafka_lake.executors.writing.spans import Span

SAMPLE_CHARACTERS = 200
"""Characters of a failed record's value that are shown."""


@dataclass(frozen=True)
class Failure:
    """Records that became no row for one kind of reason, and the first of them.

    Args:
        partition: Kafka partition of the first one, the lowest of all.
        offset: Its offset, the lowest in that partition.
        message: What is wrong with it.
        value: The beginning of its value, as text.
    """

    name: str
    count: int
    partition: int
    offset: int
    message: str
    value: str

    def and_(self, other: "Failure") -> "Failure":
        """Return what two are together, of the same class."""
        first = min(self, other, key=lambda each: (each.partition, each.offset))
        return replace(first, count=self.count + other.count)


@dataclass(frozen=True)
class Report:
    """What one task did.

    Args:
        files: Iceberg's descriptions of the data files it wrote, in no snapshot yet.
        records: Records it was given, but for those that are left out.
        large: Large records that it was given, left out or not.
        tombstones: Records without a value among them.
        failed: Records among them that became no row.
        untimed: Records among them whose Kafka timestamp no table holds.
        oldest_ms: The least Kafka timestamp of its rows and tombstones, None if none has any.
        spans: Its rows by Kafka partition, in any order.
        seen: What its batches had that no column takes, as `dumped` says it.
        bytes_read: Of the records' keys, values and headers.
        asked: How many rows were asked rules.
        answers: What they answered, by the rule's name.
        table: Whose records they were, where a task writes several tables.
    """

    files: tuple[Any, ...] = ()
    records: int = 0
    large: int = 0
    tombstones: int = 0
    failed: int = 0
    untimed: int = 0
    failures: tuple[Failure, ...] = ()
    oldest_ms: int | None = None
    newest_ms: int | None = None
    spans: tuple[Span, ...] = ()
    seen: tuple[str, ...] = ()
    bytes_read: int = 0
    asked: int = 0
    answers: Mapping[str, Answer] = field(default_factory=dict)
    table: str | None = None


def dumped_report(report: Report) -> bytes:
    # As tuples and numbers: there, these classes are others than here.
    """Return a report as a task sends it, for `loaded`."""
    nested = {name: [tuple(vars(each).values()) for each in getattr(report, name)] for name in ("spans", "failures")}
    return pickle.dumps({**vars(report), **nested})


def loaded(report: bytes) -> Report:
    """Return a report as a task sent it."""
    said = pickle.loads(report)
    spans = tuple(Span(*each) for each in said["spans"])
    return Report(**{**said, "spans": spans, "failures": tuple(Failure(*each) for each in said["failures"])})


def merged(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Return failures of several batches, one of each class."""
    found: dict[str, Failure] = {}
    for each in failures:
        found[each.name] = found[each.name].and_(each) if each.name in found else each
    return tuple(found.values())


def failures_of(failed: pa.RecordBatch) -> Iterator[Failure]:
    """Give the failures of a batch's records, one of each class.

    Args:
        failed: The records that failed, with ``error_class`` and ``error_message``.
    """
    classes = failed.column(ERROR_CLASS)
    for name in classes.unique().to_pylist():
        those = failed.filter(pc.equal(classes, name))
        places = (those.column("offset").to_numpy(), those.column("partition").to_numpy())
        first = those.slice(int(np.lexsort(places)[0]), 1).select(["partition", "offset", ERROR_MESSAGE, "value"])
        partition, offset, message, value = first.to_pylist()[0].values()
        # No character has more than 4 bytes.
        begin = (value or b"")[: 4 * SAMPLE_CHARACTERS].decode(errors="replace")[:SAMPLE_CHARACTERS]
        yield Failure(name, len(those), partition=partition, offset=offset, message=message, value=begin)
