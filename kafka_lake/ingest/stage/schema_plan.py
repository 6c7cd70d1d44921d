"""Which columns a topic's records want, and what that means for its table: the rulebook, applied to one topic."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from pyiceberg.schema import Schema
from pyiceberg.types import StructType
from pyspark.sql import types as T

from kafka_lake.errors import AuditFailedError, TableError
from kafka_lake.ingest.decode.changes import Changes
from kafka_lake.ingest.decode.decoder import Decoder
from kafka_lake.ingest.decode.excepted import without_excepted
from kafka_lake.ingest.decode.key import Keyed
from kafka_lake.ingest.decode.rows import change_columns
from kafka_lake.ingest.decode.target import Target, iceberg_columns, spark_columns
from kafka_lake.ingest.decoding import SchemaPlan
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.evolution.evolve import evolve
from kafka_lake.lake.evolution.model import Evolution, Incoming
from kafka_lake.lake.layout import LAYOUT
from kafka_lake.lake.positions import TableState
from kafka_lake.lake.schema import Change, leaf_paths
from kafka_lake.lake.tables import partition_names, sources_of

_REASONS, _NAMED = 50, 3


def plan_schema(spec: TopicTable, decoder: Decoder, state: TableState | None) -> SchemaPlan:
    """Return the columns that a topic's records are to be decoded into.

    Args:
        decoder: Knows what the records look like.
        state: The table, None if there is none yet.
    """
    if isinstance(decoder, Changes):
        decoder = decoder.rows
    # What a transform makes of the columns is the table's; what it gets has no table to evolve from.
    known = state is not None and spec.transform is None
    current = state.table.schema().as_struct() if state is not None and known else None
    sources = sources_of(state.table) if state is not None and known else {}
    if decoder.fixed is not None:
        _refuse_own_names(spec, decoder.fixed)
        changes = evolve(current, sources, (), spec.policy).changes
        return SchemaPlan(decoder.fixed, tuple(c for c in changes if c.kind == "renamed"))
    adopted = state is not None and known and LAYOUT not in state.table.properties
    about_changes = [field.name for field in change_columns(spec)]
    key_column = {spec.key_column} if isinstance(decoder, Keyed) else set()
    columns = _without(current, {spec.metadata_column, *about_changes} | key_column)
    taken = partition_names(state.table) if state is not None and known else frozenset()
    reserved = [
        *taken,
        *about_changes,
        *(name for name in (spec.metadata_column, spec.key_column if spec.key_format else None) if name),
    ]
    if not isinstance(decoder, Keyed):
        return _joined(
            [
                evolve(
                    columns,
                    sources,
                    incoming=_incoming(decoder.incoming(), spec),
                    policy=spec.policy,
                    reserved=reserved,
                    adopted=adopted,
                )
            ],
            adopted,
        )
    # Apart: a field of the value that has the name of the key's column gets another one.
    values, keys = _incoming(decoder.incoming_values(), spec), _incoming(decoder.incoming_keys())
    about_key = {path: name for path, name in sources.items() if path.split(".")[0] == spec.key_column}
    about_value = {path: name for path, name in sources.items() if path not in about_key}
    return _joined(
        [
            evolve(columns, about_value, incoming=values, policy=spec.policy, reserved=reserved, adopted=adopted),
            evolve(
                _only(current, spec.key_column),
                about_key,
                incoming=keys,
                policy=replace(spec.policy, renames={}),
                reserved=(),
                adopted=adopted,
            ),
        ],
        adopted,
    )


def may_bring_columns(spec: TopicTable, state: TableState) -> TopicTable:
    """Return a table's settings, by which the first records of one that was created without any bring its columns.

    Args:
        spec: The settings, whose `evolution` counts for what comes later.
    """
    beside = {spec.metadata_column, *(field.name for field in change_columns(spec))}
    if spec.key_format is not None:
        beside.add(spec.key_column)
    has_columns = any(field.name not in beside for field in state.table.schema().fields)
    return spec if has_columns else replace(spec, evolution="evolve")


def _refuse_own_names(spec: TopicTable, target: Target) -> None:
    """Stop a run whose schema has columns that are called as those by which a keyed table tells of changes."""
    own = {field.name for field in change_columns(spec)}
    if taken := [field.name for field in target.columns if field.name.lower() in own]:
        raise TableError(
            f"Topic {spec.topic}: its schema has columns {', '.join(taken)}, and write: {spec.write} has its own by "
            "these names.",
            "Leave the fields out with except:, or give them other names in the schema.",
        )


class SchemaRefusedError(AuditFailedError):
    """The records need changes of the table that Iceberg or the topic's settings don't allow. `main` is as it was.

    Args:
        reasons: What is wrong, a clause each.
        changes: The changes that are refused.
    """

    what_to_do: ClassVar[str] = (
        "`kafka-lake schema TOPIC` lists each difference and its rule. Allow the change (`evolution: evolve`), keep "
        "such values apart (`on_incompatible: dead_letter` or `new_column`), declare columns "
        "whose names are data as a map, or change the "
        "producer. [Schema evolution](schema-evolution.md) has all rules."
    )

    def __init__(self, spec: TopicTable, reasons: Sequence[str], remedy: str, changes: Sequence[Change] = ()) -> None:
        super().__init__(
            f"Topic {spec.topic}: the records don't fit table {'.'.join(spec.identifier)}: {'; '.join(reasons)}.",
            f"main is as it was. {remedy}",
        )
        self.reasons = tuple(reasons)
        self.changes = tuple(changes)


def refuse_changes(spec: TopicTable, changes: Sequence[Change]) -> None:
    """Stop a run whose records want what the policy or Iceberg forbids.

    Raises:
        SchemaRefusedError: If there is any such change.
    """
    if not changes:
        return
    reasons = [f"column {c.column}: {c.kind} ({c.before or 'none'} → {c.after or 'none'})" for c in changes[:_REASONS]]
    if len(changes) > _REASONS:
        reasons.append(f"and {len(changes) - _REASONS} more changes")
    if all(c.safe for c in changes):
        remedy = "Set evolution: evolve to allow that, or ignore_new to leave new columns out."
    else:
        remedy = "Give the column another name, mend columns: or transform:, or choose another on_incompatible:."
    raise SchemaRefusedError(spec, reasons, remedy, changes)


def refuse_too_many(spec: TopicTable, before: Schema | None, after: Schema) -> None:
    """Stop a run whose records want more columns than the topic's table may have. Columns that are there are no reason.

    A table that is there gets none where ``evolution`` is ``ignore_new``.

    Args:
        before: The table's schema; None if there is none yet.

    Raises:
        SchemaRefusedError: If there would be too many.
    """
    if before is not None and spec.evolution == "ignore_new":
        return

    def columns(schema: Schema) -> dict[str, None]:
        fields = [field for field in schema.fields if field.name != spec.metadata_column]
        return dict.fromkeys(leaf_paths(StructType(*fields)))

    have = columns(before) if before is not None else {}
    new = [path for path in columns(after) if path not in have]
    if not new or len(have) + len(new) <= spec.max_columns:
        return
    parents = Counter(path.rpartition(".")[0] for path in new)
    parent = max(parents, key=lambda each: parents[each])
    some = [path for path in new if path.rpartition(".")[0] == parent][:_NAMED]
    reason = (
        f"at least {len(new)} new columns and the {len(have)} there are would be more than "
        f"{spec.max_columns} columns; most of them are {f'in {parent}' if parent else 'at the top level'}, as "
        f"{', '.join(some)}"
    )
    leave_out = "" if before is None else "; or set evolution: ignore_new to leave new fields out"
    remedy = (
        'If their names are data, as in {"user_123": …}, declare the column that they are in with columns:, as a map '
        f"or as string; if there are so many columns, declare them all{leave_out}."
    )
    raise SchemaRefusedError(spec, [reason], remedy)


def _incoming(schemas: Iterable[tuple[str, T.StructType]], spec: TopicTable | None = None) -> list[Incoming]:
    wanted = schemas if spec is None else [(label, without_excepted(fields, spec)) for label, fields in schemas]
    return [Incoming(label, iceberg_columns(fields)) for label, fields in wanted]


def _joined(parts: list[Evolution], adopted: bool) -> SchemaPlan:
    columns = T.StructType([field for part in parts for field in spark_columns(part.columns)])
    sources: dict[str, str] = {}
    also: dict[str, tuple[str, ...]] = {}
    for part in parts:
        sources |= part.sources
        also |= part.also
    changes = [change for part in parts for change in part.changes]
    return SchemaPlan(
        target=Target(columns, sources, also, any_case=adopted),
        renamed=tuple(c for c in changes if c.kind == "renamed"),
        ignored=tuple(c for part in parts for c in part.ignored),
        refused=tuple(c for part in parts for c in part.refused),
        conflicts=tuple(c for part in parts for c in part.conflicts),
    )


def _without(columns: StructType | None, names: Collection[str | None]) -> StructType | None:
    return columns and StructType(*[f for f in columns.fields if f.name not in names])


def _only(columns: StructType | None, name: str) -> StructType | None:
    return columns and StructType(*[f for f in columns.fields if f.name == name])
