"""What Maxwell and Canal have in common: a row that was changed, its key's columns, and what an update has changed."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kafka_lake.executors.changes.change import Change, refused
from kafka_lake.executors.changes.spans import members
from kafka_lake.executors.error_classes import OTHER_KEY


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
        columns: Those of the table's key.
        of_record: Whether they are those that records tell.
    """
    if of_record and told.key and set(told.key) != set(columns):
        return refused(
            OTHER_KEY,
            f"The source's key has the columns {', '.join(sorted(told.key))}, the table's key has "
            f"{', '.join(sorted(columns))}.",
        )
    # The names of a source's own key are those of its rows; a column that the settings name may be called otherwise.
    may_change = bool(told.old) and (not of_record or any(name in told.old for name in columns))
    old = _text({**told.row, **told.old}) if may_change else None
    return Change(told.does, _text(told.row), None, at=told.at, source=told.source, old=old)


def _text(row: Mapping[str, str]) -> bytes:
    return f"{{{', '.join(f'{json.dumps(name)}: {value}' for name, value in row.items())}}}".encode()
