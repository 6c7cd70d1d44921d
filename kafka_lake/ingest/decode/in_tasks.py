"""Records decoded in Spark's tasks, in Arrow, by whatever decoder plain data names."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.executors import task
from kafka_lake.executors.json.decoder import Seen
from kafka_lake.executors.task import CHANGE, DECODED, ERROR_CLASS, ERROR_MESSAGE, OBSERVED, loaded
from kafka_lake.ingest.decode.json.columns import nullable_all, travelling
from kafka_lake.ingest.tasks import told

_HEADERS = "headers"


def decoded_in_tasks(
    records: DataFrame, columns: T.StructType, work: Mapping[str, Any], change: T.StructType | None = None
) -> DataFrame:
    """Return the records with ``decoded``, ``error_class``, ``error_message`` and ``observed``.

    Args:
        records: What `read` gave; null values (tombstones) get all of them as null.
        work: What `record_decoder` makes a decoder of.
        change: The type of what each record does to a row, in a column `CHANGE`; None if records are no changes.
    """
    text = T.StringType()
    fields = [
        *records.schema.fields,
        T.StructField(DECODED, travelling(nullable_all(columns))),
        *(T.StructField(name, text) for name in (ERROR_CLASS, ERROR_MESSAGE, OBSERVED)),
        *([] if change is None else [T.StructField(CHANGE, change)]),
    ]
    given = records
    if _HEADERS in records.columns:
        # Null lists one after the other cost Spark's Arrow writer the square of their number.
        given = records.withColumn(_HEADERS, F.coalesce(_HEADERS, F.array().cast(records.schema[_HEADERS].dataType)))
    made = given.mapInArrow(told(task.decode, work), T.StructType(fields))
    if _HEADERS in records.columns:
        made = made.withColumn(_HEADERS, F.when(F.size(_HEADERS) > 0, F.col(_HEADERS)))
    return made


def observed_in_tasks(records: DataFrame, work: Mapping[str, Any], max_columns: int) -> Seen:
    """Return what records have that no column takes, in a pass of its own."""
    return loaded(observed_texts(records, work), max_columns)


def observed_texts(records: DataFrame, work: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what batches of records have that no column takes, as `kafka_lake.executors.task.observe` says it."""
    asked = records.select("key", "value", "partition", "offset")
    frame = asked.mapInArrow(told(task.observe, work), T.StructType([T.StructField(OBSERVED, T.StringType())]))
    return tuple(row[OBSERVED] for row in frame.collect())
