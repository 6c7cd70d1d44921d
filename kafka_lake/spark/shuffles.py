"""How Spark plans shuffles, for as long as a block takes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

_PARTITIONS = "spark.sql.shuffle.partitions"


@contextmanager
def shuffles(spark: Any, partitions: int, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Let shuffles of the block have so many partitions: two hundred, Spark's own, cost seconds for a few rows.

    Args:
        spark: The session; it has its own settings again after the block.
        settings: Others of Spark's SQL settings that hold for the block.
    """
    values = {_PARTITIONS: str(partitions), **settings}
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, known in before.items():
            if known is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, known)
