"""The session of a Spark whose driver is in this process: on this machine's cores or on a cluster."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from kafka_lake.common.spark_catalog import SparkCatalog
from kafka_lake.spark.jars import spark_jars
from kafka_lake.spark.java import java_env
from kafka_lake.spark.private_conf import start_jvm
from kafka_lake.spark.settings import configured_master, local_conf


def local_session(catalog: SparkCatalog, settings: Mapping[str, Any]) -> Any:
    """Return a session of a Spark in this process, with the jars of ``ivy.xml``.

    Args:
        catalog: The Iceberg catalog that Spark shall know.
        settings: Spark settings that win over ours.

    Raises:
        ConfigurationError: If Spark would lack a jar for the catalog.
        JarsError: If the jars can't be retrieved.
        JavaNotFoundError: If there is no Java.
    """
    # Left by a Connect session of the process that this one was started by; PySpark would look for its server.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    os.environ.update(java_env())
    master = configured_master()
    if master.startswith("local"):
        # Else Python functions run in whatever python3 the PATH has, which may lack every package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    extra = {key: str(value) for key, value in settings.items()}
    conf = local_conf(catalog, master, spark_jars(), extra)
    start_jvm(conf)
    # By the JVM's socket from here on: a process that had a Spark before keeps its JVM.
    session = SparkSession.builder.config(map={**conf, "spark.app.name": "kafka_lake"}).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
