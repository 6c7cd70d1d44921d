"""Dead-letter replay: dead letters are decoded a second time, and those that now fit become rows."""

from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from kafka_lake.catalog.positions import TableState, head_of
from kafka_lake.common.sql_text import unsafe_condition
from kafka_lake.dead_letters.pending import pending_reconciliation
from kafka_lake.dead_letters.reconcile import reconcile
from kafka_lake.errors import ConfigurationError, PublishRefusedError
from kafka_lake.ingest.jobs.append import Job
from kafka_lake.ingest.read import Records
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.shared_read import TableReader
from kafka_lake.ingest.table_state import existing
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.routing.conditions import records_of, with_known
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.record_keys import at_version, metadata_column_of, state_of
from kafka_lake.writers.staged import Staged


@dataclass(frozen=True)
class Replayed:
    """What became of dead letters that were decoded again.

    Args:
        report: The run's report: ``records`` were examined, ``rows`` moved into the table.
        moved: Letters that are rows now.
        remaining: Letters that still don't fit, with their new reasons.
    """

    report: RunReport
    moved: int
    remaining: int


class DeadLetterReplay(Job):
    """Decodes dead letters again with today's schema and transform, and appends those that now fit.

    They are appended in the order of their offsets. The table is published first; they are taken out of their own
    table after that, by this run or, if it dies, by the next run of whatever kind (see `reconcile`).

    Args:
        where: SQL condition on the columns of the dead-letter table; None for all.

    Raises:
        ConfigurationError: If there is no metadata column to tell rows by.
    """

    def __init__(self, context: Context, where: str | None) -> None:
        super().__init__(context)
        metadata_column_of(context.spec)
        self._where = where
        self._spec = context.spec
        self._done = False
        self._records: DataFrame | None = None

    def prepare(self, topic: TopicEnds) -> None:
        """Refuse a condition that isn't one, and finish what a run before began.

        Raises:
            ConfigurationError: If the condition isn't understood.
        """
        context, where = self.context, self._where
        dead_letters = _dead_letters(context)
        if dead_letters is None:
            return
        _chosen(context, where, dead_letters)

        def finish() -> int:
            # Metadata may have been expired that would tell of an unfinished one: look at the data.
            among = _dead_letters(context) if where else None
            near = _chosen(context, where, among) if among else None
            return reconcile(context, forced=True, among=near)

        context.with_retries(finish)

    def plan(self, topic: TopicEnds, state: TableState | None) -> Plan | None:
        """Return the commit that brings the dead letters; None once it is done, or if there are none.

        Raises:
            TableError: If there is no table yet.
        """
        dead_letters = _dead_letters(self.context)
        if self._done or dead_letters is None:
            return None
        found = existing(self.context, state)
        self._spec = with_known(self.context, found).spec
        assert found.position is not None, "existing has looked"
        # The dead letters are read after the table: what others made rows of by then is to be reconciled, or gone.
        if pending_reconciliation(found, dead_letters):
            raise PublishRefusedError(
                f"Another run moves dead letters of topic {self.context.spec.topic} into the table."
            )
        self._records = _chosen(self.context, self._where, dead_letters)
        return Plan((), found.position, 0, "dead_letter_replay")

    def records(self, todo: Plan, reader: TableReader | None) -> Records | None:
        """Return the chosen dead letters, all of which are the table's."""
        return Records(todo, self.read(todo))

    def read(self, todo: Plan) -> DataFrame:
        """Return the chosen dead letters as the records that they were."""
        assert self._records is not None, "there is a plan"
        # Another route's table tells of none.
        spec, records = self._spec, self.context.decoding.records(self._records)
        if spec.has_routes:
            # A record that a route takes by now is for another table, which a replay of its offsets gives it to.
            records = records_of(records, spec, spec, self.context.connections)
        return records.coalesce(1).sortWithinPartitions("partition", "offset")

    def published(self, staged: Staged) -> None:
        """Take the dead letters out that are rows now; if that fails, the next run does it."""
        self._done = True
        context = self.context
        try:
            merged = self._records if self._spec.is_keyed else None
            reconcile(context, relabelled=staged.failed_rows, merged=merged)
        except Exception as error:
            context.observer.warn(
                f"Topic {context.spec.topic}: the letters that were moved will be taken out by the next "
                f"{'replay of them' if self._spec.is_keyed else 'run'}: {error}"
            )


def _dead_letters(context: Context) -> TableState | None:
    table = context.connections.catalog.table(context.spec.dead_letter_table)
    return None if table is None or head_of(table) is None else state_of(context.spec, table)


def _chosen(context: Context, where: str | None, dead_letters: TableState) -> DataFrame:
    spec, connections = context.spec, context.connections
    assert dead_letters.head is not None, "the caller has seen that there are letters"
    frame = at_version(connections.spark(), connections.catalog.spark_name(spec.dead_letter_table), dead_letters.head)
    about = f"where: {where!r} is no condition on table {'.'.join(spec.dead_letter_table)}"
    remedy = f"Its columns are {', '.join(frame.columns)}."
    if where and (unsafe := unsafe_condition(where)):
        raise ConfigurationError(f"{about}: {unsafe}.", remedy)
    try:
        chosen = frame.filter(where) if where else frame
        chosen.schema  # noqa: B018  Connect analyses the condition only when it is asked for the schema.
    except AnalysisException as error:
        reason = str(error).splitlines()[0].partition(" SQLSTATE")[0].rstrip(" ;.")
        raise ConfigurationError(f"{about}: {reason}.", remedy) from error
    # Letters of older topics of the name are meant, too; those of the table's other topics are not.
    several = spec.topics or dead_letters.others
    return connections.frames.of_topic(chosen, spec.topic) if several else chosen
