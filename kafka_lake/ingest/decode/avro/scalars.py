"""Primitive types and logical types: numbers, text, times, UUIDs, durations."""

import math
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.decode.avro.debezium_values import text_value
from kafka_lake.ingest.decode.avro.decimals import big_decimal, big_decimal_record, decimal_value, is_big_decimal
from kafka_lake.ingest.decode.avro.value import FIRST_MICROS, LAST_MICROS, Conditions, Value, unless_null

PRIMITIVES: Mapping[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "bytes": T.BinaryType(),
}
_AS_SPARK_READS_IT: Mapping[tuple[str, str], T.DataType] = {
    ("int", "date"): T.DateType(),
    ("long", "timestamp-millis"): T.TimestampType(),
    ("long", "timestamp-micros"): T.TimestampType(),
    ("long", "timestamp-nanos"): T.LongType(),
    ("long", "local-timestamp-millis"): T.TimestampNTZType(),
    ("long", "local-timestamp-micros"): T.TimestampNTZType(),
    ("long", "local-timestamp-nanos"): T.LongType(),
}
_TIMES = {("int", "time-millis"): "local-timestamp-millis", ("long", "time-micros"): "local-timestamp-micros"}
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\z"


def primitive_value(kind: str, node: Mapping[str, Any], name: str) -> Value:
    """Return a primitive type, or the logical type that it is declared as.

    Args:
        kind: The primitive type.
        node: Its declaration.
        name: A name for a record that no other type has.
    """
    logical = node.get("logicalType")
    if isinstance(logical, str):
        if found := _AS_SPARK_READS_IT.get((kind, logical)):
            checks = None if isinstance(found, T.LongType) else _is_of_a_table(found)
            return Value({"type": kind, "logicalType": logical}, found, checks=checks)
        if twin := _TIMES.get((kind, logical)):
            # Both are numbers of variable length: an int is encoded like a long.
            return Value({"type": "long", "logicalType": twin}, T.StringType(), _time, _is_time)
        if kind == "string" and (found_text := text_value(logical)):
            return found_text
        if (kind, logical) == ("string", "uuid"):
            return Value(kind, T.StringType(), _uuid_of_text, texts=lambda raw, _: [raw])
        if (kind, logical) == ("bytes", "decimal") and (found_decimal := decimal_value(kind, node, math.inf)):
            return found_decimal
        if (kind, logical) == ("bytes", "big-decimal"):
            return Value(big_decimal_record(name), T.StringType(), big_decimal, is_big_decimal, loops=True)
    return Value(kind, PRIMITIVES[kind], texts=(lambda raw, _: [raw]) if kind == "string" else None)


def _is_of_a_table(kind: T.DataType) -> Conditions:
    """Return the condition that a date or timestamp is of the years 1 to 9999: no reader but Spark knows others."""

    def holds(raw: Column) -> list[Column]:
        first, last = (F.lit(text).cast(kind) for text in ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"))
        if isinstance(kind, T.TimestampType):
            # Text would be a time of the session's zone.
            first, last = F.timestamp_micros(F.lit(FIRST_MICROS)), F.timestamp_micros(F.lit(LAST_MICROS))
        return [unless_null(raw.between(first, last))]

    return holds


def _time(raw: Column) -> Column:
    # Spark leaves out zeros at the end.
    return F.overlay(F.lit("00:00:00.000000"), F.substring(raw.cast("string"), 12, 15), 1)


def _is_time(raw: Column) -> list[Column]:
    return [unless_null(raw.cast("date") == F.lit("1970-01-01").cast("date"))]


def _uuid_of_text(raw: Column) -> Column:
    return F.when(F.rlike(raw, F.lit(_UUID)), F.lower(raw)).otherwise(raw)


def uuid_of_bytes(raw: Column) -> Column:
    """Return 16 bytes as a UUID in lower case."""
    groups = [F.hex(F.substring(raw, at, size)) for at, size in ((1, 4), (5, 2), (7, 2), (9, 2), (11, 6))]
    return F.lower(F.concat(*[part for group in groups for part in (F.lit("-"), group)][1:]))


DURATION_TYPE = T.StructType([T.StructField(name, T.LongType()) for name in ("months", "days", "millis")])


def duration_value(raw: Column) -> Column:
    """Return 12 bytes as counts of months, days and milliseconds."""

    def count(at: int) -> Column:
        big_endian = F.concat(*[F.substring(raw, at + offset, 1) for offset in (4, 3, 2, 1)])
        return F.conv(F.hex(big_endian), 16, 10).cast("bigint")

    counts = [count(4 * number).alias(name) for number, name in enumerate(DURATION_TYPE.names)]
    return F.when(raw.isNotNull(), F.struct(*counts))
