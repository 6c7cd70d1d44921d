"""The topics of this deployment, as its definitions have them."""

import sys
from pathlib import Path

from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.topic_table import TopicTable


def topic_tables(topic: str | None = None) -> list[TopicTable]:
    """Return what the definitions say about topics and their tables.

    Args:
        topic: Only this topic; None for all.

    Raises:
        ConfigurationError: If no document is about that topic.
    """
    from kafka_lake.components.kafka_topic_table import KafkaTopicTable
    from kafka_lake.definitions import defs
