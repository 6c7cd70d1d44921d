"""Canal's flat messages in JSON, also TiCDC's: what a record says of a row.

Its order is that of Kafka: a message has times, of which two changes may have the same, and no position. Values are
text; those of numbers become numbers by the ``sqlType`` of their columns.
https://github.com/alibaba/canal/blob/master/protocol/src/main/java/com/alibaba/otter/canal/protocol/FlatMessage.java
"""

import re
from collections.abc import Collection, Mapping

from kafka_lake.executors.changes.change import DELETE, NOTHING, TRUNCATE, UPSERT, Change, refused
from kafka_lake.executors.changes.rows_told import ToldRow, change_by, names_of, object_of
from kafka_lake.executors.changes.spans import integer, items, members, string, time_ms
from kafka_lake.executors.error_classes import NOT_A_CHANGE, SEVERAL_ROWS

_TYPES = {"INSERT": UPSERT, "UPDATE": UPSERT, "DELETE": DELETE}
_WHOLE, _OTHER = {-7, -6, -5, 4, 5}, {2, 3, 6, 7, 8}
"""java.sql.Types of whole numbers, and of decimals and fractions."""
_DIGITS = re.compile(r"-?[0-9]+", re.ASCII)
_NUMBER = re.compile(r"(-?)0*([0-9]+)((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)", re.ASCII)


def change_of(key: bytes | None, value: bytes | None, columns: Collection[str], of_record: bool) -> Change:
    """Return what a record says.

    Args:
        key: The record's key; it tells nothing.
        value: Its value. One without a value says nothing.
        columns: Those of the row's key.
        of_record: Whether they are those that records tell.
    """
    if value is None:
        return Change(NOTHING, None, None)
    told = _told(value)
    return told if isinstance(told, Change) else change_by(told, columns, of_record)


def key_columns(key: bytes | None, value: bytes | None) -> tuple[str, ...]:
    """Return the columns of the source's key that a record tells; none if it doesn't."""
    told = None if value is None else _told(value)
    return told.key if isinstance(told, ToldRow) else ()


def _told(value: bytes) -> ToldRow | Change:
    message = object_of(value)
    if message is None:
        return refused(NOT_A_CHANGE, "The value is not one JSON object in UTF-8.")
    kind = string(message.get("type"))
    if kind is None:
        return refused(
            NOT_A_CHANGE, "The value has no type: it is no flat message of Canal's; set canal.mq.flatMessage."
        )
    source = ".".join(filter(None, (string(message.get(name)) for name in ("database", "table"))))
    if kind == "TRUNCATE":
        return Change(TRUNCATE, None, None, at=time_ms(message.get("es")), source=source)
    does = _TYPES.get(kind)
    if does is None:
        return refused(NOT_A_CHANGE, f"The type is {kind}: {_what_else(kind, message)}.")
    rows = [members(each) for each in items(message.get("data", "")) or ()]
    if len(rows) > 1:
        return refused(SEVERAL_ROWS, f"The type is {kind}, and `data` has {len(rows)} rows.")
    if not rows or rows[0] is None:
        return refused(NOT_A_CHANGE, f"The type is {kind}, and `data` has no row.")
    old = [members(each) for each in items(message.get("old", "")) or ()] if does == UPSERT else []
    types = members(message.get("sqlType", "")) or {}
    before = (old[0] if old else None) or {}
    row, key = _typed(rows[0], types), names_of(message.get("pkNames"))
    return ToldRow(does, row, _typed(before, types), key, at=time_ms(message.get("es")), source=source)


def _typed(row: Mapping[str, str], types: Mapping[str, str]) -> dict[str, str]:
    return {name: _value(text, integer(types.get(name))) for name, text in row.items()}


def _value(text: str, kind: int | None) -> str:
    """Return a value as the JSON that it means; what is no number stays as it stands.

    >>> _value('"007"', 4), _value('"1.50"', 3), _value('"x"', 4), _value('"7"', 12), _value("null", 4)
    ('7', '1.50', '"x"', '"7"', 'null')
    """
    told = string(text) if kind in _WHOLE or kind in _OTHER else None
    if told is None or (kind in _WHOLE and not _DIGITS.fullmatch(told)):
        return text
    match = _NUMBER.fullmatch(told)
    return text if match is None else "".join(match.groups())


def _what_else(kind: str, message: Mapping[str, str]) -> str:
    if kind == "TIDB_WATERMARK":
        return "it is a watermark of TiCDC's"
    if message.get("isDdl") == "true":
        return "it is a change of the schema"
    return "it is no change of a row"
