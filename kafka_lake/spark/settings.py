"""The settings of Spark: ours, the catalog's and the user's as one dict. Pure but for what the environment says."""

import os
import re
from collections.abc import Mapping

from kafka_lake.common import environment
from kafka_lake.common.spark_catalog import SparkCatalog
from kafka_lake.spark.connect import (
    CLASSPATH,
    FATAL_ERRORS,
    JVM_OPTIONS,
    OUT_OF_MEMORY,
    ROOM_FOR_CODE,
    on_driver,
)
from kafka_lake.spark.jars import jars_with
from kafka_lake.spark.private_conf import REDACTION

_DRIVER_OPTIONS = "spark.driver.defaultJavaOptions"

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    # Spark would put variables of its environment in the place of ${env:…}, even in a column's name from a record.
    "spark.sql.variable.substitute": "false",
    "spark.ui.showConsoleProgress": "false",
    # Which of our lines built a column, told to Spark by some four calls for each: more than half of all calls.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark puts these before the user's own extraJavaOptions.
    _DRIVER_OPTIONS: OUT_OF_MEMORY,
    "spark.executor.defaultJavaOptions": OUT_OF_MEMORY,
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    # An idle consumer keeps what it fetched ahead, and its polls what they had beyond the batch: tens of megabytes for
    # each partition of each batch, for Spark's five minutes. No other batch ever asks for it.
    "spark.kafka.consumer.cache.capacity": "16",
    **{
        f"spark.kafka.consumer.{cache}.{setting}": "5s"
        for cache in ("cache", "fetchedData.cache")
        for setting in ("timeout", "evictorThreadRunInterval")
    },
    **ROOM_FOR_CODE,
    **FATAL_ERRORS,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    **REDACTION,
}
PARALLELISM = "spark.default.parallelism"
"""Says how many tasks run at once, to sessions of every kind; set by us where the master is local."""

SESSION_DEFAULTS = {
    key: _DEFAULTS[key]
    for key in ("spark.sql.session.timeZone", "spark.sql.caseSensitive", "spark.sql.variable.substitute")
}
"""Those of our settings that are a session's own, which a client of a Connect server sets."""

SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
"""Settings by which Iceberg puts something into the summaries of all snapshots that a session writes."""

_LOCAL_MASTER = re.compile(r"local(?:\[(?P<cores>\*|\d+)(?:\s*,\s*\d+)?\])?")


def configured_master() -> str:
    """Return the master of a Spark in this process: ``$KAFKA_LAKE_SPARK_MASTER``, or ``local[*]``."""
    return environment.SPARK_MASTER.value()


def local_cores(master: str) -> int | None:
    """Return how many tasks a local master runs at once; None for a cluster.

    >>> local_cores("local[2]"), local_cores("local"), local_cores("spark://host:7077")
    (2, 1, None)
    """
    found = _LOCAL_MASTER.fullmatch(master)
    if found is None:
        return None
    return (os.cpu_count() or 1) if found["cores"] == "*" else int(found["cores"] or 1)


def local_conf(catalog: SparkCatalog, master: str, jars: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a Spark that lives in this process or in a Connect server of ours.

    Args:
        catalog: The Iceberg catalog that Spark shall know.
        jars: Comma-separated paths of the jars to load; what the catalog needs besides is added.
        extra: Settings that win over ours.

    Raises:
        ConfigurationError: If the file of the certificates that the catalog is trusted by can't be read.
        JarsError: If a jar that the catalog needs can't be retrieved.
        JavaNotFoundError: If there is no Java.
    """
    needed = _needed(catalog, jars, extra)
    jars = ",".join(filter(None, [jars, *needed]))
    conf = {**_DEFAULTS, "spark.master": master, **catalog.conf, **extra}
    if catalog.ca_bundle:
        # It takes a library for certificates, whose import every command would wait for.
        from kafka_lake.spark.trust import trust_options

        conf[_DRIVER_OPTIONS] = f"{trust_options(catalog)} {conf[_DRIVER_OPTIONS]}"
    if cores := local_cores(master):
        conf.setdefault(PARALLELISM, str(cores))
        return on_driver(conf, jars)
    # On a cluster, executors must reach the driver: let Spark choose the address.
    for key in ("spark.driver.bindAddress", "spark.driver.host"):
        if key not in extra:
            del conf[key]
    # Those that a user gives replace ours, but not what the catalog can't be reached without.
    return {**conf, "spark.jars": ",".join([extra["spark.jars"], *needed]) if extra.get("spark.jars") else jars}


def _needed(catalog: SparkCatalog, jars: str, extra: Mapping[str, str]) -> list[str]:
    """Return the jars that the catalog needs beside those that are there."""
    elsewhere = ("spark.jars.packages", "spark.jars.ivy", "spark.jars.repositories")
    if any(extra.get(key) for key in elsewhere) or any(map(os.environ.get, ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR"))):
        # These may bring any jar.
        return []
    there = [*jars.split(","), *extra.get("spark.jars", "").split(","), *extra.get(CLASSPATH, "").split(os.pathsep)]
    return [str(jar) for jar in jars_with(catalog.needed_classes, there)]
