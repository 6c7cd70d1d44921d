"""Maxwell's JSON: what a record says of a row.

Its order is that of Kafka: by default Maxwell tells no position, and a bootstrap holds changes back until it is done.
https://maxwells-daemon.io/dataformat/
"""

from collections.abc import Collection, Mapping

from kafka_lake.executors.changes.change import DELETE, NOTHING, UPSERT, Change, refused
from kafka_lake.executors.changes.rows_told import ToldRow, change_by, names_of, object_of
from kafka_lake.executors.changes.spans import items, members, string, time_ms
from kafka_lake.executors.error_classes import NOT_A_CHANGE

_TYPES = {"insert": UPSERT, "bootstrap-insert": UPSERT, "update": UPSERT, "delete": DELETE}
_BOOTSTRAP = ("bootstrap-start", "bootstrap-complete")
_OF_KEY = "pk."


def change_of(key: bytes | None, value: bytes | None, columns: Collection[str], of_record: bool) -> Change:
    """Return what a record says.

    Args:
        value: Its value. One without a value says nothing new: the delete before it did.
        columns: Those of the row's key.
        of_record: Whether they are those that records tell.
    """
    if value is None:
        return Change(NOTHING, None, None)
    told = _told(key, value)
    return told if isinstance(told, Change) else change_by(told, columns, of_record)


def key_columns(key: bytes | None, value: bytes | None) -> tuple[str, ...]:
    """Return the columns of the source's key that a record tells; none if it doesn't."""
    told = None if value is None else _told(key, value)
    return told.key if isinstance(told, ToldRow) else ()


def _told(key: bytes | None, value: bytes) -> ToldRow | Change:
    message = object_of(value)
    if message is None:
        return refused(NOT_A_CHANGE, "The value is not one JSON object in UTF-8.")
    kind = string(message.get("type"))
    if kind is None:
        return refused(NOT_A_CHANGE, "The value has no type: it is no message of Maxwell's.")
    does = _TYPES.get(kind)
    if does is None:
        return refused(NOT_A_CHANGE, f"The type is {kind}: {_what_else(kind, message)}.")
    row = members(message.get("data", ""))
    if row is None:
        return refused(NOT_A_CHANGE, f"The type is {kind}, and `data` is no JSON object.")
    named = names_of(message.get("primary_key_columns")) or _of_key(key)
    old = members(message.get("old", "")) or {}
    return ToldRow(does, row, old, named, at=time_ms(message.get("ts"), unit=1000))


def _of_key(key: bytes | None) -> tuple[str, ...]:
    """Return the columns of a record's key, as producers write it: a hash, or an array.

    >>> _of_key(b'{"database": "d", "table": "t", "pk.id": 1}'), _of_key(b'["d", "t", [{"id": 1}, {"c": 2}]]')
    (('id',), ('id', 'c'))
    """
    if (found := object_of(key)) is not None:
        return tuple(name.removeprefix(_OF_KEY) for name in found if name.startswith(_OF_KEY))
    try:
        parts = items(key.decode()) if key is not None else None
    except UnicodeDecodeError:
        return ()
    columns = [members(each) or {} for each in items(parts[2]) or ()] if parts is not None and len(parts) == 3 else []
    return tuple(name for each in columns for name in each)


def _what_else(kind: str, message: Mapping[str, str]) -> str:
    if kind in _BOOTSTRAP:
        return "it begins or ends a bootstrap"
    if kind.startswith(("table-", "database-")) or "sql" in message:
        return "it is a change of the schema; Maxwell writes those to a topic of their own by ddl_kafka_topic"
    return "it is no change of a row"
