"""The columns of a keyed table's key, and what must stay as it is while the table has rows."""

from collections.abc import Sequence
from typing import Any

from pyiceberg.table import Table

from kafka_lake.catalog.layout import from_json, to_json
from kafka_lake.catalog.positions import row_count
from kafka_lake.errors import TableError
from kafka_lake.spec.topic_table import TopicTable

KEYED = "kafka-lake.keyed"
"""A property of keyed tables: the columns of the key, and what tells the order of changes."""


def key_columns(spec: TopicTable, table: Table | None) -> tuple[str, ...]:
    """Return the columns that identify a topic's rows."""
    if spec.key:
        return spec.key
    if spec.envelope == "none":
        return (spec.key_column,) if spec.key_format is not None else ()
    return tuple((from_json(table, KEYED) or {}).get("key", ())) if table is not None else ()


def keyed_property(spec: TopicTable, columns: Sequence[str]) -> str:
    """Return the key and order that an upsert table's property has."""
    return to_json(_told(spec, columns))


def keep_keyed_property(spec: TopicTable, table: Table) -> None:
    """Write the settings' key and order to an upsert table's property, which `refuse_other_keys` has let pass."""
    told = keyed_property(spec, key_columns(spec, table))
    if table.properties.get(KEYED, told) != told:
        with table.transaction() as transaction:
            transaction.set_properties({KEYED: told})


def refuse_other_keys(spec: TopicTable, table: Table) -> None:
    """Stop a run whose settings don't go with the rows that are there.

    An order that is set for the first time goes with them: they have its columns, or are older than any change that
    does. The versions of a history would have to be put in order anew.
    """
    have = from_json(table, KEYED)
    name = ".".join(spec.identifier)
    rebuild = (
        "Set it back; or drop the table and materialize it anew from the topic; or give the topic another table with "
        "table:."
    )
    if have is None:
        if spec.is_keyed and row_count(table):
            raise TableError(
                f"Table {name} has rows that were appended, and its topic is set to {spec.write}.", rebuild
            )
        return
    if not spec.is_keyed:
        raise TableError(
            f"Table {name} was written with write: {have['write']}, and its topic is set to append.", rebuild
        )
    if "track" in have:
        have["track"] = sorted(spec.renames.get(name, name) for name in have["track"])
    want = _told(spec, key_columns(spec, table))
    differing = [each for each in {**want, **have} if have.get(each) != want.get(each)]
    is_first_order = differing == ["order_by"] and not have["order_by"] and spec.write == "upsert"
    if differing and not is_first_order:
        said = "; ".join(f"{each} was {_shown(have.get(each))} and is {_shown(want.get(each))}" for each in differing)
        raise TableError(f"Table {name} was written with other settings: {said}.", rebuild)


def _told(spec: TopicTable, columns: Sequence[str]) -> dict[str, Any]:
    told = {"write": spec.write, "key": list(columns), "order_by": list(spec.order_by), "envelope": spec.envelope}
    if spec.write == "history":
        told["track"] = sorted(spec.track)
    # Rows that are marked and rows that go are not to be had in one table.
    return {**told, "deletes": "soft"} if spec.deletes == "soft" else told


def _shown(value: Any) -> str:
    if value is None:
        return "another one"
    return (", ".join(value) or "(none)") if isinstance(value, list) else str(value)
