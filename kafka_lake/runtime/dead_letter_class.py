"""The records of a commit that became no row, by kind of reason: plain data."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kafka_lake.common.offsets import place
from kafka_lake.formats.redaction import quoted
from kafka_lake.spec.topic_table import TopicTable


@dataclass(frozen=True)
class DeadLetterClass:
    """The records of one commit that didn't decode for one kind of reason.

    Args:
        partition: Kafka partition of the sample.
        offset: Offset of the sample, the first of its class in that partition.
        message: What was wrong with it, which may quote its value; empty where samples are not to be shown.
        value: The beginning of its value, as text; likewise.
        topic: The sample's topic, once `shown` has named it.
    """

    name: str
    count: int
    partition: int
    offset: int
    message: str
    value: str
    topic: str = ""

    @property
    def place(self) -> str:
        """Return where the sample is."""
        return f"{place(self.topic, self.partition)} offset {self.offset}"

    def shown(self, spec: TopicTable) -> "DeadLetterClass":
        """Return what a topic's settings let out of its dead-letter table: into logs, errors and Dagster's pages."""
        message, value = (quoted(text, spec.samples, spec.mask) for text in (self.message, self.value))
        return replace(self, message=message, value=value, topic=spec.topic)


def most_frequent_first(classes: Iterable[DeadLetterClass]) -> tuple[DeadLetterClass, ...]:
    """Return classes in the order in which they are shown."""
    return tuple(sorted(classes, key=lambda each: (-each.count, each.name)))
