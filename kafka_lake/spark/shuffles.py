"""How many partitions Spark's shuffles have, for as long as a block takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PARTITIONS = "spark.sql.shuffle.partitions"


@contextmanager
def shuffles(spark: Any, partitions: int) -> Iterator[None]:
    """Let shuffles of the block have so many partitions: two hundred, Spark's own, cost seconds for a few rows.

    Args:
        spark: The session; it has its own setting again after the block.
        partitions: How many.
    """
    before = spark.conf.get(_PARTITIONS, None)
    spark.conf.set(_PARTITIONS, str(partitions))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_PARTITIONS)
        else:
            spark.conf.set(_PARTITIONS, before)
