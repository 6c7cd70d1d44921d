"""Debezium's envelope: what a record says of a row, and where it is in its order; in JSON with and without its schema.

The order is the source's own, as whole numbers to be compared one by one. Times aren't: two changes may have the same.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from kafka_lake.executors.changes.change import DELETE, NOTHING, READ, TRUNCATE, UPSERT, Change, refused
from kafka_lake.executors.changes.connect_types import ConnectTypes, Convert, converted
from kafka_lake.executors.changes.spans import integer, is_null, members, string, time_ms
from kafka_lake.executors.changes.unavailable import Placeholders
from kafka_lake.executors.error_classes import NO_OLD_KEY, NO_ORDER, NOT_A_CHANGE, OTHER_KEY

NAMES = ("db", "schema", "table", "collection")
"""Members of ``source`` that make up the name of a source's table."""
_OPERATIONS = {"c": UPSERT, "u": UPSERT, "r": READ, "d": DELETE, "t": TRUNCATE}
_ENVELOPE = {"before", "after", "source", "op"}
_LARGEST = 2**63 - 1
_NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True)
class RecordKey:
    """What a record's key tells."""

    columns: Collection[str]
    row: bytes


@dataclass(frozen=True)
class Envelope:
    """An envelope, opened.

    Args:
        source: Its ``source``, each member as JSON text.
        before: The row before; None if it isn't told.
        after: The row after; None if it isn't told.
        unavailable: Fields of the row after whose values weren't sent.
    """

    operation: str
    source: Mapping[str, str]
    before: bytes | None
    after: bytes | None
    unavailable: tuple[str, ...] = ()


def change_of(
    key: bytes | None,
    value: bytes | None,
    columns: Collection[str],
    of_record: bool,
    types: ConnectTypes,
    placeholders: Placeholders,
) -> Change:
    """Return what a record of Debezium's in JSON says.

    Args:
        key: The record's key, a JSON object, with or without its schema.
        value: Its value; null for the tombstones that follow deletes.
        columns: Those of the row's key.
        of_record: Whether they are those of the record's key. If not, deletes must tell the row before.
        types: Know the schemas that have been seen.
        placeholders: Know values that weren't sent.
    """
    told = key_row(key, types)
    shown = None if told is None else RecordKey(told.keys(), _text(told))
    change = told_by(shown, None if value is None else _opened(value, types, placeholders), columns, of_record)
    return change if told is None or change.does not in (UPSERT, READ) else _with_key(change, told, columns)


def _with_key(change: Change, key: Mapping[str, str], columns: Collection[str]) -> Change:
    """Return a change whose row has the key's columns: a transform may have put some into the record's key alone.

    Debezium's ByLogicalTableRouter does so with the name of the source's table.
    """
    text = (change.row or b"").decode()
    if all(f'"{name}"' in text for name in columns):
        return change
    row = members(text) or {}
    names = {name.lower() for name in row}
    lacking = {name: key[name] for name in columns if name in key and name.lower() not in names}
    unavailable = tuple(name for name in change.unavailable if name not in lacking)
    return replace(change, row=_text({**row, **lacking}), unavailable=unavailable)


def told_by(
    key: RecordKey | None, envelope: Envelope | Change | None, columns: Collection[str], of_record: bool
) -> Change:
    """Return what a record says, whatever it is written in.

    Args:
        key: What its key tells; None if that is nothing.
        envelope: Its value; what stands for one that is no envelope; None for a record without a value.
        columns: Those of the row's key.
        of_record: Whether they are those of the record's key.
    """
    if of_record and key is not None and set(key.columns) != set(columns):
        return refused(
            OTHER_KEY,
            f"The record's key has the columns {', '.join(sorted(key.columns)) or '(none)'}, the table's key has "
            f"{', '.join(sorted(columns))}.",
        )
    row = None if key is None else key.row
    if envelope is None:
        # One whose delete is there too says nothing new; after a compaction it may be all that is left.
        if not of_record and key is not None and not set(key.columns) >= set(columns):
            return Change(NOTHING, None, None)
        return Change(DELETE, row, None)
    if isinstance(envelope, Change):
        return envelope
    operation = envelope.operation
    does = _OPERATIONS.get(operation)
    if does is None:
        return refused(NOT_A_CHANGE, f"The operation {operation!r} is none of c, u, r, d and t.")
    order = order_of(envelope.source, does == READ)
    if order is None or any(abs(number) > _LARGEST for number in order):
        return refused(NO_ORDER, _no_order(envelope.source))
    at = time_ms(envelope.source.get("ts_ms"))
    source = ".".join(filter(None, (string(envelope.source.get(name)) for name in NAMES)))
    if does == TRUNCATE:
        return Change(does, None, order, at=at, source=source)
    if does == DELETE:
        # The key alone says which row: of the row before, many sources tell no more than that.
        return Change(does, (row if of_record else None) or envelope.before or row, order, at=at, source=source)
    if envelope.after is None:
        return refused(NOT_A_CHANGE, f"The operation is {operation}, and `after` is no row.")
    read = string(envelope.source.get("snapshot")) or "" if does == READ else ""
    change = Change(
        does, envelope.after, order, at=at, snapshot=read, source=source, unavailable=envelope.unavailable
    )  # fmt: skip
    # A connector makes two records of an update that changes the record's key.
    is_same = operation != "u" or (key is not None and set(key.columns) >= set(columns))
    return change if is_same else _with_old_key(change, envelope, of_record)


def _with_old_key(change: Change, envelope: Envelope, of_record: bool) -> Change:
    """Return an update whose record's key doesn't tell the row's key, with the row before."""
    if of_record:
        return refused(
            NO_OLD_KEY,
            "The update's record has no key, so whether it changes the row's key isn't known. Let the connector write "
            "keys, or name the key's columns with key:.",
        )
    if envelope.before is None:
        return refused(
            NO_OLD_KEY,
            "`before` is no row, and the record's key lacks columns of the row's key: whether the update changes that "
            "isn't known. Let updates have the row before (PostgreSQL: REPLICA IDENTITY FULL), or let the record's key "
            "have the columns (message.key.columns).",
        )
    return replace(change, old=envelope.before)


def _opened(value: bytes, types: ConnectTypes, placeholders: Placeholders) -> Envelope | Change:
    try:
        envelope = members(value.decode())
    except UnicodeDecodeError:
        envelope = None
    if envelope is None:
        return refused(NOT_A_CHANGE, "The value is not one JSON object in UTF-8.")
    envelope, schema = _payload(envelope)
    converts = types.of_envelope(schema) if schema is not None else {}
    if envelope is None or "op" not in envelope:
        return refused(NOT_A_CHANGE, no_operation(envelope or {}))
    before, _ = _row(envelope, "before", converts, placeholders)
    after, unavailable = _row(envelope, "after", converts, placeholders)
    operation, source = string(envelope["op"]) or envelope["op"], members(envelope.get("source", "")) or {}
    return Envelope(operation, source, before, after, unavailable=unavailable)


def order_of(source: Mapping[str, str], is_read: bool = False) -> tuple[int, ...] | None:
    """Return where a change is in its source's order; None if its source doesn't tell, or isn't known.

    PostgreSQL: position of the last commit before the change's transaction, then of the change: transactions come in
    the order of their commits, and their changes are interleaved in the log. MySQL and MariaDB: number of the log file,
    position, row. SQL Server: positions of commit and change, and the number of the event. Oracle: change number of the
    commit, then of the change.

    Args:
        source: The envelope's ``source``, each member as JSON text.
        is_read: Whether it is a row of a snapshot: it has what was committed by then.
    """
    connector = string(source.get("connector"))
    if connector == "postgresql":
        numbers = _sequence(string(source.get("sequence")) or "[]")
        lsn = integer(source.get("lsn")) if len(numbers) < 2 or numbers[1] is None else numbers[1]
        commit = numbers[0] if numbers else None
        if lsn is None:
            return None
        # A row that was read is older than the transaction which comes next, wherever that one's changes are.
        return (lsn if commit is None else commit, 0 if is_read else lsn)
    if connector in ("mysql", "mariadb"):
        file = _NUMBER.search(string(source.get("file")) or "")
        position = integer(source.get("pos"))
        row = integer(source.get("row")) or 0
        return None if file is None or position is None else (int(file[1]), position, row)
    if connector == "sqlserver":
        commit_lsn, change_lsn = _lsn(source.get("commit_lsn")), _lsn(source.get("change_lsn"))
        if commit_lsn is None:
            return None
        return (*commit_lsn, *(change_lsn or (0, 0, 0)), integer(source.get("event_serial_no")) or 0)
    if connector == "oracle":
        scn = integer(source.get("scn"))
        commit_scn = integer(source.get("commit_scn"))
        return None if scn is None else (scn if commit_scn is None else commit_scn, scn)
    return None


def _sequence(text: str) -> list[int | None]:
    try:
        sequence = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [integer(json.dumps(each)) for each in sequence] if isinstance(sequence, list) else []


def _lsn(text: str | None) -> tuple[int, ...] | None:
    parts = (string(text) or "").split(":")
    try:
        numbers = tuple(int(part, 16) for part in parts)
    except ValueError:
        return None
    return numbers if len(numbers) == 3 else None


def _payload(envelope: dict[str, str]) -> tuple[dict[str, str] | None, str | None]:
    """Return what a JSON converter wrote with a schema, and that; or the envelope itself."""
    if envelope.keys() == {"schema", "payload"}:
        return members(envelope["payload"]), envelope["schema"]
    return envelope, None


def _row(
    envelope: Mapping[str, str],
    member: str,
    converts: Mapping[str, Mapping[str, Convert]],
    placeholders: Placeholders,
) -> tuple[bytes | None, tuple[str, ...]]:
    """Return a row without the fields whose values weren't sent, and the names of those."""
    text = envelope.get(member)
    if text is None or not text.startswith("{"):
        return None, ()
    may_lack = placeholders.may_be_in(text)
    row = members(text) if may_lack or converts.get(member) else None
    if row is None:
        return text.encode(), ()
    unavailable = tuple(name for name, value in row.items() if may_lack and placeholders.is_json(value))
    told = {name: value for name, value in row.items() if name not in unavailable}
    return _text(converted(told, converts.get(member) or {})), unavailable


def key_row(key: bytes | None, types: ConnectTypes | None = None) -> dict[str, str] | None:
    """Return the columns that a record's key tells, each as JSON text; None if it tells none.

    Args:
        types: Know the schemas that have been seen; without them values are as they stand.

    >>> key_row(b'{"id": 1}'), key_row(b'{"schema": {}, "payload": {"id": 1}}'), key_row(b"1")
    ({'id': '1'}, {'id': '1'}, None)
    """
    try:
        found = members(key.decode()) if key is not None else None
    except UnicodeDecodeError:
        return None
    if found is None:
        return None
    row, schema = _payload(found)
    if row is None or schema is None or types is None:
        return row
    return converted(row, types.of_struct(schema))


def _text(row: Mapping[str, str]) -> bytes:
    return f"{{{', '.join(f'{json.dumps(name)}: {value}' for name, value in row.items())}}}".encode()


def no_operation(names: Collection[str]) -> str:
    """Return what to say of a value that has no operation."""
    return f"The value has no operation: {_what_else(names)}."


def _what_else(names: Collection[str]) -> str:
    if "ddl" in names or "tableChanges" in names:
        return "it is a change of the schema, of Debezium's own topic for those"
    if "status" in names and "id" in names:
        return "it begins or ends a transaction, of Debezium's own topic for those"
    if set(names) == {"ts_ms"}:
        return "it is a heartbeat, of Debezium's own topic for those"
    if names and not set(names) & _ENVELOPE:
        return "it looks like a row; leave out envelope: if a transformation has taken the envelope off"
    return "it is no envelope of Debezium's"


def _no_order(source: Mapping[str, str]) -> str:
    connector = string(source.get("connector"))
    if is_null(source.get("connector")):
        return "The envelope's source doesn't name its connector, so its order isn't known."
    return f"The source of connector {connector} has no position that is known: its order can't be told."
