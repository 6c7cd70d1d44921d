"""Offsets of a topic as arrays with a cell for each: what Kafka has there, and how often the table has it."""

from collections.abc import Iterator, Sequence

import numpy as np

from kafka_lake.common.offsets import OffsetRange


class Window:
    """Ranges of a topic's partitions, one range a partition.

    Attributes:
        visible: Whether Kafka has a record that a reader sees.
        tombstone: Whether it has no value.
        known: Whether Kafka keeps the offset, and the table hasn't given it up as lost.
        taken: Whether the table's condition takes the record.
        rows: How many rows the table has; ``deletes`` counts those that only mark a deleted key.
        dead_letters: How many dead letters it has.
    """

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self.ranges = ranges
        partitions = 1 + max((r.partition for r in ranges), default=0)
        self._base, self._start, self._end = (np.zeros(partitions, dtype=np.int64) for _ in range(3))
        size = 0
        for r in ranges:
            self._base[r.partition], self._start[r.partition], self._end[r.partition] = size - r.start, r.start, r.end
            size += len(r)
        self.visible, self.tombstone = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        self.known, self.taken = np.ones(size, dtype=bool), np.ones(size, dtype=bool)
        self.rows, self.deletes, self.dead_letters = (np.zeros(size, dtype=np.uint16) for _ in range(3))

    def __len__(self) -> int:
        return len(self.visible)

    def cells(self, partitions: Sequence[int] | np.ndarray, offsets: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the cell of each offset, -1 for those outside."""
        partition, offset = np.asarray(partitions, dtype=np.int64), np.asarray(offsets, dtype=np.int64)
        near = np.where((partition >= 0) & (partition < len(self._base)), partition, 0)
        inside = (near == partition) & (offset >= self._start[near]) & (offset < self._end[near])
        return np.where(inside, self._base[near] + offset, -1)

    def fill(self, mask: np.ndarray, ranges: Sequence[OffsetRange], value: bool) -> None:
        """Set a mask for the parts of the window that lie in ranges."""
        for r in ranges:
            if r.partition < len(self._base):
                start, end = (
                    int(np.clip(at, self._start[r.partition], self._end[r.partition])) for at in (r.start, r.end)
                )
                mask[self._base[r.partition] + start : self._base[r.partition] + end] = value

    def offsets(self, mask: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the partitions of a mask with the offsets, ascending."""
        for r in self.ranges:
            base = int(self._base[r.partition])
            if len(found := np.flatnonzero(mask[base + r.start : base + r.end])):
                yield r.partition, found + r.start

    def places(self, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return partitions and offsets of a mask."""
        parts = list(self.offsets(mask))
        partitions = [np.full(len(offsets), partition) for partition, offsets in parts]
        nothing = np.zeros(0, dtype=np.int64)
        return np.concatenate([nothing, *partitions]), np.concatenate([nothing, *(offsets for _, offsets in parts)])
