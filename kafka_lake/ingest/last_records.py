"""Whether a log still has the record that a table read last, and which record that is for the next position."""

from collections.abc import Collection
from dataclasses import replace

from kafka_lake.common.last_record import LastRecord, differs_at
from kafka_lake.common.offsets import OffsetRange, Position, Watermarks
from kafka_lake.kafka.cluster import KafkaCluster

# Offsets before a position among which its last record is looked for. A transaction's marker takes one.
_WINDOWS = (2, 32, 512)


class LastRecords:
    """The last records of a topic's partitions, by one short consumer for most commits.

    Args:
        cluster: Where the topic is.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._at_end: dict[tuple[int, int], LastRecord] = {}

    def replaced(self, position: Position, now: Watermarks, partitions: Collection[int]) -> dict[int, int]:
        """Return, for each partition whose log was replaced since a position was written, a record that differs.

        Partitions without anything new aren't looked at. Nothing is compared where the record was compacted away or has
        expired.

        Args:
            position: The table's.
            now: What the topic holds.
            partitions: Which to look at.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        due = {
            p: OffsetRange(p, each.offset, position.offsets[p])
            for p, each in position.last.items()
            if p in partitions and now.low.get(p, 0) <= each.offset < position.offsets[p] < now.end.get(p, 0)
        }
        # The commit that reads to the end will ask for these.
        ends = {p: _window(p, now.end[p], now, _WINDOWS[0]) for p in due}
        seen = self._cluster.last_records(now.identity.topic, [*due.values(), *ends.values()])
        self._at_end = {(p, each.end): seen[each][-1] for p, each in ends.items() if seen[each]}
        complete = self._cluster.reads_committed
        found = {p: differs_at(position.last[p], each.end, seen[each], complete) for p, each in due.items()}
        return {p: offset for p, offset in found.items() if offset is not None}

    def remembered(self, position: Position, now: Watermarks) -> Position:
        """Return a position with the last record before the offset of each partition, as far as there is one nearby.

        Args:
            position: What it has already of them stays.
            now: What the topic holds.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        last = dict(position.last)
        for p, offset in position.offsets.items():
            if p not in last and (p, offset) in self._at_end:
                last[p] = self._at_end[p, offset]
        for size in _WINDOWS:
            due = [
                _window(p, offset, now, size)
                for p, offset in position.offsets.items()
                if p not in last and now.low.get(p, offset) < offset <= now.end[p]
            ]
            if not due:
                break
            seen = self._cluster.last_records(now.identity.topic, due)
            last |= {each.partition: records[-1] for each, records in seen.items() if records}
        return replace(position, last=last)


def _window(partition: int, offset: int, now: Watermarks, size: int) -> OffsetRange:
    return OffsetRange(partition, max(now.low[partition], offset - size, 0), offset)
