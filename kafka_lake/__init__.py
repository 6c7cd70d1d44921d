"""Kafka topics become Apache Iceberg tables, exactly once, as partitioned Dagster assets.

This package re-exports the components that Dagster projects use; everything else lives in its sub-packages.
"""

from importlib import import_module
from typing import Any

_COMPONENTS = ["DerivedTable", "KafkaCluster", "KafkaTopic", "KafkaTopics"]
__all__ = ["CheckResult", "load_from_defs_folder", *_COMPONENTS]


def __getattr__(name: str) -> Any:
    """Load a name on first use, so that pure modules can be imported without Dagster."""
    if name in _COMPONENTS:
        return getattr(import_module("kafka_lake.orchestration"), name)
    if name == "CheckResult":
        return import_module("kafka_lake.quality.custom_check").CheckResult
    if name == "load_from_defs_folder":
        return import_module("kafka_lake.cli.load_definitions").load_from_defs_folder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Name what Dagster's component registry and completion look at."""
    return __all__
