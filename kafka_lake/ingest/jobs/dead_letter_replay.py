"""Dead-letter replay: dead letters are decoded again, and those that fit become rows."""

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from kafka_lake.catalog.positions import TableState
from kafka_lake.common.offsets import OffsetRange, Position, Watermarks, in_topic
from kafka_lake.dead_letters.pending import pending_reconciliation
from kafka_lake.dead_letters.reconcile import reconcile
from kafka_lake.engine.frames import at_version
from kafka_lake.errors import ConfigurationError, PublishRefusedError
from kafka_lake.ingest.jobs.append import Job
from kafka_lake.ingest.read import Records
from kafka_lake.ingest.shared_read import TableReader
from kafka_lake.ingest.table_state import current_dead_letters, existing
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.routing.conditions import records_of, with_known
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.spec.sql_text import unsafe_condition
from kafka_lake.writers.dead_letters import with_positions
from kafka_lake.writers.staged import Staged


class DeadLetterReplay(Job):
    """Decodes dead letters again with the current schema and transform, and appends those that fit.

    The rows are published first. After that, the dead letters are removed from their table: by this run or, if it is
    killed, by the next run of any kind (see `reconcile`).

    Args:
        where: SQL condition on the columns of the dead-letter table; None for all.
    """

    def __init__(self, context: Context, where: str | None) -> None:
        super().__init__(context)
        self._where = where
        self._spec = context.spec
        self._done = False
        self._records: DataFrame | None = None
        self._moved: DataFrame | None = None

    def prepare(self, topic: TopicEnds) -> None:
        """Check the condition, and finish the reconciliation of an earlier run."""
        context, where = self.context, self._where
        dead_letters = current_dead_letters(context)
        if dead_letters is None:
            return
        _chosen(context, where, dead_letters)

        def finish() -> None:
            # The snapshot that shows an unfinished reconciliation may have expired: compare the data.
            among = current_dead_letters(context) if where else None
            near = _chosen(context, where, among) if among else None
            reconcile(context, forced=True, among=near)

        context.with_retries(finish)

    def plan(self, topic: TopicEnds, state: TableState | None) -> Plan | None:
        """Return the commit that appends the dead letters; None once it is done, or if there are none."""
        dead_letters = current_dead_letters(self.context)
        if self._done or dead_letters is None:
            return None
        found = existing(self.context, state)
        self._spec = with_known(self.context, found).spec
        assert found.position is not None, "existing has looked"
        # The dead letters are read after the table, so those that another run has moved are pending or removed.
        if pending_reconciliation(found, dead_letters):
            raise PublishRefusedError(
                f"Another run moves dead letters of topic {self.context.spec.topic} into the table."
            )
        chosen = _chosen(self.context, self._where, dead_letters)
        self._records = _before(self.context, found.position, dead_letters, now=topic.now, chosen=chosen)
        return Plan((), found.position, 0, "dead_letter_replay")

    def records(self, todo: Plan, reader: TableReader | None) -> Records:
        """Return the chosen dead letters as the records that they were."""
        assert self._records is not None, "there is a plan"
        spec, records = self._spec, self.context.decoding.records(self._records)
        if spec.has_routes:
            # Records that are another table's by now stay dead letters; a replay of their offsets routes them.
            records = records_of(records, spec, spec, self.context.connections)
        self._moved = records
        return Records(todo, records.coalesce(1).sortWithinPartitions("partition", "offset"))

    def published(self, staged: Staged) -> None:
        """Remove the dead letters that are rows now; if that fails, the next run does it."""
        self._done = True
        context = self.context
        try:
            merged = self._moved if self._spec.is_keyed else None
            reconcile(context, relabelled=staged.failed_rows, merged=merged)
        except Exception as error:
            context.observer.warn(
                f"Topic {context.spec.topic}: the moved dead letters will be removed by the next "
                f"{'replay of them' if self._spec.is_keyed else 'run'}: {error}"
            )


def _before(
    context: Context, position: Position, dead_letters: TableState, now: Watermarks, chosen: DataFrame
) -> DataFrame:
    """Return the dead letters before the table's position: the next run reads the records of the others again.

    There are others after a rollback of the table, or if a run was killed before it published the table. Records of a
    deleted topic can't be read again; after a rollback to its position, all records of the current topic are.
    """
    reached = in_topic(with_positions(context, dead_letters, now.identity).position, now)
    ends, at = (found.offsets if found else {} for found in (reached, in_topic(position, now)))
    later = [OffsetRange(p, at.get(p, 0), end) for p, end in ends.items() if at.get(p, 0) < end]
    if not later:
        return chosen
    context.observer.warn(
        f"Topic {context.spec.topic}: dead letters at or after the table's position, if there are any, stay until a "
        "run has read their records again."
    )
    frames = context.connections.frames
    return frames.without(chosen, frames.within_topic(chosen, later, now.identity.topic_id))


def _chosen(context: Context, where: str | None, dead_letters: TableState) -> DataFrame:
    spec, connections = context.spec, context.connections
    assert dead_letters.head is not None, "the caller has seen that there are letters"
    frame = at_version(connections.spark(), connections.catalog.spark_name(spec.dead_letter_table), dead_letters.head)
    about = f"where: {where!r} isn't a condition on table {'.'.join(spec.dead_letter_table)}"
    remedy = f"Its columns are {', '.join(frame.columns)}."
    if where and (unsafe := unsafe_condition(where)):
        raise ConfigurationError(f"{about}: {unsafe}.", remedy)
    try:
        chosen = frame.filter(where) if where else frame
        chosen.schema  # noqa: B018  Connect analyses the condition only when it is asked for the schema.
    except AnalysisException as error:
        reason = str(error).splitlines()[0].partition(" SQLSTATE")[0].rstrip(" ;.")
        raise ConfigurationError(f"{about}: {reason}.", remedy) from error
    # Dead letters of an earlier topic of this name are included, those of the table's other topics aren't.
    several = spec.topics or dead_letters.others
    return connections.frames.of_topic(chosen, spec.topic) if several else chosen
