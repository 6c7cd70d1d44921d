"""Schema changes at commit time: the columns that the records need, and how the table gets them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import StructType
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from kafka_lake.catalog.layout import check_layout
from kafka_lake.catalog.positions import CREATED, TableState
from kafka_lake.catalog.tables import apply_changes, ensure_table, partition_names, schema_of, sources_of
from kafka_lake.engine.interop import to_arrow_schema
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import AuditFailedError, ConfigurationError, TableError
from kafka_lake.formats.columns import Target, documented, iceberg_columns, nullable_all, spark_columns
from kafka_lake.formats.decoder import Decoder, decoded
from kafka_lake.formats.rows import change_columns, is_counted, row_type, transformed
from kafka_lake.formats.table_compatibility import (
    KEY_SETTINGS,
    key_property,
    refuse_excepted_key,
    without_excepted,
    write_key_property,
)
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.decoding import SchemaPlan, decoder_of
from kafka_lake.schema.evolution.evolve import evolve
from kafka_lake.schema.evolution.model import Evolution, Incoming
from kafka_lake.schema.rules import Change, leaf_paths, needed_changes
from kafka_lake.spec.topic_table import TopicTable, WriteMode

_REASONS, _NAMED = 50, 3


def plan_schema(spec: TopicTable, decoder: Decoder, state: TableState | None) -> SchemaPlan:
    """Return the columns to decode a topic's records into.

    Raises:
        ConfigurationError: If a setting names the column of another field.
        TableError: If a column of `order_by` is neither a number nor a time.
    """
    plan = _plan(spec, decoder, state)
    _check_names(spec, plan.target)
    orders = [field for field in plan.target.columns if field.name in spec.order_by]
    if wrong := [
        f"{field.name} ({field.dataType.simpleString()})" for field in orders if not is_counted(field.dataType)
    ]:
        raise TableError(
            f"Topic {spec.topic}: order_by: {', '.join(wrong)} of table {'.'.join(spec.identifier)} is neither a time "
            "nor a number.",
            "Declare the column as timestamp, timestamp_ntz, date, bigint or decimal, in columns: or in the topic's "
            "schema, and fill a new table; or order by another column.",
        )
    return plan


def _check_names(spec: TopicTable, target: Target) -> None:
    """Refuse settings whose names mean another column, or another field, than they say."""
    columns = {name.lower(): name for name in target.columns.fieldNames()}
    filled = {name: column for column, name in target.sources.items() if "." not in column}
    table = ".".join(spec.identifier)

    def refused(problem: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(f"Topic {spec.topic}: {problem}", f"main is unchanged. {remedy}")

    nulls = () if isinstance(spec.ignore_null_updates, bool) else spec.ignore_null_updates
    for name in (*spec.key, *spec.order_by, *spec.track, *nulls):
        meant = columns.get(name.lower())
        if meant is not None and name in filled and (other := target.sources.get(meant, meant)) != name:
            raise refused(
                f"write: names {name!r}, but column {meant} of table {table} is filled by the field {other!r}, and the "
                f"field {name!r} fills column {filled[name]}.",
                f"Name {filled[name]}, or leave one of the fields out with exclude_fields:.",
            )
    for name in nulls:
        if (meant := columns.get(name.lower(), name)) != name and name not in filled:
            raise refused(
                f"write: ignore_null_updates: table {table} has no column {name!r}, but {meant!r}.", f"Write {meant}."
            )
    for name in [name for rule in spec.named_rules for name in rule.columns] if spec.transform is None else ():
        if (column := filled.get(name, name)) != name and name.split(".")[0].lower() not in columns:
            raise refused(
                f"rules: table {table} has no column {name!r}; the field {name!r} fills column {column}.",
                f"Write {column}.",
            )
    for name in spec.except_columns:
        if name in target.sources:
            field = target.sources[name]
            raise refused(
                f"exclude_fields: names the column {name}, which field {field!r} would fill.",
                f"Write {field!r} instead.",
            )


def refuse_unknown(spec: TopicTable, target: Target) -> None:
    """Refuse to create a table without the columns of `key` and `order_by`; raises TableError.

    Without any columns of values, the records show nothing yet.
    """
    columns = target.columns.fieldNames()
    if not set(columns) - {spec.key_column}:
        return
    for setting, named in (("key", spec.key), ("order_by", spec.order_by)):
        if (unknown := next((name for name in named if name not in columns), None)) is not None:
            raise TableError(
                f"Topic {spec.topic}: write: {setting}: table {'.'.join(spec.identifier)} would have no column "
                f"{unknown!r}: none of the examined records has a value in this field. The columns would be "
                f"{', '.join(columns)}.",
                f"No table was created. Correct {setting}:, or wait for records with the field. Fields inside objects "
                "aren't columns.",
            )


def _plan(spec: TopicTable, decoder: Decoder, state: TableState | None) -> SchemaPlan:
    rows = decoder.of_rows
    # With a transform, the table has the transform's columns; those of the records evolve from nothing.
    table = state.table if state is not None and spec.transform is None else None
    current = table.schema().as_struct() if table else None
    sources = sources_of(table) if table else {}
    if rows.fixed is not None:
        _refuse_own_names(spec, rows.fixed)
        changes = evolve(current, sources, (), spec.policy).changes
        return SchemaPlan(rows.fixed, tuple(change for change in changes if change.kind == "renamed"))
    is_adopted = table is not None and CREATED not in table.properties
    own = [METADATA_COLUMN, *(field.name for field in change_columns(spec))]
    reserved = [*(partition_names(table) if table else ()), *filter(None, own)]
    if spec.key_format:
        reserved.append(spec.key_column)
    if not rows.has_key_column:
        evolution = evolve(
            _columns(current, lambda name: name not in own),
            sources,
            incoming=_incoming(decoder.incoming(), spec),
            policy=spec.policy,
            reserved=reserved,
            adopted=is_adopted,
        )
        return _schema_plan([evolution], is_adopted)
    # Key and value evolve separately: a field of the value with the key column's name gets another name.
    key_sources = {path: name for path, name in sources.items() if path.split(".")[0] == spec.key_column}
    of_value = evolve(
        _columns(current, lambda name: name not in (*own, spec.key_column)),
        {path: name for path, name in sources.items() if path not in key_sources},
        incoming=_incoming(rows.incoming_values(), spec),
        policy=spec.policy,
        reserved=reserved,
        adopted=is_adopted,
    )
    of_key = evolve(
        _columns(current, lambda name: name == spec.key_column),
        key_sources,
        incoming=_incoming(rows.incoming_keys()),
        policy=replace(spec.policy, renames={}),
        reserved=(),
        adopted=is_adopted,
    )
    return _schema_plan([of_value, of_key], is_adopted)


def may_bring_columns(spec: TopicTable, state: TableState) -> TopicTable:
    """Return settings that allow new columns if the table was created before there were records."""
    own = {METADATA_COLUMN, *(field.name for field in change_columns(spec))}
    if spec.key_format is not None:
        own.add(spec.key_column)
    has_columns = any(field.name not in own for field in state.table.schema().fields)
    return spec if has_columns else replace(spec, evolution="evolve")


def _refuse_own_names(spec: TopicTable, target: Target) -> None:
    """Refuse a declared schema with the name of a column that the table adds itself."""
    own = {field.name for field in change_columns(spec)}
    if taken := [field.name for field in target.columns if field.name.lower() in own]:
        raise TableError(
            f"Topic {spec.topic}: its schema has columns {', '.join(taken)}, and write: {spec.write} reserves these "
            "names.",
            "Leave the fields out with exclude_fields:, or give them other names in the schema.",
        )


class SchemaRefusedError(AuditFailedError):
    """The records need table changes that Iceberg or the topic's settings don't allow. `main` is unchanged."""

    what_to_do: ClassVar[str] = (
        "`kafka-lake schema TOPIC` lists each difference and its rule. Allow the change (`evolution: evolve`), move "
        "values that don't fit (`on_incompatible: dead_letter` or `new_column`), declare a map if field names are "
        "data, or change the producer. See [schema evolution](schema-evolution.md)."
    )

    def __init__(self, spec: TopicTable, reasons: Sequence[str], remedy: str, changes: Sequence[Change] = ()) -> None:
        super().__init__(
            f"Topic {spec.topic}: the records don't fit table {'.'.join(spec.identifier)}: {'; '.join(reasons)}.",
            f"main is unchanged. {remedy}",
        )
        self.reasons = tuple(reasons)
        self.changes = tuple(changes)


def refuse_changes(spec: TopicTable, changes: Sequence[Change]) -> None:
    """Refuse changes that the policy or Iceberg forbids."""
    if not changes:
        return
    reasons = [f"column {c.column}: {c.kind} ({c.before or 'none'} → {c.after or 'none'})" for c in changes[:_REASONS]]
    if len(changes) > _REASONS:
        reasons.append(f"and {len(changes) - _REASONS} more changes")
    if all(c.safe for c in changes):
        remedy = "Set evolution: evolve to allow these changes, or ignore_new to leave new columns out."
    else:
        remedy = "Give the column another name, correct columns: or transform:, or choose another on_incompatible:."
    raise SchemaRefusedError(spec, reasons, remedy, changes)


def refuse_too_many(spec: TopicTable, before: Schema | None, after: Schema) -> None:
    """Refuse a schema with more than ``max_columns`` columns."""
    if before is not None and spec.ignores_new_fields:
        return

    def columns(schema: Schema) -> dict[str, None]:
        fields = [field for field in schema.fields if field.name != METADATA_COLUMN]
        return dict.fromkeys(leaf_paths(StructType(*fields)))

    have = columns(before) if before is not None else {}
    new = [path for path in columns(after) if path not in have]
    if not new or len(have) + len(new) <= spec.max_columns:
        return
    parents = Counter(path.rpartition(".")[0] for path in new)
    parent = max(parents, key=lambda name: parents[name])
    some = [path for path in new if path.rpartition(".")[0] == parent][:_NAMED]
    reason = (
        f"at least {len(new)} new columns and the {len(have)} existing columns would be more than {spec.max_columns} "
        f"columns; most of them are {f'in {parent}' if parent else 'at the top level'}, such as {', '.join(some)}"
    )
    leave_out = "" if before is None else "; or set evolution: ignore_new to leave new fields out"
    remedy = (
        'If their names are data, as in {"user_123": …}, declare the column that contains them as a map or '
        f"as string, with columns:. Otherwise declare all columns{leave_out}."
    )
    raise SchemaRefusedError(spec, [reason], remedy)


def _incoming(schemas: Iterable[tuple[str, T.StructType]], spec: TopicTable | None = None) -> list[Incoming]:
    wanted = schemas if spec is None else [(label, without_excepted(fields, spec)) for label, fields in schemas]
    return [Incoming(label, iceberg_columns(fields)) for label, fields in wanted]


def _schema_plan(parts: list[Evolution], any_case: bool) -> SchemaPlan:
    columns = T.StructType([field for part in parts for field in spark_columns(part.columns)])
    sources: dict[str, str] = {}
    also: dict[str, tuple[str, ...]] = {}
    for part in parts:
        sources |= part.sources
        also |= part.also
    changes = [change for part in parts for change in part.changes]
    return SchemaPlan(
        target=Target(columns, sources, also, any_case=any_case),
        renamed=tuple(c for c in changes if c.kind == "renamed"),
        ignored=tuple(c for part in parts for c in part.ignored),
        refused=tuple(c for part in parts for c in part.refused),
        conflicts=tuple(c for part in parts for c in part.conflicts),
    )


def _columns(columns: StructType | None, keeps: Callable[[str], bool]) -> StructType | None:
    return columns and StructType(*[field for field in columns.fields if keeps(field.name)])


def create_table(spec: TopicTable, connections: Connections, records: DataFrame, undecodable: bool = False) -> None:
    """Create the topic's table with the columns, partition spec, sort order and properties its settings ask for."""
    decoder = decoder_of(spec, connections, None)
    if not undecodable:
        decoder = decoder.inspect(records)
    elif decoder.fixed is None:
        # There are no columns yet for the transform.
        spec = replace(spec, transform=None)
    refuse_excepted_key(spec, decoder.row_key)
    plan = plan_schema(spec, decoder, None)
    refuse_changes(spec, plan.refused)
    if not undecodable:
        refuse_unknown(spec, plan.target)
    if not plan.target.columns.fields and not (spec.start == "latest" or undecodable):
        # A table that starts at the latest offset exists for its position before there are records.
        raise TableError(
            f"Topic {spec.topic}: none of the {records.count()} examined records has a non-null field in format "
            f"{spec.format}, so the table would have no columns.{_why_none(decoder)}",
            "Check format:, declare the columns with columns: or a schema of format:, or wait for other records.",
        )
    kind = row_columns(spec, decoder, records, plan.target)
    schema = schema_of(arrow_columns(kind, plan.target.columns, write=spec.write))
    if decoder.fixed is None:
        refuse_too_many(spec, None, schema)
    ensure_table(
        connections.catalog,
        spec.identifier,
        schema=schema,
        partition_by=spec.partition_by,
        sort_by=spec.sort_by,
        properties={**_keyed_properties(spec, decoder), **spec.table_properties},
        sources=_sources(spec, plan),
        renames=spec.renames,
    )


def _why_none(decoder: Decoder) -> str:
    """Return why schemas of the records can't be read, as sentences."""
    reasons = decoder.unreadable_schemas()[:_NAMED]
    return "".join(f" {reason[0].upper()}{reason[1:].rstrip('.')}." for reason in reasons)


def _keyed_properties(spec: TopicTable, decoder: Decoder) -> Mapping[str, str]:
    """Return the properties of an upsert table or a history: its key, and merge-on-read."""
    if not spec.is_keyed:
        return {}
    modes = {f"write.{operation}.mode": "merge-on-read" for operation in ("merge", "update", "delete")}
    return {KEY_SETTINGS: key_property(spec, decoder.row_key), **modes}


def row_columns(spec: TopicTable, decoder: Decoder, records: DataFrame, target: Target) -> T.StructType:
    """Return the columns of a table's rows, from Spark if there is a transform."""
    if spec.transform is None:
        return row_type(target.columns, spec)
    kind: T.StructType = transformed(decoded(records, decoder, target, spec.max_record_bytes), spec).schema
    return kind


def arrow_columns(rows: T.StructType, declared: T.StructType, *, write: WriteMode = "append") -> Any:
    """Return the Arrow schema of a table's rows, required where the declared columns are, and with their comments."""
    # Spark's nullability depends on its optimizer. In a history, deletes have only their key.
    required = {f.name for f in declared if not f.nullable and write != "history"}
    kinds = [T.StructField(f.name, nullable_all(f.dataType), f.name not in required) for f in rows]
    return documented(to_arrow_schema(T.StructType(kinds)), declared)


def allowed_changes(
    spec: TopicTable, table: Table, rows: T.StructType, *, plan: SchemaPlan, declared: bool
) -> tuple[Schema, list[Change], tuple[Change, ...]]:
    """Return the schema of the rows, the changes that the table needs for it, and those that the policy leaves out."""
    schema = schema_of(arrow_columns(rows, plan.target.columns, write=spec.write))
    changes = needed_changes(table.schema(), schema)
    # The policy is for columns of the records, not for columns that the write mode adds.
    own = {field.name for field in change_columns(spec)}
    of_records = [c for c in changes if c.column.split(".")[0] not in own]
    refuse_changes(spec, [c for c in changes if not c.safe or (c in of_records and spec.is_frozen)])
    ignored = tuple(c for c in of_records if c.kind == "added" and spec.ignores_new_fields)
    if not declared:
        refuse_too_many(spec, table.schema(), schema)
    return schema, [c for c in changes if c not in ignored], ignored


def evolve_table(
    spec: TopicTable, state: TableState, rows: T.StructType, plan: SchemaPlan, declared: bool
) -> tuple[Change, ...]:
    """Give the table the columns that the rows need, and return those that the policy leaves out."""
    table = state.table
    if plan.renamed:
        apply_changes(table, table.schema(), plan.renamed)
    schema, changes, ignored = allowed_changes(spec, table, rows, plan=plan, declared=declared)
    apply_changes(table, schema, changes, _sources(spec, plan))
    check_layout(table, spec.partition_by, spec.sort_by, spec.renames)
    if spec.is_keyed:
        write_key_property(spec, table)
    return ignored


def _sources(spec: TopicTable, plan: SchemaPlan) -> Mapping[str, str] | None:
    # The columns of a transform's result have no sources.
    return None if spec.transform else plan.target.sources
