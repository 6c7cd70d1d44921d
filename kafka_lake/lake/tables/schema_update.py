"""Safe changes of a table's schema, and which fields feed its columns, in one commit of its metadata."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from kafka_lake.lake.schema import Change
from kafka_lake.lake.tables.properties import SOURCES, from_json, to_json


def sources_of(table: Table) -> dict[str, str]:
    """Return which field feeds which column where their names differ, as `apply_changes` wrote it: path → field.

    Raises:
        TableError: If the table has that property and it can't be read.
    """
    found = from_json(table, SOURCES) or {}
    return {str(path): str(name) for path, name in found.items()}


def partition_names(table: Table) -> frozenset[str]:
    """Return the names that no new column may have, since partition fields have them, in whatever spec."""
    schema = table.schema()
    fields = [field for spec in table.specs().values() for field in spec.fields]
    return frozenset(f.name for f in fields if f.name != schema.find_column_name(f.source_id))


def apply_changes(
    table: Table, target: Schema, changes: Sequence[Change], sources: Mapping[str, str] | None = None
) -> None:
    """Evolve the table by safe changes, in one commit of its metadata; ``main`` stays where it is.

    Args:
        target: The schema that asks for the changes, by the columns' names after any renames; in any case.
        changes: What to do, safe changes only. Columns that are renamed or widened keep their field ids and places.
        sources: Which field feeds which column where their names differ, column path → field; written to the table
            if it says otherwise. None leaves what it says.

    Raises:
        CommitFailedException: If somebody else changed the schema meanwhile. Nothing is changed then.
    """
    knows_sources = sources is None or dict(sources) == sources_of(table)
    if not changes and knows_sources:
        return
    with table.transaction() as transaction:
        if not knows_sources:
            transaction.set_properties({SOURCES: to_json(sources or {})})
        if changes:
            with transaction.update_schema(case_sensitive=False) as update:
                _update(update, table.schema(), target, changes)


def _update(update: UpdateSchema, current: Schema, target: Schema, changes: Sequence[Change]) -> None:
    # PyIceberg finds columns by the names that they had at the beginning.
    renamed = {change.column: change.after for change in changes if change.kind == "renamed"}
    were = {_key(now): was for now, was in _columns(current.as_struct(), renamed, (), ())} | {(): ()}
    for change in changes:
        if change.kind == "renamed":
            update.rename_column(change.column, change.after)
            continue
        parents, field = _find(target.as_struct(), change.column)
        if change.kind == "added":
            update.add_column((*were[_key(parents)], field.name), field.field_type, field.doc)
        elif change.kind == "widened":
            update.update_column(were[_key((*parents, field.name))], field.field_type)
        else:
            update.make_column_optional(were[_key((*parents, field.name))])


def _key(path: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in path)


def _columns(
    kind: IcebergType, renamed: Mapping[str, str], now: tuple[str, ...], was: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the path of every column within a type: as it will be, and as it is."""
    for field in _inner_fields(kind):
        before = (*was, field.name)
        after = (*now, renamed.get(".".join(before), field.name))
        yield after, before
        yield from _columns(field.field_type, renamed, after, before)


def _inner_fields(kind: IcebergType) -> Sequence[NestedField]:
    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return (kind.element_field,)
    return (kind.key_field, kind.value_field) if isinstance(kind, MapType) else ()


def _find(kind: IcebergType, path: str) -> tuple[tuple[str, ...], NestedField]:
    """Return the names that lead to a column, and the column; names may have dots themselves."""
    for field in _inner_fields(kind):
        if path == field.name:
            return (), field
        if path.startswith(f"{field.name}."):
            try:
                parents, found = _find(field.field_type, path.removeprefix(f"{field.name}."))
            except KeyError:
                continue
            return (field.name, *parents), found
    raise KeyError(path)
