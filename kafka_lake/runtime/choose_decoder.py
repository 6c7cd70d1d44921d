"""The decoder that a topic's settings ask for, with what the table remembers of schemas."""

from functools import cache

from pyspark.sql import types as T

from kafka_lake.catalog.positions import TableState
from kafka_lake.cdc.avro import envelopes_and_keys
from kafka_lake.cdc.changes import Changes
from kafka_lake.formats.base import Part, PartName
from kafka_lake.formats.columns import Target
from kafka_lake.formats.decoder import Decoder, Keyed
from kafka_lake.formats.registered import Registered, remembered
from kafka_lake.formats.table_compatibility import key_columns
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.ddl import parsed_ddl
from kafka_lake.spec.topic_table import TopicTable


def decoder_of(spec: TopicTable, connections: Connections, state: TableState | None) -> Decoder:
    """Return the decoder of a topic's records."""
    value = _part(spec, "value", connections, state)
    keys: Registered | None = None
    if spec.has_envelope and value.format.has_schema_ids:
        envelopes, keys = envelopes_and_keys(value.fetch_schema())
        rows: Decoder = envelopes.remembering(remembered(state, "value"))
        keys = keys.remembering(remembered(state, "key"))
    else:
        rows = value.format.decoder(value)
    if spec.key_format is not None:
        key = _part(spec, "key", connections, state)
        rows = Keyed(rows, key.format.decoder(key), spec.key_column, of_tombstones=spec.is_keyed)
    if not spec.is_keyed:
        return rows
    columns = key_columns(spec, state.table if state else None)
    return Changes(
        rows=rows,
        keys=keys,
        envelope=spec.envelope,
        key=columns,
        order_by=spec.order_by,
        of_record=spec.has_envelope and not spec.key,
        looks=spec.has_envelope or bool(value.format.is_json and columns and columns != (spec.key_column,)),
        max_columns=spec.max_columns,
        left_out=None if spec.ignores_new_fields else spec.except_columns,
    )


def _part(spec: TopicTable, name: PartName, connections: Connections, state: TableState | None) -> Part:
    ddl = spec.schema if name == "value" else spec.key_schema
    declared = None
    if ddl is not None:
        declared = Target(_parsed(ddl), {}, _renamed(spec), any_case=True)
    return Part(spec, name, declared, state, registry=connections.registry)


@cache
def _parsed(ddl: str) -> T.StructType:
    return T.StructType.fromJson(parsed_ddl(ddl))


def _renamed(spec: TopicTable) -> dict[str, tuple[str, ...]]:
    """Return the names that columns had before renames, by the path of each column."""
    before: dict[str, tuple[str, ...]] = {}
    for old, new in spec.renames.items():
        parent, dot, name = old.rpartition(".")
        path = f"{parent}{dot}{new}"
        before[path] = (*before.get(path, ()), name)
    return before
