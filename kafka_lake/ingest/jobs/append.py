"""Append: the table is brought up to where its topic ended when the run last looked."""

from collections.abc import Collection

from kafka_lake.common.offsets import Position
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.jobs.job import Job
from kafka_lake.ingest.plan.append import opening, plan
from kafka_lake.ingest.plan.identity import untold
from kafka_lake.ingest.plan.model import Plan, position_only
from kafka_lake.ingest.plan.start import start_offsets
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.lake.positions import TableState


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
