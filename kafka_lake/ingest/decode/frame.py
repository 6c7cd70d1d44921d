"""From decoded records to the rows of the two tables: the topic's own and its dead letters."""

from importlib import import_module
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.topic_table import TopicTable

_TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime"}


def rows_of(decoded: DataFrame, spec: TopicTable) -> DataFrame:
    """Return the table's rows: the decoded columns, where they came from, then the user's transform over them.

    Args:
        decoded: Records with ``decoded`` and ``error_class``.
        spec: Metadata column and transform count.

    Raises:
        ConfigurationError: If the transform can't be imported or gives no DataFrame.
    """
    good = decoded.filter(F.col("value").isNotNull() & F.col("error_class").isNull())
    columns = [F.col("decoded.*")]
    if spec.metadata_column:
        columns.append(_metadata().alias(spec.metadata_column))
    return apply_transform(good.select(*columns), spec)


def apply_transform(rows: DataFrame, spec: TopicTable) -> DataFrame:
    """Return what the topic's ``transform`` makes of the rows; the rows themselves if it has none.

    Raises:
        ConfigurationError: If it can't be imported, gives no DataFrame, or loses the metadata column.
    """
    if spec.transform is None:
        return rows
    result = load_transform(spec.transform)(rows)
    if not hasattr(result, "writeTo"):
        raise ConfigurationError(
            f"Topic {spec.topic}: transform {spec.transform} returned {type(result).__name__}, not a DataFrame.",
            "Return the DataFrame that the rows shall become.",
        )
    if spec.metadata_column and spec.metadata_column not in result.columns:
        raise ConfigurationError(
            f"Topic {spec.topic}: transform {spec.transform} drops the column {spec.metadata_column}, "
            "by which every row is proved to be there once.",
            f"Keep {spec.metadata_column} in the result.",
        )
    return result


def load_transform(reference: str) -> Any:
    """Return the function that ``module:function`` names.

    Raises:
        ConfigurationError: If there is none.
    """
    module, _, name = reference.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"transform: {reference!r} can't be imported ({error}).",
            "Write module:function, and install the module where Dagster runs.",
        ) from error
    if not callable(function):
        raise ConfigurationError(f"transform: {reference!r} is no function.", "Write module:function.")
    return function


def dead_letters_of(decoded: DataFrame, run_id: str) -> DataFrame:
    """Return the rows of the dead-letter table: what didn't decode, with its bytes and the reason.

    Args:
        decoded: Records with ``error_class`` and ``error_message``.
        run_id: The run that found them.
    """
    return decoded.filter(F.col("error_class").isNotNull()).select(
        F.col("topic"),
        F.col("partition"),
        F.col("offset"),
        F.col("timestamp"),
        F.col("key"),
        F.col("value"),
        _headers().alias("headers"),
        F.col("error_class"),
        F.col("error_message"),
        F.lit(run_id).alias("run_id"),
    )


def _metadata() -> Column:
    timestamp_type = F.col("timestampType")
    named = F.lit(None).cast("string")
    for number, name in _TIMESTAMP_TYPES.items():
        named = F.when(timestamp_type == number, F.lit(name)).otherwise(named)
    return F.struct(
        F.col("topic"),
        F.col("partition"),
        F.col("offset"),
        F.col("timestamp"),
        named.alias("timestamp_type"),
        F.col("key"),
        _headers().alias("headers"),
    )


def _headers() -> Column:
    return F.transform(F.col("headers"), lambda h: F.struct(h["key"].alias("key"), h["value"].alias("value")))
