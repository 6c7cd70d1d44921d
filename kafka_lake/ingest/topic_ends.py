"""What a topic holds, as a run last saw it."""

from collections.abc import Collection
from dataclasses import replace

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.common.offsets import Position, Watermarks
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.last_records import LastRecords
from kafka_lake.ingest.plan.identity import unsure
from kafka_lake.ingest.plan.model import Plan


class TopicEnds:
    """The watermarks of a run's topic: asked for when they are first needed, and again by `poll`.

    Args:
        context: Of the run.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._now: Watermarks | None = None
        self._last_records = LastRecords(context.connections.cluster)

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
        if context.spec.topics and not now.identity.topic_id:
            raise ConfigurationError(
                f"Topic {context.spec.topic}: the brokers tell no topic id (they are older than Kafka 2.8), by which "
                f"the rows of table {context.table_name} would be told apart.",
                "Give each topic a table of its own, with topic: instead of topics:.",
            )
        self._now = now
        return now

    def validated(self, position: Position | None, partitions: Collection[int] | None = None) -> Watermarks:
        """Return what the topic holds, and where its log was cut off or replaced since a position was written.

        Args:
            position: The table's; None if it has none.
            partitions: Only these are looked at; None for all.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        now, cluster = self.now, self._context.connections.cluster
        if position is None or not position.identity.same_as(now.identity):
            return now
        doubts = unsure(position, now, partitions)
        cut_off = cluster.cut_off(position, doubts) if doubts else {}
        chosen = set(position.offsets if partitions is None else partitions) - set(cut_off)
        replaced = self._last_records.replaced(position, now, chosen)
        return replace(now, cut_off=cut_off, replaced=replaced)

    def remembered(self, todo: Plan) -> Plan:
        """Return a plan whose position has the last records, which the next run will look for.

        A part that is read again, and dead letters, leave the position as it is.

        Args:
            todo: The commit.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        if todo.kind not in ("append", "reset", "adopt"):
            return todo
        return replace(todo, after=self._last_records.remembered(todo.after, self.now))

    def is_behind(self, position: Position) -> bool:
        """Return whether a position is further than the topic was when it was last looked at."""
        return any(offset > self.now.end.get(p, -1) for p, offset in position.offsets.items())
