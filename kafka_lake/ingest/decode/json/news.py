"""What records with new fields look like: the columns' fields by their types, and the new ones beside them."""

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import types as T

from kafka_lake.executors.json.types import settled
from kafka_lake.ingest.decode.json.columns import spark_type
from kafka_lake.ingest.decode.target import Target


def grown(
    columns: T.StructType, news: Mapping[str, Any], target: Target, prefix: str, times: bool
) -> tuple[T.StructType, list[T.StructType]]:
    """Return what records with new fields look like: the fields that feed columns, by those columns' types, and more.

    All of it by the fields' names, at every depth, which the columns' own may differ from.

    Where a field feeds several columns, its values within the first are in the first schema that is returned, those
    within another one in a schema of its own.
    """
    fields: dict[str, T.StructField] = {}
    others: list[T.StructType] = []
    for column in columns:
        path = f"{prefix}{column.name}"
        source = target.feeds(path, column.name)[0]
        inner = news.get("in", {}).get(column.name)
        kind, aside = _grown_type(column.dataType, inner or {}, target, path=path, times=times)
        others += [T.StructType([T.StructField(source, each)]) for each in aside]
        if source not in fields:
            fields[source] = T.StructField(source, kind, column.nullable)
        elif inner is not None:
            others.append(T.StructType([T.StructField(source, kind)]))
    for name, found in news.get("new", {}).items():
        if (known := settled(found, times)) is not None:
            fields[name] = T.StructField(name, spark_type(known))
    return T.StructType(list(fields.values())), others


def _grown_type(
    kind: T.DataType, news: Mapping[str, Any], target: Target, path: str, times: bool
) -> tuple[T.DataType, list[T.DataType]]:
    if isinstance(kind, T.StructType):
        first, others = grown(kind, news, target, prefix=f"{path}.", times=times)
        return first, list(others)
    inner = news.get("in", {})
    if isinstance(kind, T.ArrayType):
        element, aside = _grown_type(
            kind.elementType, inner.get("element", {}), target, path=f"{path}.element", times=times
        )
        return T.ArrayType(element, kind.containsNull or bool(inner)), [T.ArrayType(each) for each in aside]
    if isinstance(kind, T.MapType):
        value, aside = _grown_type(kind.valueType, inner.get("value", {}), target, path=f"{path}.value", times=times)
        held = T.MapType(kind.keyType, value, kind.valueContainsNull or bool(inner))
        return held, [T.MapType(kind.keyType, each) for each in aside]
    return kind, []


def with_required(fields: T.StructType, target: Target) -> T.StructType:
    """Return the fields and those of the columns that must not be null: records that lack them are no rows anyway."""
    names = set(fields.fieldNames())
    return T.StructType([*fields, *_required(target, names)])


def _required(target: Target, but: set[str]) -> Iterator[T.StructField]:
    for column in target.columns:
        source = target.feeds(column.name, column.name)[0]
        if not column.nullable and source not in but:
            kind, _ = _grown_type(column.dataType, {}, target, path=column.name, times=False)
            yield T.StructField(source, kind, nullable=False)
