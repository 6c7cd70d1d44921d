"""Jobs: what the pipeline asks of each, and the usual one, which brings a table up to where its topic ended."""

from abc import ABC, abstractmethod
from collections.abc import Collection

from pyspark.sql import DataFrame

from kafka_lake.catalog.positions import TableState
from kafka_lake.common.offsets import Position
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.plan.append import opening, plan, start_offsets, untold
from kafka_lake.ingest.read import Records, read
from kafka_lake.ingest.shares import TableShare
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan, position_only
from kafka_lake.writers.staged import Staged


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
        """Return the next commit; None if there is nothing more to do."""

    def read(self, todo: Plan) -> DataFrame:
        """Return a plan's records, lazily: those of its ranges, from Kafka."""
        return read(self.context.connections, todo, self.context.spec.topic)

    def records(self, todo: Plan, share: TableShare | None) -> Records | None:
        """Return the records of a plan that are for the table; None if there are none, and it is to be passed over."""
        return Records(todo, self.read(todo)) if share is None else share.of(todo)

    def published(self, staged: Staged) -> None:  # noqa: B027
        """Be told of a commit's publication, as soon as it is visible."""

    def committed(self, commit: Commit, todo: Plan) -> None:  # noqa: B027
        """Be told of a commit that is done."""


class Append(Job):
    """Brings a table up to what the run last saw of its topic.

    Args:
        partitions: Only these Kafka partitions; None for all.
    """

    def __init__(self, context: Context, partitions: Collection[int] | None = None) -> None:
        super().__init__(context)
        self._partitions = partitions
        self._starts: dict[int, int] = {}
        self._has_warned = False

    def plan(self, topic: TopicEnds, state: TableState | None) -> Plan | None:
        """Return the next part of the backlog; `Job.plan` says the rest.

        Raises:
            DataLossError: If Kafka no longer has what comes next, and the topic's settings don't say to go on.
            ConfigurationError: If the topic has none of the chosen partitions.
        """
        spec, warn = self.context.spec, self.context.observer.warn
        self._warn_of_old_brokers(topic)
        position = state.position if state else None
        if position is None:
            # "latest" stays where it was at first: what came since would be in no table.
            found = {**start_offsets(spec, self.context.connections.cluster, topic.now), **self.context.begins}
            self._starts.update({p: max(self._starts.get(p, o), topic.now.low[p]) for p, o in found.items()})
        todo = plan(
            position,
            topic.validated(position, self._partitions),
            starts=self._starts,
            max_records=spec.max_records_per_commit,
            partitions=self._partitions,
            accept_losses=spec.on_data_loss == "continue",
        )
        if todo is None and position is None:
            if begins := opening(spec, topic.now, self._starts):
                warn(
                    f"Topic {spec.topic}: start is latest, and the table has no position yet: "
                    f"it begins at {self._starts}."
                )
            if begins is None and state and state.others and topic.now.partitions:
                # Without a position, the next run would look again whether rows are of this topic.
                return position_only(Position(topic.now.identity, dict(self._starts), topic.now.epochs))
            return begins
        if todo is None and state and state.rebuilt and position:
            return position_only(position)
        if todo is None and self._partitions and not set(self._partitions) & set(topic.now.partitions):
            raise ConfigurationError(
                f"Topic {spec.topic} has no partition {min(self._partitions)}; it has "
                f"{', '.join(map(str, topic.now.partitions))}.",
                "Choose among those. Where you added another one to Dagster by hand, delete it there.",
            )
        return todo

    def _warn_of_old_brokers(self, topic: TopicEnds) -> None:
        if not self._has_warned and (shortcoming := untold(topic.now)):
            self.context.observer.warn(shortcoming)
        self._has_warned = True
