"""A topic's watermarks during a run, and whether its log is still the one that the table has read."""

from collections.abc import Collection
from dataclasses import replace

from kafka_lake.common.offsets import OffsetRange, Position, Watermarks
from kafka_lake.common.records import LastRecord, differs_at
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.plan import with_other_leader
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan

# Sizes of the windows before a position in which its last record is sought. A transaction's marker takes an offset.
_WINDOWS = (2, 32, 512)


class LastRecords:
    """Reads the last records of a topic's partitions; most commits need one short-lived consumer."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._at_end: dict[tuple[int, int], LastRecord] = {}

    def replaced(self, position: Position, now: Watermarks, partitions: Collection[int]) -> dict[int, int]:
        """Return the first differing offset of each partition whose log was replaced since a position was written.

        Only partitions with new records are compared, and only if the record of the position still exists.
        """
        due = {
            p: OffsetRange(p, record.offset, position.offsets[p])
            for p, record in position.last.items()
            if p in partitions and now.low.get(p, 0) <= record.offset < position.offsets[p] < now.end.get(p, 0)
        }
        # `remembered` needs these for the commit that reads to the end.
        ends = {p: _window(p, now.end[p], now, _WINDOWS[0]) for p in due}
        seen = self._cluster.last_records(now.identity.topic, [*due.values(), *ends.values()])
        self._at_end = {(p, window.end): seen[window][-1] for p, window in ends.items() if seen[window]}
        complete = self._cluster.reads_committed
        differing = {p: differs_at(position.last[p], window.end, seen[window], complete) for p, window in due.items()}
        return {p: offset for p, offset in differing.items() if offset is not None}

    def remembered(self, position: Position, now: Watermarks) -> Position:
        """Return a position with the last record before each partition's offset, if there is one nearby."""
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
            last |= {window.partition: records[-1] for window, records in seen.items() if records}
        return replace(position, last=last)


def _window(partition: int, offset: int, now: Watermarks, size: int) -> OffsetRange:
    return OffsetRange(partition, max(now.low[partition], offset - size, 0), offset)


class TopicEnds:
    """The watermarks of a run's topic, polled at first use and by `poll`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._now: Watermarks | None = None
        self._last_records = LastRecords(context.connections.cluster)

    @property
    def now(self) -> Watermarks:
        """Return the watermarks of the last poll."""
        return self.poll() if self._now is None else self._now

    def poll(self) -> Watermarks:
        """Poll the brokers and return the watermarks."""
        context = self._context
        now = context.with_retries(lambda: context.connections.cluster.watermarks_of(context.spec.topic))
        if context.spec.topics and not now.identity.topic_id:
            raise ConfigurationError(
                f"Topic {context.spec.topic}: the brokers have no topic ids (they are older than Kafka 2.8), which "
                f"are needed to distinguish the rows of table {context.table_name}.",
                "Give each topic its own table, with topic: instead of topics:.",
            )
        self._now = now
        return now

    def validated(self, position: Position | None, partitions: Collection[int] | None = None) -> Watermarks:
        """Return the watermarks, with the partitions whose log was cut off or replaced since a position was written."""
        now, cluster = self.now, self._context.connections.cluster
        if position is None or not position.identity.same_as(now.identity):
            return now
        changed = with_other_leader(position, now, partitions)
        cut_off = cluster.cut_off(position, changed) if changed else {}
        chosen = set(position.offsets if partitions is None else partitions) - set(cut_off)
        replaced = self._last_records.replaced(position, now, chosen)
        return replace(now, cut_off=cut_off, replaced=replaced)

    def remembered(self, todo: Plan) -> Plan:
        """Return a plan whose position has the last records, which the next run compares with the log."""
        if todo.keeps_position:
            return todo
        return replace(todo, after=self._last_records.remembered(todo.after, self.now))

    def is_behind(self, position: Position) -> bool:
        """Return whether a position is beyond the watermarks of the last poll."""
        return any(offset > self.now.end.get(p, -1) for p, offset in position.offsets.items())
