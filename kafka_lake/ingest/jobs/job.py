"""What every job can do, so that the pipeline knows none of them."""

from abc import ABC, abstractmethod

from pyspark.sql import DataFrame

from kafka_lake.ingest.commit import Commit
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.read import Records, read
from kafka_lake.ingest.routes.shares import TableShare
from kafka_lake.ingest.stage.staged import Staged
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.lake.positions import TableState


class Job(ABC):
    """Asks for one commit after the other until it asks for nothing more."""

    position_required = True
    """Whether a position that can't be told is an obstacle; not for who is there to set it."""

    position_sought = True
    """Whether a position that no snapshot has is looked for in the rows; not for who brings one along."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def prepare(self, topic: TopicEnds) -> None:  # noqa: B027  Most jobs have nothing to do there.
        """Do what comes before the first plan: refuse what can't be done, finish what a run before began."""

    @abstractmethod
    def plan(self, topic: TopicEnds, state: TableState | None) -> Plan | None:
        """Return the next commit; None if there is nothing more to do.

        Args:
            state: The table as it is at this moment; None if there is none.
        """

    def read(self, todo: Plan) -> DataFrame:
        """Return a plan's records, lazily: those of its ranges, from Kafka."""
        return read(self.context.connections, todo, self.context.spec.topic)

    def records(self, todo: Plan, share: TableShare | None) -> Records | None:
        """Return the records of a plan that are for the table; None if there are none, and it is to be passed over.

        Args:
            share: What of the topic's records is for the table; None for all of them.
        """
        return Records(todo, self.read(todo)) if share is None else share.of(todo)

    def published(self, staged: Staged) -> None:  # noqa: B027
        """Be told of a commit's publication, as soon as it is visible."""

    def committed(self, commit: Commit, todo: Plan) -> None:  # noqa: B027
        """Be told of a commit that is done."""
