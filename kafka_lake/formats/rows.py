"""From decoded records to the rows of the two tables, the topic's own and its dead letters; and back to records."""

from importlib import import_module
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import ConfigurationError
from kafka_lake.formats.table_compatibility import without_excepted
from kafka_lake.spec.topic_table import TopicTable

CHANGE, DELETED = "_change", "_is_deleted"
"""Columns of keyed tables: what made the row, and where that is in its source's order; and whether it was deleted."""
VALID_FROM, VALID_TO, EVENT = "valid_from", "valid_to", "_event"
"""Columns of histories: from when until when a version counts, and what else a change must tell to be placed anew."""
EVENT_TYPE = T.StructType([T.StructField("kept", T.ArrayType(T.IntegerType())), T.StructField("at", T.TimestampType())])
"""``kept``: field ids of the columns that a change left as they were. ``at``: its time, if an envelope tells it."""
_COUNTED = (T.NumericType, T.DateType, T.TimestampType, T.TimestampNTZType)
CHANGE_TYPE = T.StructType([T.StructField("op", T.StringType()), T.StructField("order", T.ArrayType(T.LongType()))])

METADATA = T.StructType(
    [
        T.StructField("topic", T.StringType()),
        T.StructField("topic_id", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("timestamp", T.TimestampType()),
        T.StructField("timestamp_type", T.StringType()),
        T.StructField("key", T.BinaryType()),
        T.StructField(
            "headers",
            T.ArrayType(T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])),
        ),
    ]
)
"""The metadata column: where a row came from."""

_TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime"}
_NO_TIMESTAMP_TYPE = -1


def row_type(columns: T.StructType, spec: TopicTable) -> T.StructType:
    """Return what `transformed` gives for a topic without a transform."""
    metadata = T.StructField(METADATA_COLUMN, METADATA)
    return T.StructType([*without_excepted(columns, spec), metadata, *change_columns(spec, columns)])


def change_columns(spec: TopicTable, columns: T.StructType | None = None) -> list[T.StructField]:
    """Return the columns that an upsert table has about changes."""
    found = []
    if spec.is_keyed and spec.has_source_order:
        found.append(T.StructField(CHANGE, CHANGE_TYPE))
    if spec.has_versions:
        kind = T.TimestampType() if columns is None else interval_type(spec, columns)
        found += [T.StructField(name, kind) for name in (VALID_FROM, VALID_TO) if kind is not None]
    if spec.has_versions or (spec.is_keyed and spec.marks_deletes):
        found.append(T.StructField(DELETED, T.BooleanType()))
    if spec.has_versions:
        found.append(T.StructField(EVENT, EVENT_TYPE))
    return found


def interval_type(spec: TopicTable, columns: T.StructType) -> T.DataType | None:
    """Return the type of a history's intervals; None if its order is by a column that isn't there yet."""
    if spec.has_source_order or len(spec.order_by) != 1:
        return T.TimestampType()
    return next((field.dataType for field in columns if field.name == spec.order_by[0]), None)


def is_counted(kind: T.DataType) -> bool:
    """Return whether values of this type can order changes: numbers, dates and times."""
    return isinstance(kind, _COUNTED)


def origin_of(decoded: DataFrame, topic_id: str | None) -> Column:
    """Return the metadata column of decoded records."""
    return _metadata(_topic_id(decoded, topic_id))


def transformed(decoded: DataFrame, spec: TopicTable, topic_id: str | None = None) -> DataFrame:
    """Return the table's rows: the decoded columns and their origin, then the user's transform over them."""
    good = decoded.filter(F.col("value").isNotNull() & F.col("error_class").isNull())
    origin = _metadata(_topic_id(decoded, topic_id)).alias(METADATA_COLUMN)
    return apply_transform(good.select(F.col("decoded.*"), origin), spec)


def apply_transform(rows: DataFrame, spec: TopicTable) -> DataFrame:
    """Return what the topic's ``transform`` makes of the rows; the rows themselves if it has none."""
    if spec.transform is None:
        return rows
    result = load_transform(spec.transform)(rows)
    if not hasattr(result, "writeTo"):
        raise ConfigurationError(
            f"Topic {spec.topic}: transform {spec.transform} returned {type(result).__name__}, not a DataFrame.",
            "Return the DataFrame of the new rows.",
        )
    if METADATA_COLUMN not in result.columns:
        raise ConfigurationError(
            f"Topic {spec.topic}: transform {spec.transform} drops the column {METADATA_COLUMN}, "
            "which proves that every row is there once.",
            f"Keep {METADATA_COLUMN} in the result.",
        )
    return result


def load_transform(reference: str) -> Any:
    """Return the function that ``module:function`` names."""
    module, _, name = reference.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"transform: {reference!r} can't be imported ({error}).",
            "Write module:function, and install the module where Dagster runs.",
        ) from error
    if not callable(function):
        raise ConfigurationError(f"transform: {reference!r} isn't a function.", "Write module:function.")
    return function


def none_failed(records: DataFrame) -> DataFrame:
    """Return the records that didn't decode where all of them did: none, with the reasons that they haven't."""
    none = F.lit(None).cast("string")
    return records.limit(0).withColumns({"error_class": none, "error_message": none})


def dead_letters_of(decoded: DataFrame, run_id: str, topic_id: str | None = None) -> DataFrame:
    """Return the rows of the dead-letter table: what didn't decode, with its bytes and the reason."""
    return decoded.filter(F.col("error_class").isNotNull()).select(
        F.col("topic"),
        _topic_id(decoded, topic_id).alias("topic_id"),
        F.col("partition"),
        F.col("offset"),
        F.col("timestamp"),
        _timestamp_type().alias("timestamp_type"),
        F.col("key"),
        F.col("value"),
        _headers().alias("headers"),
        F.col("error_class"),
        F.col("error_message"),
        F.lit(run_id).alias("run_id"),
        F.current_timestamp().alias("failed_at"),
    )


def records_from_dead_letters(dead_letters: DataFrame) -> DataFrame:
    """Return the records that dead letters were, as Spark's Kafka source gives them, and their ``topic_id``."""
    number = F.lit(_NO_TIMESTAMP_TYPE)
    if "timestamp_type" in dead_letters.columns:
        for number_of_type, name in _TIMESTAMP_TYPES.items():
            number = F.when(F.col("timestamp_type") == name, F.lit(number_of_type)).otherwise(number)
    return dead_letters.select(
        F.col("key"),
        F.col("value"),
        F.col("topic"),
        F.col("partition"),
        F.col("offset"),
        F.col("timestamp"),
        number.alias("timestampType"),
        _headers().alias("headers"),
        _topic_id(dead_letters, None).alias("topic_id"),
    )


def _metadata(topic_id: Column) -> Column:
    return F.struct(
        F.col("topic"),
        topic_id.alias("topic_id"),
        F.col("partition"),
        F.col("offset"),
        F.col("timestamp"),
        _timestamp_type().alias("timestamp_type"),
        F.col("key"),
        _headers().alias("headers"),
    )


def _topic_id(records: DataFrame, topic_id: str | None) -> Column:
    if "topic_id" in records.columns:
        return F.nullif(F.col("topic_id"), F.lit(""))
    return F.lit(topic_id or None).cast("string")


def _timestamp_type() -> Column:
    named = F.lit(None).cast("string")
    for number, name in _TIMESTAMP_TYPES.items():
        named = F.when(F.col("timestampType") == number, F.lit(name)).otherwise(named)
    return named


def _headers() -> Column:
    return F.transform(F.col("headers"), lambda h: F.struct(h["key"].alias("key"), h["value"].alias("value")))
