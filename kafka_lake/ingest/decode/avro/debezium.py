"""Schemas that Debezium writes with, as those of rows, with the types that have a name of Connect's or Debezium's."""

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kafka_lake.errors import SchemaNotSupportedError
from kafka_lake.executors.avro.readers import ISO_TEXTS, VARIABLE_SCALE_DECIMAL
from kafka_lake.executors.changes.avro_spans import Types
from kafka_lake.executors.changes.debezium_avro import row_type
from kafka_lake.ingest.decode.writer import REMEDY, inlined, reader_of
from kafka_lake.kafka.registry import WriterSchema

_NAME = "connect.name"
_LOGICAL: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("int", "io.debezium.time.Date"): "date",
        ("int", "io.debezium.time.Time"): "time-millis",
        ("long", "io.debezium.time.MicroTime"): "time-micros",
        ("long", "io.debezium.time.Timestamp"): "local-timestamp-millis",
        ("long", "io.debezium.time.MicroTimestamp"): "local-timestamp-micros",
        ("long", "io.debezium.time.NanoTimestamp"): "local-timestamp-nanos",
        # Of a column without a time zone; those with one are text.
        ("long", "org.apache.kafka.connect.data.Timestamp"): "local-timestamp-millis",
        **{("string", name): name for name in ISO_TEXTS},
        ("record", VARIABLE_SCALE_DECIMAL): VARIABLE_SCALE_DECIMAL,
    }
)
"""Type and name in Connect → the logical type that a field is read as."""


def of_rows(envelope: WriterSchema) -> WriterSchema:
    """Return the schema of an envelope's rows.

    Args:
        envelope: What Debezium writes values with.

    Raises:
        SchemaNotSupportedError: If it is another schema, or none.
    """
    text = inlined(envelope)
    try:
        types = Types(json.loads(text))
        row = types.resolved(row_type(types))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise SchemaNotSupportedError(f"Avro: {envelope.label} is no envelope of Debezium's. {error}", REMEDY) from None
    reader = reader_of(replace(envelope, text=text, references={}))
    return _of(envelope, reader.inline(row, "", set()))


def of_keys(key: WriterSchema) -> WriterSchema:
    """Return the schema of records' keys, which are rows of the key's columns.

    Raises:
        SchemaNotSupportedError: If it is none.
    """
    return _of(key, json.loads(inlined(key)))


def _of(schema: WriterSchema, node: Any) -> WriterSchema:
    return replace(schema, text=json.dumps(_named(node)), references={})


def _named(node: Any) -> Any:
    """Return a part of a schema, whose types are those that Debezium's names stand for."""
    if isinstance(node, list):
        return [_named(each) for each in node]
    if not isinstance(node, dict):
        return node
    parts = {key: _named(node[key]) for key in ("type", "items", "values") if key in node}
    if "fields" in node:
        parts["fields"] = [{**each, "type": _named(each["type"])} for each in node["fields"]]
    logical = _LOGICAL.get((str(node.get("type")), str(node.get(_NAME))))
    return {**node, **parts, **({"logicalType": logical} if logical else {})}
