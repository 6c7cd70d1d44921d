"""Replay, which reads a part of a topic again and replaces its rows; and reset, which sets the table's position."""

from collections.abc import Collection

from kafka_lake.catalog.positions import TableState, adopted_position, row_count
from kafka_lake.common.offsets import OffsetRange, Watermarks
from kafka_lake.common.text import start_timestamp_ms
from kafka_lake.engine.frames import at_version
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import ConfigurationError, DataLossError, TableError
from kafka_lake.ingest.jobs.append import Job
from kafka_lake.ingest.plan import is_time, offsets_of, refuse_adopted, refuse_other_log, replacement, resetting
from kafka_lake.ingest.table_state import existing
from kafka_lake.ingest.too_large import forget, recorded_in
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan, ReplayRange


class Replay(Job):
    """Reads a part of the topic again, and replaces the table's rows of it.

    Args:
        replay_range: More than ``max_records_per_commit`` becomes several commits.
    """

    def __init__(self, context: Context, replay_range: ReplayRange) -> None:
        super().__init__(context)
        self._range = replay_range
        self._ranges: list[OffsetRange] = []
        self._reached: dict[int, int] = {}

    def prepare(self, topic: TopicEnds) -> None:
        """Resolve the offsets."""
        self._ranges = _ranges(self.context, self._range, topic.now)

    def plan(self, topic: TopicEnds, state: TableState | None) -> Plan | None:
        """Return the next part of the range."""
        context, replay_range = self.context, self._range
        found = existing(context, state)
        assert found.position is not None, "existing has looked"
        if not self._reached and not replay_range.keep_missing:
            _refuse_older_rows(context, replay_range, topic.now, found)
        if not self._reached:
            partitions = {r.partition for r in self._ranges}
            refuse_other_log(found.position, topic.validated(found.position, partitions), partitions)
            refuse_adopted(adopted_position(found.table), topic.now, {r.partition: r.start for r in self._ranges})
        left = [
            OffsetRange(r.partition, start, r.end)
            for r in self._ranges
            if (start := max(r.start, self._reached.get(r.partition, 0))) < r.end
        ]
        plans = replacement(
            found.position,
            topic.now,
            asked=left,
            max_records=context.spec.max_records_per_commit,
            keep_missing=replay_range.keep_missing,
        )
        return plans[0] if plans else None

    def committed(self, commit: Commit, todo: Plan) -> None:
        """Continue behind the committed ranges."""
        self._reached.update({r.partition: r.end for r in todo.ranges})


def _ranges(context: Context, replay_range: ReplayRange, now: Watermarks) -> list[OffsetRange]:
    spec, connections = context.spec, context.connections
    first = offsets_of(replay_range.start, spec.topic, connections.cluster, now)
    last = offsets_of(replay_range.end, spec.topic, connections.cluster, now)
    chosen = set(now.partitions) if replay_range.partitions is None else replay_range.partitions
    if unknown := sorted((chosen | set(first) | set(last)) - set(now.partitions)):
        raise ConfigurationError(
            f"Topic {spec.topic} has no partition {unknown[0]}; it has {', '.join(map(str, now.partitions))}.",
            "Choose existing partitions.",
        )
    both = sorted(chosen & set(first) & set(last))
    return [OffsetRange(p, first[p], last[p]) for p in both if first[p] < last[p]]


def _refuse_older_rows(context: Context, replay_range: ReplayRange, now: Watermarks, state: TableState) -> None:
    """Refuse a start by time if the table has rows from then on whose records Kafka no longer has."""
    spec, connections = context.spec, context.connections
    if not is_time(replay_range.start):
        return
    cut = {p: o for p, o in now.low.items() if o and (replay_range.partitions is None or p in replay_range.partitions)}
    if not cut or state.head is None:
        return
    since = start_timestamp_ms(replay_range.start, "--from")
    rows = at_version(connections.spark(), connections.catalog.spark_name(spec.identifier), state.head)
    found = connections.frames.before(connections.frames.of_topic(rows, spec.topic, METADATA_COLUMN), cut, since)
    if found:
        listed = "; ".join(f"partition {r['partition']} offsets {r['first']} to {r['last']}" for r in sorted(found))
        raise DataLossError(
            f"Topic {spec.topic}: the table has rows from {replay_range.start} on whose records Kafka no longer has: "
            f"{listed}.",
            "Nothing was changed. Start later, or keep those rows (--keep-missing).",
        )


class Reset(Job):
    """Sets the table's position."""

    position_required = False

    def __init__(self, context: Context, to: str, partitions: Collection[int] | None = None) -> None:
        super().__init__(context)
        self._to = to
        self._partitions = partitions

    def plan(self, topic: TopicEnds, state: TableState | None) -> Plan | None:
        """Return the commit that sets the position; None if the table is there."""
        spec = self.context.spec
        if state is None:
            raise TableError(
                f"Table {self.context.table_name} of topic {spec.topic} doesn't exist yet.",
                "Set starting_offsets: in the topic's YAML.",
            )
        targets = offsets_of(self._to, spec.topic, self.context.connections.cluster, topic.now)
        chosen = {p: o for p, o in targets.items() if self._partitions is None or p in self._partitions}
        has_rows = row_count(state.table) and METADATA_COLUMN in state.table.schema().column_names
        todo = resetting(state.position, topic.validated(state.position), chosen, rows_name_records=bool(has_rows))
        refuse_adopted(adopted_position(state.table), topic.now, todo.after.offsets)
        is_there = state.position == todo.after and not recorded_in(state.table, topic.now.identity)
        return None if is_there else todo

    def committed(self, commit: Commit, todo: Plan) -> None:
        """Allow records that were too large for the engine to be read again."""
        if table := self.context.connections.catalog.table(self.context.spec.identifier):
            forget(table, commit.after.identity)
