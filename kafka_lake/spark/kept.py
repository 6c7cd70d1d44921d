"""Frames that Spark keeps since they are read several times.

They are in the memory that all sessions of a server share: until they are forgotten, nothing takes them away, not even
the end of their session.
"""

from contextlib import ExitStack, suppress

from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel


def kept(frame: DataFrame, held: ExitStack, level: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER) -> DataFrame:
    """Let Spark keep a frame when it is computed, until a block is left.

    Args:
        frame: The frame.
        held: Of the block.
        level: Where Spark keeps it.
    """
    persisted = frame.persist(level)
    held.callback(unpersist, persisted)
    return persisted


def unpersist(*frames: DataFrame) -> None:
    """Let Spark forget frames that it keeps. Never raises: a server that is gone has forgotten them."""
    for frame in frames:
        with suppress(Exception):
            frame.unpersist()
