"""Frames that Spark keeps since they are read several times.

They are in the memory that all sessions of a server share: until they are forgotten, nothing takes them away, not even
the end of their session.
"""

from contextlib import ExitStack, suppress
from typing import Any
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel

_PREFIX = "kafka_lake_kept_"


def kept(frame: DataFrame, held: ExitStack, level: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER) -> DataFrame:
    """Let Spark keep a frame when it is computed, until a block is left.

    Spark finds what it keeps by the plan. A Connect server plans a frame anew whenever it is asked for it, unless that
    is among the last few that it remembers, and no two plans that read Kafka, or have a random value, are the same. So
    the frame gets a name first, by which its plan stays what it was.

    Args:
        held: Of the block. Leaving it never raises because of the frame: a server that is gone has forgotten it.

    Returns:
        The frame that is kept; the one that was given would be computed again.
    """
    spark = frame.sparkSession
    # A session of this process's own Spark ends with it, and has no tag.
    name = f"{_PREFIX}{getattr(spark, 'tag', '')}_{uuid4().hex}"
    frame.createOrReplaceTempView(name)
    held.callback(_forget, spark, name)
    return spark.table(name).persist(level)


def _forget(spark: Any, name: str) -> None:
    with suppress(Exception):
        # What is kept of a view goes with it.
        spark.catalog.dropTempView(name)


def forget_all(spark: Any, tag: str) -> None:
    """Forget every frame that a process has left in a session when it was killed.

    Nothing is raised if they can't be found: they take memory, and nothing else.

    Args:
        tag: Of the process, in which it had opened the session.
    """
    # Those of the session itself are listed with global ones, and no catalog is asked: see
    # https://spark.apache.org/docs/latest/sql-ref-syntax-aux-show-views.html.
    with suppress(PySparkException):
        for each in spark.sql(f"SHOW VIEWS IN spark_catalog.global_temp LIKE '{_PREFIX}{tag}_*'").collect():
            _forget(spark, each["viewName"])
