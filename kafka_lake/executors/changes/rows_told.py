"""What Maxwell and Canal have in common: a row that was changed, its key's columns, and what an update has changed."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kafka_lake.executors.changes.change import KEY_CHANGED, OTHER_KEY, Change, refused
from kafka_lake.executors.changes.spans import members


@dataclass(frozen=True)
class ToldRow:
    """A row as a record tells it.

    Args:
        does: Whether it brings the row or takes it away.
        row: Its columns, each as JSON text: after an insert or update, before a delete.
        old: What an update has changed, as it was before.
        key: Names of the columns of the source's key; empty if the record doesn't tell.
        at: When it was changed, in milliseconds since the epoch; None if the record doesn't tell.
        source: The source's table; empty if the record doesn't tell.
    """

    does: str
    row: Mapping[str, str]
    old: Mapping[str, str]
    key: tuple[str, ...]
    at: int | None = None
    source: str = ""


def object_of(text: bytes | None) -> dict[str, str] | None:
    """Return the members of a JSON object in UTF-8, each as it stands; None if it is none."""
    try:
        return members(text.decode()) if text is not None else None
    except UnicodeDecodeError:
        return None


def names_of(text: str | None) -> tuple[str, ...]:
    """Return the names in a JSON array; none if it is no array."""
    found = json.loads(text) if text is not None else None
    return tuple(map(str, found)) if isinstance(found, list) else ()


def change_by(told: ToldRow, columns: Collection[str], of_record: bool) -> Change:
    """Return what a record says that tells a row.

    Args:
        told: The row.
        columns: Those of the table's key.
        of_record: Whether they are those that records tell.
    """
    if of_record and told.key and set(told.key) != set(columns):
        return refused(
            OTHER_KEY,
            f"The source's key has the columns {', '.join(sorted(told.key))}, the table's key has "
            f"{', '.join(sorted(columns))}.",
        )
    changed = [name for name in columns if name in told.old and told.old[name] != told.row.get(name)]
    if changed:
        was = ", ".join(f"{name} was {told.old[name]} and is {told.row.get(name, 'null')}" for name in changed)
        return refused(KEY_CHANGED, f"The update changes the row's key: {was}.")
    row = ", ".join(f"{json.dumps(name)}: {value}" for name, value in told.row.items())
    return Change(told.does, f"{{{row}}}".encode(), None, at=told.at, source=told.source)
