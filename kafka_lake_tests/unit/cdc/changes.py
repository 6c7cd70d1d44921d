"""Records decoded as changes of keyed rows, in this process: what a topic's table would be told of them."""

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from kafka_lake.cdc.changes import Changes
from kafka_lake.formats.columns import Target, spark_type
from kafka_lake.formats.decoder import Decoder
from kafka_lake.formats.json.driver import Json
from kafka_lake.formats.json.task.text import parse
from kafka_lake.formats.json.task.types import kind_of, settled
from kafka_lake.formats.task.decoders import unpack_decoder


def columns(**kinds: T.DataType) -> T.StructType:
    """Return columns by their names and types."""
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


def inferred(*rows: Any) -> T.StructType:
    """Return the columns that rows show, later ones first."""
    found: dict[str, T.StructField] = {}
    for row in rows:
        kind = settled(kind_of(parse(json.dumps(row).encode())), False) if row else None
        fields = spark_type(kind) if kind is not None else T.StructType([])
        assert isinstance(fields, T.StructType)
        found |= {field.name: field for field in fields}
    return T.StructType(list(found.values()))


def records(*pairs: tuple[Any, Any]) -> pa.RecordBatch:
    """Return records of keys and values: bytes, or what JSON is made of."""
    parts = [[value if value is None or isinstance(value, bytes) else json.dumps(value).encode() for value in part]
             for part in zip(*pairs, strict=True)]  # fmt: skip
    return pa.RecordBatch.from_pydict(
        {"key": pa.array(parts[0], pa.binary()), "value": pa.array(parts[1], pa.binary())}
    )


def decoded(
    batch: pa.RecordBatch, envelope: str, target: T.StructType | Target, key: Sequence[str] = ("id",), **settings: Any
) -> Any:
    """Return what records are decoded to.

    Args:
        settings: Others of `Changes`; ``rows`` are JSON by default.
    """
    rows: Decoder = settings.pop("rows", None) or Json()
    more: Mapping[str, Any] = {"of_record": envelope != "none", "order_by": (), "looks": True, **settings}
    changes = Changes(rows=rows, envelope=envelope, key=tuple(key), **more)
    data = changes.for_tasks(target if isinstance(target, Target) else Target(target), None)
    return unpack_decoder(data).decode_records(batch)


def change(found: Any, number: int = 0) -> Any:
    """Return what was decoded of one record."""
    said = found.change[number].as_py()
    none = {"unavailable": [], "old_key": None}
    row = found.rows[number].as_py()
    return SimpleNamespace(
        **{**none, **said},
        row=row,
        error=found.error_class[number].as_py(),
        message=found.error_message[number].as_py(),
    )
