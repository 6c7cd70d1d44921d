"""What names a record in rows and letters, and the Spark frames, joins and conditions that go by it."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.ingest.decode.fit_columns import any_of
from kafka_lake.ingest.topic_table import TopicTable

OFFSET = ("topic_id", "partition", "offset")
"""What names a record, as long as its log isn't cut off and written anew."""
RECORD = (*OFFSET, "timestamp")
"""What names the very record of a row: after a cut that a run was told to go on at, offsets mean other records."""


def at_version(spark: Any, name: str, snapshot: int) -> DataFrame:
    """Return a table as of a snapshot, by its quoted Spark name."""
    frame: DataFrame = spark.sql(f"SELECT * FROM {name} VERSION AS OF {snapshot}")
    return frame


def without(letters: DataFrame, others: DataFrame, keys: Sequence[str] = RECORD) -> DataFrame:
    """Return the letters that have no twin among the others, by what names a record."""
    return letters.join(named(others, keys), _same(letters, keys), "left_anti")


def among(letters: DataFrame, others: DataFrame) -> DataFrame:
    """Return the letters that have a twin among the others, by what names a record."""
    return letters.join(named(others, RECORD), _same(letters, RECORD), "left_semi")


def named(frame: DataFrame, keys: Sequence[str] = RECORD) -> DataFrame:
    """Return what names records under names of their own, ``their_offset`` for ``offset``, to be joined with others."""
    return frame.select(*[F.col(key).alias(f"their_{key}") for key in keys])


def _same(letters: DataFrame, keys: Sequence[str]) -> Any:
    # Clusters older than Kafka 2.8 have no topic ids: null is then the same as null.
    return reduce(and_, [letters[key].eqNullSafe(F.col(f"their_{key}")) for key in keys])


def within(ranges: Sequence[OffsetRange], column: Callable[[str], Any]) -> Any:
    """Return the condition that a row or letter is of these offsets, of whatever topic."""
    return any_of([(column("partition") == r.partition) & column("offset").between(r.start, r.end - 1) for r in ranges])


def within_topic(ranges: Sequence[OffsetRange], topic_id: str, column: Callable[[str], Any]) -> Any:
    """Return the condition that a row or letter is of these offsets of this very topic."""
    same_topic = column("topic_id").eqNullSafe(F.lit(topic_id or None))
    return same_topic & any_of(
        [
            (column("partition") == r.partition) & (column("offset") >= r.start) & (column("offset") < r.end)
            for r in ranges
        ]
    )


def origin_of(spec: TopicTable) -> Callable[[str], Any]:
    """Return a function from a field of the metadata column to its Spark column.

    Raises:
        ConfigurationError: If the topic's table has no metadata column.
    """
    if spec.metadata_column is None:
        raise ConfigurationError(
            f"Topic {spec.topic}: without a metadata column the rows of table {'.'.join(spec.identifier)} don't tell "
            "which records they were.",
            "Rows can be replaced and moved in tables with a metadata_column only.",
        )
    return lambda field_: F.col(f"`{spec.metadata_column}`.`{field_}`")
