"""Columns of JSON records: as the executors know them, and as Spark does."""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import types as T

from kafka_lake.executors.fit import SHOWN
from kafka_lake.executors.json.types import Kind
from kafka_lake.ingest.decode.target import Target

_WHOLE = {T.ByteType: "byte", T.ShortType: "short", T.IntegerType: "int", T.LongType: "long"}
_SCALARS = {
    **_WHOLE,
    T.BooleanType: "boolean",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.CharType: "string",
    T.VarcharType: "string",
    T.BinaryType: "binary",
    T.DateType: "date",
    T.TimestampType: "timestamp",
    T.TimestampNTZType: "timestamp_ntz",
}
_INFERRED: Mapping[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "long": T.LongType(),
    "double": T.DoubleType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "text": T.StringType(),
}


def columns_of(columns: T.StructType, target: Target, prefix: str = "") -> tuple[Any, ...]:
    """Return columns as the executors know them, see `kafka_lake.executors.json.columns`.

    Args:
        prefix: The path that they are below, with a dot behind it.
    """
    return tuple(
        (
            f.name,
            _kind(f.dataType, target, f"{prefix}{f.name}"),
            tuple(target.feeds(f"{prefix}{f.name}", f.name)),
            not f.nullable and not prefix,
            _short(f.dataType),
        )
        for f in columns
    )


def _short(kind: T.DataType) -> str:
    text: str = kind.simpleString()
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _kind(kind: T.DataType, target: Target, path: str) -> tuple[Any, ...]:
    if isinstance(kind, T.StructType):
        return ("struct", columns_of(kind, target, f"{path}."))
    if isinstance(kind, T.ArrayType):
        return ("list", _kind(kind.elementType, target, f"{path}.element"))
    if isinstance(kind, T.MapType):
        value = _kind(kind.valueType, target, f"{path}.value")
        key = (_SCALARS[type(kind.keyType)],)
        return ("map", value) if key == ("string",) else ("map", value, key)
    if isinstance(kind, T.DecimalType):
        return ("decimal", kind.precision, kind.scale)
    return (_SCALARS[type(kind)],)


def travelling(kind: T.DataType) -> T.DataType:
    """Return the type as workers give it: Spark's fixed-length text as text."""
    return _replaced(kind, lambda each: T.StringType() if isinstance(each, T.CharType) else each)


def nullable_all(kind: T.DataType) -> T.DataType:
    """Return the type with every nested field, element and value nullable: JSON promises nothing."""
    return _replaced(kind, lambda each: each)


def _replaced(kind: T.DataType, scalar: Callable[[T.DataType], T.DataType]) -> T.DataType:
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, _replaced(f.dataType, scalar)) for f in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_replaced(kind.elementType, scalar))
    if isinstance(kind, T.MapType):
        return T.MapType(_replaced(kind.keyType, scalar), _replaced(kind.valueType, scalar))
    return scalar(kind)


def spark_type(kind: Kind) -> T.DataType:
    """Return the type of the column for a type that was inferred and settled.

    >>> spark_type(["struct", {"id": "long", "tags": ["list", "text"]}]).simpleString()
    'struct<id:bigint,tags:array<string>>'
    """
    if isinstance(kind, list) and kind[0] == "struct":
        return T.StructType([T.StructField(name, spark_type(each)) for name, each in kind[1].items()])
    if isinstance(kind, list):
        return T.ArrayType(spark_type(kind[1]))
    return _INFERRED[kind]
