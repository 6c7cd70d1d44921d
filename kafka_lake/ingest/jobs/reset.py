"""Reset: the table's position is set by hand, in a commit of its own."""

from collections.abc import Collection

from kafka_lake.common.errors import TableError
from kafka_lake.ingest.commit import Commit
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.jobs.job import Job
from kafka_lake.ingest.plan.changes import refuse_adopted, resetting
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.plan.start import offsets_of
from kafka_lake.ingest.too_large import forget, refused_in
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.lake.positions import TableState, adopted_position, row_count


class Reset(Job):
    """Sets the table's position.

    Rows at and beyond a target before the position are removed, since they will be read again; offsets between the
    position and a target beyond it are recorded as skipped.

    Args:
        context: Of the run.
        to: As `plan.start.offsets_of` understands it.
        partitions: Only these Kafka partitions; None for all.
    """

    position_required = False

    def __init__(self, context: Context, to: str, partitions: Collection[int] | None = None) -> None:
        super().__init__(context)
        self._to = to
        self._partitions = partitions

    def plan(self, topic: TopicEnds, state: TableState | None) -> Plan | None:
        """Return the commit that sets the position; None if it is there already.

        Raises:
            TableError: If there is no table yet.
            ConfigurationError: If a target lies outside of what the topic holds, or before where the table was taken
                over from another writer.
        """
        spec = self.context.spec
        if state is None:
            raise TableError(
                f"Table {self.context.table_name} of topic {spec.topic} doesn't exist yet.",
                "Say where it begins with starting_offsets: in the topic's YAML.",
            )
        targets = offsets_of(self._to, spec.topic, self.context.connections.cluster, topic.now)
        chosen = {p: o for p, o in targets.items() if self._partitions is None or p in self._partitions}
        has_rows = row_count(state.table) and spec.metadata_column in state.table.schema().column_names
        todo = resetting(state.position, topic.validated(state.position), chosen, rows_name_records=bool(has_rows))
        refuse_adopted(adopted_position(state.table), topic.now, todo.after.offsets)
        is_there = state.position == todo.after and not refused_in(state.table, topic.now.identity)
        return None if is_there else todo

    def committed(self, commit: Commit, todo: Plan) -> None:
        """Let records be read again that were too large for the engine: who names an offset wants them, or skips them.

        Raises:
            CommitFailedException: If others commit at that moment; the position is set all the same.
        """
        if table := self.context.connections.catalog.table(self.context.spec.identifier):
            forget(table, commit.after.identity)
