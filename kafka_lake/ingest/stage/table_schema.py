"""The topic's table gets the columns that its rows need: made with them, or given them by the topic's policy."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from kafka_lake.errors import TableError
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decode.by_schema.envelopes import Envelopes
from kafka_lake.ingest.decode.by_schema.registered import Registered
from kafka_lake.ingest.decode.changes import Changes
from kafka_lake.ingest.decode.choose import decoder_of
from kafka_lake.ingest.decode.decoder import Decoder, decoded
from kafka_lake.ingest.decode.excepted import refuse_excepted_key
from kafka_lake.ingest.decode.json.columns import nullable_all
from kafka_lake.ingest.decode.key import Keyed
from kafka_lake.ingest.decode.key_columns import KEYED, keep_keyed_property, keyed_property
from kafka_lake.ingest.decode.rows import change_columns, row_type, rows_of
from kafka_lake.ingest.decode.target import Target, documented
from kafka_lake.ingest.decoding import SchemaPlan
from kafka_lake.ingest.stage.schema_plan import plan_schema, refuse_changes, refuse_too_many
from kafka_lake.ingest.stage.variant_table import (
    append_nothing,
    create_variant_table,
    has_variant,
    without_variants,
)
from kafka_lake.ingest.topic_table import TopicTable, WriteMode
from kafka_lake.lake.layout import evolve_layout
from kafka_lake.lake.names import Names
from kafka_lake.lake.positions import TableState
from kafka_lake.lake.schema import Change, needed_changes
from kafka_lake.lake.tables import apply_changes, ensure_table, schema_of
from kafka_lake.spark.compat.arrow_types import to_arrow_schema

_REASONS = 3


def create_table(spec: TopicTable, connections: Connections, records: DataFrame, undecodable: bool = False) -> None:
    """Create the topic's table with the columns, partition spec, sort order and properties its settings ask for.

    Args:
        records: What shows the columns, where no schema does.
        undecodable: Whether the records must not be looked at; the columns that they would show come later.

    Raises:
        TableError: If no record shows any column.
    """
    decoder = decoder_of(spec, connections, None)
    if not undecodable:
        decoder = decoder.look(records)
    elif decoder.fixed is None:
        # What it would be given has no columns yet.
        spec = replace(spec, transform=None)
    if isinstance(decoder, Changes):
        refuse_excepted_key(spec, decoder.key)
    want = plan_schema(spec, decoder, None)
    refuse_changes(spec, want.refused)
    if not want.target.columns.fields and not ((spec.start == "latest" or undecodable) and spec.metadata_column):
        # A table that begins at the latest offset must hold its position before there are records; columns follow.
        raise TableError(
            f"Topic {spec.topic}: no record of the {records.count()} looked at shows a field by format {spec.format} "
            f"that isn't null, so there are no columns to make a table of.{_why_none(decoder)}",
            "Check format:, declare the columns with columns: or a schema of format:, or wait for other records.",
        )
    kind = row_columns(spec, decoder, records, want.target)
    if has_variant(kind):
        create_variant_table(spec, connections, kind, _keyed_properties(spec, decoder))
        return
    schema = schema_of(arrow_columns(kind, want.target.columns, write=spec.write))
    if decoder.fixed is None:
        refuse_too_many(spec, None, schema)
    ensure_table(
        connections.catalog,
        spec.identifier,
        schema=schema,
        partition_by=spec.partition_by,
        sort_by=spec.sort_by,
        properties={**_keyed_properties(spec, decoder), **spec.table_properties},
        sources=_sources(spec, want),
        renames=spec.renames,
        begin=lambda: append_nothing(connections, spec.identifier),
    )


def _why_none(decoder: Decoder) -> str:
    """Return in a sentence why schemas of the records can't be read; empty if none is like that."""
    known = _registered_values(decoder)
    reasons = list(dict.fromkeys(known.refused.values())) if known else []
    return "".join(f" {reason[0].upper()}{reason[1:].rstrip('.')}." for reason in reasons[:_REASONS])


def _keyed_properties(spec: TopicTable, decoder: Decoder) -> Mapping[str, str]:
    """Return what a keyed table has beside others: its key, and that merges write what is new and what is gone."""
    if not isinstance(decoder, Changes):
        return {}
    modes = {f"write.{each}.mode": "merge-on-read" for each in ("merge", "update", "delete")}
    return {KEYED: keyed_property(spec, decoder.key), **modes}


def row_columns(spec: TopicTable, decoder: Decoder, records: DataFrame, target: Target) -> T.StructType:
    """Return the columns of a table's rows; asked of Spark only where a transform has a say."""
    if spec.transform is None:
        return row_type(target.columns, spec)
    kind: T.StructType = rows_of(decoded(records, decoder, target, spec.max_record_bytes), spec).schema
    return kind


def arrow_columns(rows: T.StructType, declared: T.StructType, *, write: WriteMode = "append") -> Any:
    """Return the Arrow schema of a table's rows, required where the declared columns are, and with their comments."""
    # Whether a column is required is the declaration's to say, not the optimizer's.
    # A history has rows of deletes, which tell their key alone.
    required = {f.name for f in declared if not f.nullable and write != "history"}
    kinds = [T.StructField(f.name, nullable_all(f.dataType), f.name not in required) for f in rows]
    return documented(to_arrow_schema(T.StructType(kinds)), declared)


def evolve_table(
    spec: TopicTable, state: TableState, rows: T.StructType, want: SchemaPlan, declared: bool
) -> tuple[Change, ...]:
    """Give the table what the rows need, and return what the topic's policy leaves out of it."""
    table = state.table
    _refuse_new_variants(spec, table, rows)
    rows = without_variants(rows)
    if want.renamed:
        apply_changes(table, table.schema(), want.renamed)
    schema = schema_of(arrow_columns(rows, want.target.columns, write=spec.write))
    changes = needed_changes(table.schema(), schema)
    # The policy is about what records bring, not about what the settings ask for.
    asked = {field.name for field in change_columns(spec)}
    brought = [c for c in changes if c.column.split(".")[0] not in asked]
    refuse_changes(spec, [c for c in changes if not c.safe or (c in brought and spec.evolution == "freeze")])
    ignored = tuple(c for c in brought if c.kind == "added" and spec.evolution == "ignore_new")
    if not declared:
        refuse_too_many(spec, table.schema(), schema)
    apply_changes(table, schema, [c for c in changes if c not in ignored], _sources(spec, want))
    evolve_layout(table, spec.partition_by, spec.sort_by, spec.renames)
    if spec.is_keyed:
        keep_keyed_property(spec, table)
    return ignored


def _refuse_new_variants(spec: TopicTable, table: Table, rows: T.StructType) -> None:
    """Stop a run whose rows have a variant that the table has no column for: PyIceberg can't add one."""
    there = Names(field.name for field in table.schema().fields)
    if new := [f.name for f in rows if isinstance(f.dataType, T.VariantType) and f.name not in there]:
        name = ".".join(spec.identifier)
        raise TableError(
            f"Topic {spec.topic}: columns: has {new[0]} of type variant, and table {name} was made without it.",
            f"Add it by Spark: ALTER TABLE {name} ADD COLUMN {new[0]} variant. That takes format version 3.",
        )


def _sources(spec: TopicTable, want: SchemaPlan) -> Mapping[str, str] | None:
    # A transform's result has columns of its own: where its input came from says nothing about them.
    return None if spec.transform else want.target.sources


def _registered_values(decoder: Decoder) -> Registered | None:
    """Return what decodes values by the schemas of a registry; None if nothing does."""
    part = decoder.rows if isinstance(decoder, Changes) else decoder
    part = part.value if isinstance(part, Keyed) else part
    if isinstance(part, Envelopes):
        return part.of_values()
    return part if isinstance(part, Registered) else None
