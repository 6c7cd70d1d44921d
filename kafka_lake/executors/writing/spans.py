"""The offsets of the rows that a task wrote, counted in spans."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

_LARGE_GAP = 10_000


@dataclass(frozen=True)
class Span:
    """Rows of one Kafka partition that a task wrote in a row: how many, and the first and last of their offsets.

    The offsets between ascend.
    """

    partition: int
    rows: int
    first: int
    last: int


class Spans:
    """Keeps count of the offsets of each Kafka partition, in spans that ascend and have no large gap."""

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
