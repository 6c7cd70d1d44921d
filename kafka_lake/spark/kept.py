"""Frames that Spark keeps since they are read several times.

They are in the memory that all sessions of a server share: until they are forgotten, nothing takes them away, not even
the end of their session.
"""

from contextlib import ExitStack, suppress
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel


def kept(frame: DataFrame, held: ExitStack, level: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER) -> DataFrame:
    """Let Spark keep a frame when it is computed, until a block is left.

    Spark finds what it keeps by the plan. A Connect server plans a frame anew whenever it is asked for it, unless that
    is among the last few that it remembers, and no two plans that read Kafka, or have a random value, are the same. So
    the frame gets a name first, by which its plan stays what it was.

    Args:
        frame: The frame.
        held: Of the block. Leaving it never raises because of the frame: a server that is gone has forgotten it.
        level: Where Spark keeps it.

    Returns:
        The frame that is kept; the one that was given would be computed again.
    """
    spark, name = frame.sparkSession, f"kafka_lake_kept_{uuid4().hex}"
    frame.createOrReplaceTempView(name)
    held.callback(_forget, spark, name)
    return spark.table(name).persist(level)


def _forget(spark: Any, name: str) -> None:
    with suppress(Exception):
        # What is kept of a view goes with it.
        spark.catalog.dropTempView(name)
