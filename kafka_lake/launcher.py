"""The name by which a ``dagster.yaml`` knows the run launcher.

It is `kafka_lake.dagster_runtime.launcher`'s; with a version of Dagster that wasn't tested, or that lacks a private
part of those which that one needs, it is Dagster's own: runs start in seconds instead of a moment.
"""

import logging

from dagster import DefaultRunLauncher

from kafka_lake.common.tested_versions import is_tested

__all__ = ["ForkingRunLauncher"]

ForkingRunLauncher: type[DefaultRunLauncher] = DefaultRunLauncher
if is_tested("dagster"):
    try:
        from kafka_lake.dagster_runtime import launcher
    except ImportError as error:
        logging.getLogger(__name__).warning(
            "Dagster starts the runs itself, because this version of it lacks a private part: %s", error
        )
    else:
        ForkingRunLauncher = launcher.ForkingRunLauncher
