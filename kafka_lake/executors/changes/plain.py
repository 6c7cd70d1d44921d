"""Records without an envelope: the value is the row, and a record without a value takes its key's row away."""

import json
from collections.abc import Sequence

from kafka_lake.executors.changes.change import DELETE, UPSERT, Change
from kafka_lake.executors.changes.spans import members


def change_of(key: bytes | None, value: bytes | None, columns: Sequence[str]) -> Change:
    """Return what a record says.

    Args:
        key: The record's key; counts for records without a value.
        columns: The key's columns. Where there is one, a key that is no JSON object is its value.
    """
    if value is not None:
        return Change(UPSERT, value, None)
    return Change(DELETE, row_of(key, columns), None)


def row_of(key: bytes | None, columns: Sequence[str]) -> bytes | None:
    """Return as JSON the key columns that a record's key tells; None if it doesn't.

    >>> row_of(b'{"id": 1}', ["id"]), row_of(b"17", ["id"]), row_of(b"a b", ["name"])
    (b'{"id": 1}', b'{"id": 17}', b'{"name": "a b"}')
    >>> row_of(b"17", ["a", "b"]) is None
    True
    """
    if key is None:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    if (told := members(text)) is not None:
        # What else the key tells is no column of the row.
        names = {name.lower() for name in columns}
        kept = {name: value for name, value in told.items() if name.lower() in names}
        return f"{{{', '.join(f'{json.dumps(name)}: {value}' for name, value in kept.items())}}}".encode()
    if len(columns) != 1:
        return None
    name = json.dumps(columns[0], ensure_ascii=False)
    return f"{{{name}: {_scalar(text)}}}".encode()


def _scalar(text: str) -> str:
    """Return a text as a JSON scalar: itself if it is one, as it stands."""
    try:
        found = json.loads(text, parse_constant=_no_json) if text == text.strip() else None
    except (ValueError, RecursionError):
        found = None
    return text if isinstance(found, str | int | float | bool) else json.dumps(text, ensure_ascii=False)


def _no_json(name: str) -> None:
    raise ValueError(name)
