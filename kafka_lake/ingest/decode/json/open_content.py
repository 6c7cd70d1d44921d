"""Fields of JSON records beside those that their schemas name: columns where a schema allows them, else named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import types as T

from kafka_lake.executors.json.decoder import Seen
from kafka_lake.executors.json.types import settled as inferred
from kafka_lake.ingest.decode.json.columns import spark_type
from kafka_lake.ingest.decode.json.decoder import said_of
from kafka_lake.ingest.decode.json.json_schema import json_schema_content
from kafka_lake.ingest.decode.json.json_schema_combine import ANY, Record, either_of, settled
from kafka_lake.ingest.decode.target import Target
from kafka_lake.kafka.registry import WriterSchema

_OPEN = Record((), ANY)


@dataclass(frozen=True)
class OpenContent:
    """What records have shown beside the fields of their schemas.

    Args:
        shown: Fields that a schema allows, as structs.
        kept_out: What was in the records of the last pass and is in no column: path → what is said of it.
    """

    shown: tuple[T.StructType, ...] = ()
    kept_out: tuple[tuple[str, str], ...] = ()

    def forgetting(self) -> "OpenContent":
        """Return it before a pass that shows nothing."""
        return OpenContent(self.shown)

    def knowing(self, seen: Seen, schemas: Sequence[WriterSchema], target: Target) -> "OpenContent":
        """Return it with what a pass has shown.

        Args:
            schemas: The records' schemas. A field is allowed if one of them allows it.
            target: What the records were decoded into.
        """
        kind = reduce(either_of, map(json_schema_content, schemas))
        refused: list[str] = []
        found = _beside(seen.news, target.columns, kind, target, path="", refused=refused)
        said = said_of(seen)
        for path in refused:
            said[path] = f"isn't in the schema, which allows no other fields, and had a value {seen.aside[path]} times"
        new = (found,) if isinstance(found, T.StructType) else ()
        return OpenContent(tuple(dict.fromkeys((*self.shown, *new))), tuple(sorted(said.items())))


def _beside(
    news: Mapping[str, Any], columns: T.DataType, kind: T.DataType, target: Target, path: str, refused: list[str]
) -> T.DataType | None:
    """Return what records have beside a schema's fields, as that allows it; None if there is nothing."""
    if isinstance(columns, T.ArrayType):
        part = kind.elementType if isinstance(kind, T.ArrayType) else _OPEN
        element = _inner(news, "element", columns.elementType, part, target=target, path=path, refused=refused)
        return None if element is None else T.ArrayType(element)
    if isinstance(columns, T.MapType):
        part = kind.valueType if isinstance(kind, T.MapType) else _OPEN
        value = _inner(news, "value", columns.valueType, part, target=target, path=path, refused=refused)
        return None if value is None else T.MapType(columns.keyType, value)
    assert isinstance(columns, T.StructType), "only structs have fields"
    record = kind if isinstance(kind, Record) else _OPEN
    fields: list[T.StructField] = []
    for column in columns:
        source = target.feeds(f"{path}{column.name}", column.name)[0]
        part = record[source].dataType if source in record.names else _OPEN
        inner = _inner(news, column.name, column.dataType, part, target=target, path=path, refused=refused)
        if inner is not None:
            fields.append(T.StructField(source, inner))
    for name, shown in news.get("new", {}).items():
        if record.rest is None:
            refused.append(f"{path}{name}")
        elif record.rest != ANY:
            fields.append(T.StructField(name, settled(record.rest)))
        elif (known := inferred(shown, False)) is not None:
            fields.append(T.StructField(name, spark_type(known)))
    return T.StructType(fields) if fields else None


def _inner(
    news: Mapping[str, Any],
    step: str,
    columns: T.DataType,
    kind: T.DataType,
    target: Target,
    path: str,
    refused: list[str],
) -> T.DataType | None:
    below = news.get("in", {}).get(step)
    return _beside(below, columns, kind, target, path=f"{path}{step}.", refused=refused) if below else None
