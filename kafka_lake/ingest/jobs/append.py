"""The interface of jobs, and `Append`: the job that brings a table up to the end of its topic."""

from abc import ABC, abstractmethod
from collections.abc import Collection

from kafka_lake.catalog.positions import TableState
from kafka_lake.common.offsets import Position
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.plan import old_brokers_warning, opening, plan, start_offsets
from kafka_lake.ingest.read import Records, read
from kafka_lake.ingest.shared_read import TableReader
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan, position_only
from kafka_lake.writers.staged import Staged


class Job(ABC):
    """A reason to write to a table: gives the plan and the records of one commit after another."""

    position_required = True
    """Whether a position that can't be recovered is an error."""

    position_sought = True
    """Whether a position that no snapshot has is recovered from the rows."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def prepare(self, topic: TopicEnds) -> None:  # noqa: B027  Most jobs have nothing to do there.
        """Prepare the job before its first plan."""

    @abstractmethod
    def plan(self, topic: TopicEnds, state: TableState | None) -> Plan | None:
        """Return the plan of the next commit; None if the job is done."""

    def records(self, todo: Plan, reader: TableReader | None) -> Records | None:
        """Return the table's records of a plan; None if there are none and the offsets are passed."""
        if reader is not None:
            return reader.records(todo)
        return Records(todo, read(self.context.connections, todo, self.context.spec.topic))

    def published(self, staged: Staged) -> None:  # noqa: B027
        """Called as soon as a commit is visible."""

    def committed(self, commit: Commit, todo: Plan) -> None:  # noqa: B027
        """Called after a commit."""


class Append(Job):
    """Brings a table up to the watermarks of its topic."""

    def __init__(self, context: Context, partitions: Collection[int] | None = None) -> None:
        super().__init__(context)
        self._partitions = partitions
        self._starts: dict[int, int] = {}
        self._has_warned = False

    def plan(self, topic: TopicEnds, state: TableState | None) -> Plan | None:
        """Return the next part of the backlog."""
        spec, warn = self.context.spec, self.context.observer.warn
        self._warn_about_old_brokers(topic)
        position = state.position if state else None
        if position is None:
            # "latest" is determined once: records that arrive later are read.
            starts = start_offsets(spec, self.context.connections.cluster, topic.now, self.context.begins)
            self._starts.update({p: max(self._starts.get(p, o), topic.now.low[p]) for p, o in starts.items()})
        todo = plan(
            position,
            topic.validated(position, self._partitions),
            starts=self._starts,
            max_records=spec.max_records_per_commit,
            partitions=self._partitions,
            accept_losses=spec.on_data_loss == "continue",
        )
        if todo is None and self._partitions and not set(self._partitions) & set(topic.now.partitions):
            raise ConfigurationError(
                f"Topic {spec.topic} has no partition {min(self._partitions)}; it has "
                f"{', '.join(map(str, topic.now.partitions))}.",
                "Choose an existing partition. If you added the partition to Dagster by hand, delete it there.",
            )
        if todo is None and position is None:
            if begins := opening(spec, topic.now, self._starts):
                warn(
                    f"Topic {spec.topic}: starting_offsets is latest, and the table has no position yet: it starts at "
                    f"{self._starts}."
                )
            if begins is None and state and state.others and topic.now.partitions:
                # Without a position, the next run would scan the rows again.
                return position_only(Position(topic.now.identity, dict(self._starts), topic.now.epochs))
            return begins
        if todo is None and state and state.rebuilt and position:
            return position_only(position)
        return todo

    def _warn_about_old_brokers(self, topic: TopicEnds) -> None:
        if not self._has_warned and (warning := old_brokers_warning(topic.now)):
            self.context.observer.warn(warning)
        self._has_warned = True
