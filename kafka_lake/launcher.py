"""The name by which a ``dagster.yaml`` knows the run launcher; it is `kafka_lake.dagster_runtime.launcher`'s."""

from kafka_lake.dagster_runtime.launcher import ForkingRunLauncher

__all__ = ["ForkingRunLauncher"]
