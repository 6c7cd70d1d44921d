"""What a topic holds, as a run last saw it."""

from collections.abc import Collection
from dataclasses import replace

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.common.offsets import Position, Watermarks
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.plan.identity import unsure


class TopicEnds:
    """The watermarks of a run's topic: asked for when they are first needed, and again by `poll`.

    Args:
        context: Of the run.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._now: Watermarks | None = None

    @property
    def now(self) -> Watermarks:
        """Return what the topic held when it was last looked at.

        Raises:
            KafkaError: If it is looked at for the first time, and the brokers don't answer, or refuse.
        """
        return self.poll() if self._now is None else self._now

    def poll(self) -> Watermarks:
        """Look again, and return what the topic holds now.

        Raises:
            KafkaError: If the brokers don't answer, or refuse; `now` is as it was.
            ConfigurationError: If the table has several topics, and the brokers tell no topic ids.
        """
        context = self._context
        now = context.with_retries(lambda: context.connections.cluster.watermarks_of(context.spec.topic))
        if context.spec.is_shared and not now.identity.topic_id:
            raise ConfigurationError(
                f"Topic {context.spec.topic}: the brokers tell no topic id (they are older than Kafka 2.8), by which "
                f"the rows of table {context.table_name} would be told apart.",
                "Give each topic a table of its own, with topic: instead of topics:.",
            )
        self._now = now
        return now

    def validated(self, position: Position | None, partitions: Collection[int] | None = None) -> Watermarks:
        """Return what the topic holds, and where its log was cut off since a position was written.

        Args:
            position: The table's; None if it has none.
            partitions: Only these are looked at; None for all.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        doubts = unsure(position, self.now, partitions)
        if position is None or not doubts:
            return self.now
        return replace(self.now, cut_off=self._context.connections.cluster.cut_off(position, doubts))

    def is_behind(self, position: Position) -> bool:
        """Return whether a position is further than the topic was when it was last looked at."""
        return any(offset > self.now.end.get(p, -1) for p, offset in position.offsets.items())
