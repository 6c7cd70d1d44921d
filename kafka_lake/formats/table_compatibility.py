"""Settings that must agree with the rows of a table: its key, the order of changes, and excluded fields."""

from collections.abc import Sequence
from typing import Any

from pyiceberg.table import Table
from pyspark.sql import types as T

from kafka_lake.catalog.positions import row_count
from kafka_lake.catalog.tables import from_json, sources_of, to_json
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.spec.topic_table import TopicTable

KEY_SETTINGS = "kafka-lake.key-settings"
"""A property of keyed tables: the columns of the key, and what tells the order of changes."""


def key_columns(spec: TopicTable, table: Table | None) -> tuple[str, ...]:
    """Return the columns that identify a topic's rows."""
    if spec.key:
        return spec.key
    if not spec.has_envelope:
        return (spec.key_column,) if spec.key_format is not None else ()
    return tuple((from_json(table, KEY_SETTINGS) or {}).get("key", ())) if table is not None else ()


def key_property(spec: TopicTable, columns: Sequence[str]) -> str:
    """Return the key and order that an upsert table's property has."""
    return to_json(_key_settings(spec, columns))


def write_key_property(spec: TopicTable, table: Table) -> None:
    """Write the settings' key and order to an upsert table's property, which `refuse_other_keys` has let pass."""
    settings = key_property(spec, key_columns(spec, table))
    if table.properties.get(KEY_SETTINGS, settings) != settings:
        with table.transaction() as transaction:
            transaction.set_properties({KEY_SETTINGS: settings})


def refuse_other_keys(spec: TopicTable, table: Table) -> None:
    """Stop a run whose settings don't go with the rows that are there.

    An order that is set for the first time goes with them: they have its columns, or are older than any change that
    does. The versions of a history would have to be put in order anew.
    """
    if spec.is_keyed:
        refuse_version_1(table)
    have = from_json(table, KEY_SETTINGS)
    name = ".".join(spec.identifier)
    rebuild = "Restore the setting; or drop the table and fill it again from the topic; or set another table:."
    if have is None:
        if spec.is_keyed and row_count(table):
            raise TableError(
                f"Table {name} has rows that were appended, but its topic now has write: {spec.write}.", rebuild
            )
        return
    if not spec.is_keyed:
        raise TableError(
            f"Table {name} was written with write: {have['write']}, but its topic now has write: append.", rebuild
        )
    if "track" in have:
        have["track"] = sorted(spec.renames.get(name, name) for name in have["track"])
    want = _key_settings(spec, key_columns(spec, table))
    differing = [setting for setting in {**want, **have} if have.get(setting) != want.get(setting)]
    is_first_order = differing == ["order_by"] and not have["order_by"] and not spec.has_versions
    if differing and not is_first_order:
        differences = "; ".join(
            f"{setting} was {_shown(have.get(setting))} and is {_shown(want.get(setting))}" for setting in differing
        )
        raise TableError(f"Table {name} was written with other settings: {differences}.", rebuild)


def refuse_version_1(table: Table) -> None:
    """Refuse a table whose rows can't be deleted one by one."""
    if table.metadata.format_version == 1:
        name = ".".join(table.name())
        raise TableError(
            f"Table {name} has Iceberg's format version 1, which has no row-level deletes.",
            f"Upgrade it with Spark SQL: ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '2').",
        )


def _key_settings(spec: TopicTable, columns: Sequence[str]) -> dict[str, Any]:
    settings = {"write": spec.write, "key": list(columns), "order_by": list(spec.order_by), "envelope": spec.envelope}
    if spec.has_versions:
        settings["track"] = sorted(spec.track)
    # Rows that are marked and rows that go are not to be had in one table.
    return {**settings, "deletes": "soft"} if spec.marks_deletes else settings


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    return (", ".join(value) or "(none)") if isinstance(value, list) else str(value)


def without_excepted(fields: T.StructType, spec: TopicTable) -> T.StructType:
    """Return fields without those that the settings leave out."""
    if not spec.except_columns:
        return fields
    return T.StructType([field for field in fields if field.name not in spec.except_columns])


def refuse_excepted(spec: TopicTable, table: Table) -> None:
    """Stop a run whose table has a column that the settings leave out: its values would stay as they are, or go."""
    if not spec.except_columns:
        return
    sources = sources_of(table)
    found = [
        name
        for name in (field.name for field in table.schema().fields)
        if name in spec.except_columns or sources.get(name) in spec.except_columns
    ]
    if found:
        name = ".".join(spec.identifier)
        drops = "; ".join(f"ALTER TABLE {name} DROP COLUMN {column}" for column in found)
        raise TableError(
            f"Table {name} has the columns {', '.join(found)}, which exclude_fields: leaves out.",
            f"Drop them ({drops}), or remove them from exclude_fields:.",
        )


def refuse_excepted_key(spec: TopicTable, key: Sequence[str]) -> None:
    """Stop a run that leaves out a column of the key, which the records' keys have."""
    if found := [name for name in key if name in spec.except_columns]:
        raise ConfigurationError(
            f"exclude_fields: topic {spec.topic} has {', '.join(found)} in its records' keys, which identify rows.",
            "Remove them from exclude_fields:, or name other columns with write: key:.",
        )
