"""Adopt: the position of a table that another writer has filled is written, in a commit of its own."""

from kafka_lake.ingest.adopt.model import Adoption, AdoptionRefusedError
from kafka_lake.ingest.adopt.plan import plan_adoption
from kafka_lake.ingest.adopt.prepare import prepare_table
from kafka_lake.ingest.adopt.sources import Source
from kafka_lake.ingest.commit import Commit
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.jobs.job import Job
from kafka_lake.ingest.plan.model import Plan, position_only
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.lake.positions import TableState


class Adopt(Job):
    """Writes the position of a table that another writer has filled, if nothing has changed since it was planned.

    Args:
        context: Of the run.
        agreed: What was planned.
        source: Where its offsets come from: asked once more, just before the commit.
    """

    position_required = False
    position_sought = False

    def __init__(self, context: Context, agreed: Adoption, source: Source) -> None:
        super().__init__(context)
        self._agreed = agreed
        self._source = source
        self._done = False

    def prepare(self, topic: TopicEnds) -> None:
        """Give the table what it needs beside the commit, if nothing has changed.

        Raises:
            AdoptionRefusedError: If the other writer has gone on since.
            KafkaLakeError: As `plan_adoption`.
        """
        context, agreed = self.context, self._agreed
        now = plan_adoption(context.spec, context.connections, self._source)
        if now.head != agreed.head or now.position != agreed.position:
            raise self._moved(f"{dict(agreed.position.offsets)} became {dict(now.position.offsets)}")
        prepare_table(context.spec, context.connections, agreed.position)

    def plan(self, topic: TopicEnds, state: TableState | None) -> Plan | None:
        """Return the commit that holds the position; None once it is made.

        Raises:
            AdoptionRefusedError: If somebody has committed to the table since it was planned.
        """
        agreed = self._agreed
        if self._done:
            return None
        if state is None or state.head != agreed.head:
            raise self._moved(f"main was at snapshot {agreed.head} and is at {state.head if state else None}")
        stay = position_only(agreed.position)
        return Plan(stay.ranges, stay.after, 0, "adopt", adopted_from=(agreed.source, agreed.rows))

    def committed(self, commit: Commit, todo: Plan) -> None:
        """There is one commit, and no more."""
        self._done = True

    def _moved(self, what: str) -> AdoptionRefusedError:
        return AdoptionRefusedError(
            f"Table {self.context.table_name}: the other writer has gone on meanwhile: {what}.",
            "Nothing was committed. Stop it, and try again.",
        )
