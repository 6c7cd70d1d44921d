"""The history's table: made beside the topic's, given the columns that that one gets, refused where it has a gap."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyiceberg.table import Table
from pyspark.sql import types as T

from kafka_lake.common.errors import TableError
from kafka_lake.common.offsets import Position
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.decode.key_columns import HISTORY
from kafka_lake.ingest.decode.rows import history_columns
from kafka_lake.ingest.keyed.history.shape import Shape
from kafka_lake.ingest.keyed.truncates import Truncate
from kafka_lake.ingest.stage.variant_table import (
    append_nothing,
    create_variant_table,
    has_variant,
    without_variants,
)
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import TableState, row_count
from kafka_lake.lake.tables.create import LOCATION, ensure_table, schema_of
from kafka_lake.lake.tables.properties import from_json, to_json
from kafka_lake.spark.compat.arrow_types import to_arrow_schema

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MODES = {f"write.{each}.mode": "merge-on-read" for each in ("merge", "update", "delete")}


def ensure_history_table(context: Context, columns: T.StructType, key: Sequence[str]) -> Table:
    """Return the history's table, created if there is none, with the columns that it needs.

    Args:
        context: Of the run.
        columns: Those of `Shape.columns`.
        key: Columns by which new files are sorted.

    Raises:
        TableError: If it was written with other settings. It is as it was.
    """
    spec, connections = context.spec, context.connections
    table = connections.catalog.table(spec.history_table)
    if table is None:
        return _created(context, columns, key)
    refuse_no_history(spec, table)
    _track(spec, table)
    name = connections.catalog.spark_name(spec.history_table)
    if connections.spark().table(name).schema.simpleString() != columns.simpleString():
        _evolve(table, spec.renames, without_variants(columns))
    return table


def refuse_left_behind(context: Context) -> None:
    """Stop a run without a history whose table has one: it would lack the run's changes, and look complete.

    Raises:
        TableError: If that is so.
    """
    spec = context.spec
    table = context.connections.catalog.table(spec.history_table)
    if table is None or HISTORY not in table.properties or not row_count(table):
        return
    name = ".".join(spec.history_table)
    raise TableError(
        f"Table {'.'.join(spec.identifier)} has a history, {name}, and history: is false. The history would lack the "
        "changes from now on.",
        f"Set history: true; or drop {name}, or give it another name, if the topic shall have no history any more.",
    )


def refuse_no_history(spec: TopicTable, table: Table | None) -> None:
    """Stop a run whose history would be written to a table that is something else.

    Args:
        spec: The topic's settings.
        table: What is there in the history's place; None if nothing is.

    Raises:
        TableError: If it is no history of ours. It is as it was.
    """
    if table is None or HISTORY in table.properties:
        return
    name = ".".join(spec.history_table)
    raise TableError(
        f"Table {name} is no history, and topic {spec.topic} is set to write one there.",
        f"Give the topic another table with table:, or {name} another name."
        + (" Or set history: true, for a history beside it." if spec.history == "only" else ""),
    )


def refuse_columns(spec: TopicTable, shape: Shape) -> None:
    """Stop a run whose table has columns that are called as those of a history, or lacks those that make versions.

    Raises:
        TableError: If that is so.
    """
    if unknown := [name for name in spec.track if name not in shape.values]:
        raise TableError(
            f"Topic {spec.topic}: track: {', '.join(unknown)} isn't a column of the rows of table "
            f"{'.'.join(spec.identifier)}.",
            f"Its columns are {', '.join(shape.values)}. Mend track:, or declare the column with schema:.",
        )
    taken = {name.lower() for name in history_columns(spec)}
    if found := [field.name for field in shape.table if field.name.lower() in taken]:
        raise TableError(
            f"Table {'.'.join(spec.identifier)} has the columns {', '.join(found)}, and so would its history.",
            "Give them other names with renames:, or set history: false.",
        )


def _track(spec: TopicTable, table: Table) -> None:
    """Stop a run that asks for other versions than the history has; one without rows can still have those.

    Raises:
        TableError: If it does.
    """
    track = [spec.renames.get(name, name) for name in (from_json(table, HISTORY) or {}).get("track", ())]
    if set(track) == set(spec.track):
        return
    if row_count(table):
        was, now = (", ".join(each) or "(all columns)" for each in (track, spec.track))
        name = ".".join(spec.history_table)
        raise TableError(
            f"Table {name} was written with other settings: track was {was} and is {now}.",
            f"Set it back; or drop {name}, which begins again with the rows that the table has by then, and read the "
            "topic again for the versions before: kafka-lake replay.",
        )
    with table.transaction() as transaction:
        transaction.set_properties({HISTORY: _property(spec)})


def refuse_ignored(
    spec: TopicTable, known: Sequence[Truncate], applied: Sequence[Truncate], position: Position
) -> None:
    """Stop a run that passes over a truncate by which a run that died has ended versions.

    Args:
        spec: The topic's settings.
        known: The truncates that the history knows.
        applied: Those that the batch applies, and the newest one that the table has applied.
        position: Which the batch leaves behind.

    Raises:
        TableError: If it does.
    """
    places = {each.place for each in applied}
    if spec.on_truncate == "apply":
        return
    for each in known:
        is_of_topic = (each.topic_id or "") == position.identity.topic_id
        is_passed = is_of_topic and each.offset < position.offsets.get(each.partition, 0)
        if is_passed and not each.is_read and each.place not in places and not _is_older(each, applied):
            raise TableError(
                f"Table {'.'.join(spec.history_table)} has ended versions at the truncate in partition "
                f"{each.partition} at offset {each.offset}, and on_truncate: {spec.on_truncate} would pass over it.",
                "Set on_truncate: apply until a run has passed it; or drop that table, which begins again with the "
                "rows that the topic's table has.",
            )


def _is_older(one: Truncate, others: Sequence[Truncate]) -> bool:
    return any(one.order <= other.order for other in others)


def refuse_gap(spec: TopicTable, history: TableState, table: TableState) -> None:
    """Stop a run where the history lacks changes that the table has.

    Args:
        spec: The topic's settings.
        history: The history.
        table: The topic's table.

    Raises:
        TableError: If it does.
    """
    ours, its = history.position, table.position
    if ours is None or its is None or not ours.identity.same_as(its.identity) or not row_count(history.table):
        return
    behind = [p for p, offset in its.offsets.items() if ours.offsets.get(p, 0) < offset]
    if behind:
        first = behind[0]
        name = ".".join(spec.history_table)
        raise TableError(
            f"Table {name} lacks changes: it has partition {first} up to offset {ours.offsets.get(first, 0)}, the "
            f"table up to {its.offsets[first]}. Runs without history: true have written the table meanwhile, or the "
            "history was rolled back.",
            f"Drop {name}, which begins again with the rows that the table has, or set history: false.",
        )


def _created(context: Context, columns: T.StructType, key: Sequence[str]) -> Table:
    spec, connections = context.spec, context.connections
    sort_by = _sortable(columns, key)
    given = {name: value for name, value in spec.table_properties.items() if name != LOCATION}
    properties = {HISTORY: _property(spec), **_MODES, **given}
    if has_variant(columns):
        own = replace(spec, table=spec.history_table[1], partition_by=(), sort_by=sort_by, table_properties=properties)
        create_variant_table(own, connections, columns, {})
        table = connections.catalog.table(spec.history_table)
        assert table is not None, "it has just been made"
        return table
    return ensure_table(
        connections.catalog,
        spec.history_table,
        schema_of(to_arrow_schema(columns)),
        sort_by=sort_by,
        properties=properties,
        begin=lambda: append_nothing(connections, spec.history_table),
    )


def _property(spec: TopicTable) -> str:
    return to_json({"track": list(spec.track)})


def _sortable(columns: T.StructType, key: Sequence[str]) -> tuple[str, ...]:
    """Return the key's columns, if files can be sorted by them and a sort order can name them."""
    nested = (T.StructType, T.ArrayType, T.MapType)
    is_plain = all(_NAME.fullmatch(name) and not isinstance(columns[name].dataType, nested) for name in key)
    return tuple(key) if is_plain else ()


def _evolve(table: Table, renames: Mapping[str, str], columns: T.StructType) -> None:
    have = {field.name for field in table.schema().fields}
    renamed = {old: new for old, new in renames.items() if old in have and new not in have and new in columns.names}
    with table.transaction() as transaction:
        if renamed:
            with transaction.update_schema() as update:
                for old, new in renamed.items():
                    update.rename_column(old, new)
        with transaction.update_schema() as update:
            update.union_by_name(schema_of(to_arrow_schema(columns)))
