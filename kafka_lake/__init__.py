"""Kafka topics become Apache Iceberg tables, exactly once, as partitioned Dagster assets.

This package re-exports the component that other Dagster projects use; everything else lives in its sub-packages.
"""

from importlib import import_module
from typing import Any

__all__ = ["KafkaTopicTable"]


def __getattr__(name: str) -> Any:
    """Load the component on first use, so that pure modules can be imported without Dagster."""
    if name == "KafkaTopicTable":
        return import_module("kafka_lake.components.kafka_topic_table").KafkaTopicTable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
