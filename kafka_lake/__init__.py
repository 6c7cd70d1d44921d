"""Kafka topics become Apache Iceberg tables, exactly once, as partitioned Dagster assets.

This package re-exports the components that Dagster projects use; everything else lives in its sub-packages.
"""

from importlib import import_module
from typing import Any

__all__ = ["DerivedTable", "KafkaCluster", "KafkaTopicTable", "KafkaTopics"]


def __getattr__(name: str) -> Any:
    """Load a component on first use, so that pure modules can be imported without Dagster."""
    if name in __all__:
        return getattr(import_module("kafka_lake.components"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Name the components, so that Dagster's component registry finds them."""
    return __all__
