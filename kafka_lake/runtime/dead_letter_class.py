"""The dead letters of a commit by error class."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kafka_lake.common.offsets import place
from kafka_lake.formats.redaction import quoted
from kafka_lake.spec.topic_table import TopicTable


@dataclass(frozen=True)
class DeadLetterClass:
    """The dead letters of a commit with one error class, and a sample.

    Args:
        offset: Offset of the sample, the first of its class in that partition.
        message: The sample's error, which may quote its value; empty after redaction.
        value: The beginning of the sample's value, as text; empty after redaction.
        topic: The sample's topic; set by `shown`.
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
        """Return the sample's partition and offset."""
        return f"{place(self.topic, self.partition)} offset {self.offset}"

    def shown(self, spec: TopicTable) -> "DeadLetterClass":
        """Return the class redacted by the topic's settings, for logs, errors and Dagster's pages."""
        message, value = (quoted(text, spec.samples, spec.mask) for text in (self.message, self.value))
        return replace(self, message=message, value=value, topic=spec.topic)


def most_frequent_first(classes: Iterable[DeadLetterClass]) -> tuple[DeadLetterClass, ...]:
    """Return classes by descending count."""
    return tuple(sorted(classes, key=lambda dead_letter_class: (-dead_letter_class.count, dead_letter_class.name)))
