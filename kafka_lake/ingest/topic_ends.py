"""What a topic holds, as a run last saw it."""

from collections.abc import Collection
from dataclasses import replace

from kafka_lake.common.offsets import OffsetRange, Position, Watermarks
from kafka_lake.common.records import LastRecord, differs_at
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.plan.append import unsure
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan

# Offsets before a position among which its last record is looked for. A transaction's marker takes one.
_WINDOWS = (2, 32, 512)


class LastRecords:
    """The last records of a topic's partitions, by one short consumer for most commits."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._at_end: dict[tuple[int, int], LastRecord] = {}

    def replaced(self, position: Position, now: Watermarks, partitions: Collection[int]) -> dict[int, int]:
        """Return, for each partition whose log was replaced since a position was written, a record that differs.

        Partitions without anything new aren't looked at. Nothing is compared where the record was compacted away or has
        expired.
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
        """Return a position with the last record before the offset of each partition, as far as there is one nearby."""
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


class TopicEnds:
    """The watermarks of a run's topic: asked for when they are first needed, and again by `poll`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._now: Watermarks | None = None
        self._last_records = LastRecords(context.connections.cluster)

    @property
    def now(self) -> Watermarks:
        """Return what the topic held when it was last looked at."""
        return self.poll() if self._now is None else self._now

    def poll(self) -> Watermarks:
        """Look again, and return what the topic holds now."""
        context = self._context
        now = context.with_retries(lambda: context.connections.cluster.watermarks_of(context.spec.topic))
        if context.spec.topics and not now.identity.topic_id:
            raise ConfigurationError(
                f"Topic {context.spec.topic}: the brokers tell no topic id (they are older than Kafka 2.8), by which "
                f"the rows of table {context.table_name} would be told apart.",
                "Give each topic a table of its own, with topic: instead of topics:.",
            )
        self._now = now
        return now

    def validated(self, position: Position | None, partitions: Collection[int] | None = None) -> Watermarks:
        """Return what the topic holds, and where its log was cut off or replaced since a position was written."""
        now, cluster = self.now, self._context.connections.cluster
        if position is None or not position.identity.same_as(now.identity):
            return now
        doubts = unsure(position, now, partitions)
        cut_off = cluster.cut_off(position, doubts) if doubts else {}
        chosen = set(position.offsets if partitions is None else partitions) - set(cut_off)
        replaced = self._last_records.replaced(position, now, chosen)
        return replace(now, cut_off=cut_off, replaced=replaced)

    def remembered(self, todo: Plan) -> Plan:
        """Return a plan whose position has the last records, which the next run will look for.

        A part that is read again, and dead letters, leave the position as it is.
        """
        if todo.kind not in ("append", "reset", "adopt"):
            return todo
        return replace(todo, after=self._last_records.remembered(todo.after, self.now))

    def is_behind(self, position: Position) -> bool:
        """Return whether a position is further than the topic was when it was last looked at."""
        return any(offset > self.now.end.get(p, -1) for p, offset in position.offsets.items())
