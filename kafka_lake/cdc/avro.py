"""Debezium's Avro schemas: types that Connect and Debezium give names become logical types."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kafka_lake.cdc.task.debezium import NOT_AN_ENVELOPE, no_envelope
from kafka_lake.errors import SchemaNotSupportedError
from kafka_lake.formats.avro.task.readers import ISO_TEXTS, VARIABLE_SCALE_DECIMAL
from kafka_lake.formats.registered import REMEDY, Registered, inlined
from kafka_lake.formats.task.framing import SchemaId
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
        # Of columns without a time zone; columns with one are text.
        ("long", "org.apache.kafka.connect.data.Timestamp"): "local-timestamp-millis",
        **{("string", name): name for name in ISO_TEXTS},
        ("record", VARIABLE_SCALE_DECIMAL): VARIABLE_SCALE_DECIMAL,
    }
)
"""Avro type and Connect's name → the logical type."""

Fetch = Callable[[SchemaId], WriterSchema]


def envelopes_and_keys(fetch: Fetch, registry_kind: str) -> tuple[Registered, Registered]:
    """Return decoders of Debezium's values and keys that know no schemas yet."""
    values = Registered("avro", lambda id_: envelope_schema(fetch(id_)), registry_kind)
    return values, Registered("avro", lambda id_: key_schema(fetch(id_)), registry_kind, part="key")


def envelope_schema(schema: WriterSchema) -> WriterSchema:
    """Return the schema of envelopes with logical types."""
    named = _with_types(schema)
    if named.kind != "AVRO":
        return named
    root = json.loads(named.text)
    names = [field["name"] for field in root.get("fields", ())] if _is_record(root) else []
    if "op" not in names:
        raise SchemaNotSupportedError(f"Avro: {schema.label} {NOT_AN_ENVELOPE}. {no_envelope(names)}", REMEDY)
    if not {"before", "after", "source"} <= set(names):
        raise SchemaNotSupportedError(
            f"Avro: {schema.label} {NOT_AN_ENVELOPE}. It has no before, after or source.", REMEDY
        )
    return named


def key_schema(schema: WriterSchema) -> WriterSchema:
    """Return the schema of records' keys with logical types."""
    named = _with_types(schema)
    if named.kind == "AVRO" and not _is_record(json.loads(named.text)):
        raise SchemaNotSupportedError(f"Avro: {schema.label} isn't a record, so it has no key columns.", REMEDY)
    return named


def _with_types(schema: WriterSchema) -> WriterSchema:
    if schema.kind != "AVRO":
        return schema
    return replace(schema, text=json.dumps(_named(json.loads(inlined(schema)))), references={})


def _is_record(root: Any) -> bool:
    return isinstance(root, dict) and root.get("type") == "record"


def _named(node: Any) -> Any:
    """Return a part of a schema with the logical types of Connect's names."""
    if isinstance(node, list):
        return [_named(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    parts = {key: _named(node[key]) for key in ("type", "items", "values") if key in node}
    if "fields" in node:
        parts["fields"] = [{**field, "type": _named(field["type"])} for field in node["fields"]]
    logical = _LOGICAL.get((str(node.get("type")), str(node.get(_NAME))))
    return {**node, **parts, **({"logicalType": logical} if logical else {})}
