"""Debezium's envelope in JSON and Avro: its members are columns, which say what is done to which row and when.

The order is the source's own, as whole numbers to be compared one by one. Times aren't: two changes may have the same.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.cdc.task.change import (
    DELETE,
    NOTHING,
    READ,
    TRUNCATE,
    UPSERT,
    Changes,
    Columns,
    Errors,
    columns_of,
    fields_of,
    joined,
    mask_of,
    only,
    where,
    with_value,
)
from kafka_lake.cdc.task.connect_types import Converter, struct_of, structs_in
from kafka_lake.cdc.task.json_members import JsonMembers, field_names, unwrapped, utf8
from kafka_lake.cdc.task.unavailable import Placeholders, may_be_unavailable
from kafka_lake.formats.json.task.json_texts import JsonTexts
from kafka_lake.formats.json.task.text import NotJsonError, TooDeepError, dumps, parse_object
from kafka_lake.formats.task.decoded import NOTHING as NO_NEWS
from kafka_lake.formats.task.decoded import Decoded, Observed
from kafka_lake.formats.task.error_classes import NO_OLD_KEY, NO_ORDER, NOT_A_CHANGE, OTHER_KEY

_NAMES = ("db", "schema", "table", "collection")
_TEXTS = ("connector", "sequence", "file", "commit_lsn", "change_lsn", "scn", "commit_scn", "snapshot", *_NAMES)
_NUMBERS = ("lsn", "pos", "row", "event_serial_no", "ts_ms")
SOURCE: Mapping[str, str] = {**dict.fromkeys(_TEXTS, "string"), **dict.fromkeys(_NUMBERS, "long")}
"""Members of ``source`` with the time, table and position of a change → their types."""
_OPERATIONS = {"c": UPSERT, "u": UPSERT, "r": READ, "d": DELETE, "t": TRUNCATE}
_ENVELOPE = {"before", "after", "source", "op"}
LAST_MILLISECOND = 253_402_300_799_999
_SOURCE_SHAPE = {**dict.fromkeys(_TEXTS, "VARCHAR"), **dict.fromkeys(_NUMBERS, "BIGINT")}
_SHAPE = {"before": "JSON", "after": "JSON", "op": "VARCHAR", "source": _SOURCE_SHAPE}
_HEADER = 5
IS_NO_ENVELOPE = "is no envelope of Debezium's"
"""In messages about schemas of other values."""
_SEQUENCE = r'^\["?(?P<commit>[0-9]{1,18}|null)"?(?:,\s*"?(?P<change>[0-9]{1,18}|null)"?)?\]$'
_NO_KEY = (
    "The update's record has no key, so whether it changes the row's key isn't known. Let the connector write keys, or "
    "name the key's columns with key:."
)
_NO_BEFORE = (
    "`before` is no row, and the record's key lacks columns of the row's key: whether the update changes that isn't "
    "known. Let updates have the row before (PostgreSQL: REPLICA IDENTITY FULL), or let the record's key have the "
    "columns (message.key.columns)."
)


class Keys:
    """The keys of a batch's records: which of the ``names`` of fields each has, -1 for a record without a key."""

    def __init__(
        self, decoded: Decoded, kinds: np.ndarray, names: Sequence[Collection[str]], wanted: Collection[str]
    ) -> None:
        self.decoded, self._kinds, self._names, self._wanted = decoded, kinds, names, frozenset(wanted)
        self.there = kinds >= 0
        self.same = self._are([set(each) == self._wanted for each in names])
        self.covers = self._are([set(each) >= self._wanted for each in names])

    def differs(self, number: int) -> str:
        """Return what to say of a key that has other fields than the row's key."""
        return other_key("record's", self._names[self._kinds[number]], self._wanted)

    def _are(self, names: Sequence[bool]) -> np.ndarray:
        # The last one is for records without a key.
        found: np.ndarray = np.array([*names, False], dtype=bool)[self._kinds]
        return found


@dataclass(frozen=True)
class _Members:
    """Members of a batch's envelopes; ``after`` decodes rows, ``before`` their keys, for the records in a mask."""

    operations: pa.Array
    source: Columns
    has_after: np.ndarray
    after: Callable[[np.ndarray], Decoded]
    has_before: np.ndarray
    before: Callable[[np.ndarray], Decoded]
    keys: Keys
    seen: Observed
    unavailable: Mapping[int, Sequence[str]]


class Debezium:
    """Opens Debezium's envelopes.

    Args:
        rows: Decodes rows; in Avro whole envelopes.
        fields: Fields of the row's key.
        of_record: Whether they are those of the record's key. If not, deletes must have the row before.
    """

    def __init__(self, rows: Any, keys: Any, fields: Sequence[str], *, of_record: bool, placeholder: str) -> None:
        self._rows, self._keys, self._fields, self._of_record = rows, keys, fields, of_record
        self._placeholders = Placeholders(placeholder)

    def open(self, batch: pa.RecordBatch) -> Changes:
        """Return what records say. One without a value is the tombstone that follows a delete."""
        errors, has_value = Errors(len(batch)), mask_of(batch.column("value"))
        members = self._members(batch, errors)
        operations, source, keys = members.operations, members.source, members.keys
        does = pa.array(list(_OPERATIONS.values())).take(pc.index_in(operations, pa.array(list(_OPERATIONS))))
        if self._of_record:
            errors.refuse(keys.there & ~keys.same, OTHER_KEY, keys.differs)
        errors.refuse(has_value & ~mask_of(does), NOT_A_CHANGE, lambda n: _no_operation(operations[n].as_py()))
        gone = np.full(len(batch), self._of_record) | ~keys.there | keys.covers
        does = pc.if_else(pa.array(has_value), does, pc.if_else(pa.array(gone), DELETE, NOTHING))
        reads = where(pc.equal(does, READ))
        order = _orders(source, reads)
        errors.refuse(has_value & ~mask_of(order), NO_ORDER, lambda n: _no_order(source["connector"][n].as_py()))
        brings = reads | where(pc.equal(does, UPSERT))
        no_row = "The operation is {}, and `after` is no row."
        errors.refuse(brings & ~members.has_after, NOT_A_CHANGE, lambda n: no_row.format(operations[n]))
        # A connector makes two records of an update that changes the record's key.
        moves = where(pc.equal(operations, "u")) & has_value & ~keys.covers & ~errors.failed
        has_old = self._has_old(moves, members.has_before, errors)
        rows = members.after(brings & ~errors.failed)
        errors.add_decoded(rows)
        columns = columns_of(rows)
        self._fill_keys(columns, members, where(pc.equal(does, DELETE)) & ~errors.failed, errors)
        at = source["ts_ms"]
        return Changes(
            does=does,
            columns=columns,
            errors=errors,
            old=members.before(has_old) if has_old.any() else None,
            has_old=has_old,
            order=only(order, has_value),
            at=only(at, where(pc.and_(pc.greater(at, 0), pc.less_equal(at, LAST_MILLISECOND)))),
            snapshot=only(_or_null(source["snapshot"]), reads),
            source=joined_names([source[name] for name in _NAMES]),
            unavailable=members.unavailable,
            seen=rows.seen.and_(members.seen),
        )

    def _members(self, batch: pa.RecordBatch, errors: Errors) -> _Members:
        raise NotImplementedError

    def _fill_keys(self, columns: Columns, members: _Members, deletes: np.ndarray, errors: Errors) -> None:
        """Give deletes the columns of the row's key, and other rows those that they lack and the record's key has.

        A transform may have put some columns into the record's key alone: ByLogicalTableRouter does.
        """
        keys = members.keys
        has_key = keys.there if self._of_record else np.zeros(len(deletes), dtype=bool)
        by_before = deletes & members.has_before & ~has_key
        errors.add_decoded(keys.decoded, deletes & ~by_before)
        parts = [(keys.decoded, keys.there & ~by_before & ~errors.failed)]
        if by_before.any():
            before = members.before(by_before)
            errors.add_decoded(before, by_before)
            parts.append((before, by_before))
        for decoded, mask in parts:
            for name, values in columns_of(decoded).items():
                columns[name] = pc.coalesce(columns[name], only(values, mask))

    def _has_old(self, moves: np.ndarray, has_before: np.ndarray, errors: Errors) -> np.ndarray:
        """Return the updates whose row before tells the old key; refuse those that don't tell it."""
        if self._of_record:
            errors.refuse(moves, NO_OLD_KEY, lambda _: _NO_KEY)
            return np.zeros(len(moves), dtype=bool)
        errors.refuse(moves & ~has_before, NO_OLD_KEY, lambda _: _NO_BEFORE)
        found: np.ndarray = moves & has_before
        return found


class DebeziumJson(Debezium):
    """Debezium's envelope in JSON, with and without the schemas of Connect's JSON converter.

    Args:
        learns_keys: Whether the table has no column yet for some fields of the row's key.
    """

    def __init__(self, *parts: Any, learns_keys: bool, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self._learns_keys = learns_keys
        self._texts = JsonTexts()
        self._json, self._converter = JsonMembers(_SHAPE, self._texts), Converter(self._texts)

    def _members(self, batch: pa.RecordBatch, errors: Errors) -> _Members:
        texts, wrapped = unwrapped(utf8(batch.column("value"), errors))
        members, singly = self._json.read(texts, errors)
        structs = [(group.places, structs_in(group.schema)) for group in wrapped]
        operations, before = members["op"], members["before"]
        errors.refuse(mask_of(texts) & ~mask_of(operations), NOT_A_CHANGE, lambda n: _no_envelope(texts[n].as_py()))
        after, unavailable = self._sent(members["after"])
        keys = self._keys_of(batch)

        def decoded(decoder: Any, rows: pa.Array, part: str, mask: np.ndarray) -> Decoded:
            groups = ((at, known.get(part)) for at, known in structs)
            found: Decoded = decoder.decode(
                with_value(batch, self._converter.in_groups(only(rows, mask), groups, singly))
            )
            return found

        return _Members(
            operations,
            fields_of(members["source"]),
            has_after=where(pc.starts_with(after, "{")),
            after=partial(decoded, self._rows, after, "after"),
            has_before=where(pc.starts_with(before, "{")),
            before=partial(decoded, self._keys, before, "before"),
            keys=keys,
            seen=keys.decoded.seen if self._learns_keys else NO_NEWS,
            unavailable=unavailable,
        )

    def _keys_of(self, batch: pa.RecordBatch) -> Keys:
        texts, wrapped = unwrapped(utf8(batch.column("key")))
        kinds, names = field_names(texts, self._texts)
        texts = only(texts, kinds >= 0)
        groups = ((group.places, struct_of(group.schema)) for group in wrapped)
        texts = self._converter.in_groups(texts, groups, np.zeros(len(batch), dtype=bool))
        return Keys(self._keys.decode(with_value(batch, texts)), kinds, names, self._fields)

    def _sent(self, texts: pa.Array) -> tuple[pa.Array, dict[int, list[str]]]:
        """Return rows without the fields whose values weren't sent, and the names of those."""
        unavailable: dict[int, list[str]] = {}
        some = np.flatnonzero(self._placeholders.may_be_in(texts)).tolist()
        if not some:
            return texts, unavailable
        made = texts.to_pylist()
        for number in some:
            try:
                row = parse_object(made[number].encode())
            except (NotJsonError, TooDeepError):
                # What decodes rows says why.
                continue
            names = [name for name, value in row.items() if self._placeholders.is_one(value)]
            if names:
                unavailable[number] = names
                made[number] = dumps({name: value for name, value in row.items() if name not in names})
        return pa.array(made, pa.string()), unavailable


class DebeziumAvro(Debezium):
    """Debezium's envelope in Avro: columns ``after``, ``before`` (the row's key alone), ``op`` and ``source``.

    Args:
        key_fields: The fields of records' keys, by the ids of their schemas.
        columns: Columns of the table → the fields that feed them.
    """

    def __init__(
        self,
        *parts: Any,
        key_fields: Mapping[int, Sequence[str]],
        columns: Mapping[str, Sequence[str]],
        **settings: Any,
    ) -> None:
        super().__init__(*parts, **settings)
        self._columns, self._key_names = columns, list(key_fields.values())
        self._key_ids = pa.array([id_.to_bytes(_HEADER - 1, "big") for id_ in key_fields], pa.binary())

    def _members(self, batch: pa.RecordBatch, errors: Errors) -> _Members:
        envelopes = self._rows.decode(batch)
        said = pc.replace_substring(envelopes.error_message, "Column after.", "Column ")
        no_change = pc.fill_null(pc.match_substring(said, IS_NO_ENVELOPE), False)
        kinds = pc.if_else(no_change, NOT_A_CHANGE, envelopes.error_class)
        errors.add_decoded(replace(envelopes, error_class=kinds, error_message=said))
        members = columns_of(envelopes)
        after, before = members["after"], members["before"]
        keys = self._keys.decode(with_value(batch, batch.column("key")))
        ids = pc.index_in(pc.binary_slice(batch.column("key"), 1, _HEADER), self._key_ids)
        none = pa.nulls(len(batch), pa.string())

        def decoded(rows: pa.StructArray, mask: np.ndarray) -> Decoded:
            return Decoded(only(rows, mask), np.arange(len(batch)), none, error_message=none)

        return _Members(
            members["op"],
            fields_of(members["source"]),
            has_after=mask_of(after),
            after=partial(decoded, after),
            has_before=mask_of(before),
            before=partial(decoded, before),
            keys=Keys(keys, pc.fill_null(ids, -1).to_numpy(zero_copy_only=False), self._key_names, self._fields),
            seen=replace(envelopes.seen, key=keys.seen if keys.seen else None),
            unavailable=self._unsent(fields_of(after)),
        )

    def _unsent(self, columns: Columns) -> dict[int, list[str]]:
        """Return the fields whose values weren't sent."""
        found: dict[int, list[str]] = {}
        for name, feeds in self._columns.items():
            if may_be_unavailable(columns[name].type):
                for number in np.flatnonzero(self._placeholders.in_column(columns[name])).tolist():
                    found.setdefault(number, []).append(feeds[0])
        return found


def other_key(whose: str, names: Collection[str], wanted: Collection[str]) -> str:
    """Return what to say of a key that has other fields than the row's key."""
    have = ", ".join(sorted(names)) or "(none)"
    return f"The {whose} key has the columns {have}, the table's key has {', '.join(sorted(wanted))}."


def _no_operation(operation: str | None) -> str:
    return f"The operation {operation!r} is none of c, u, r, d and t."


def no_envelope(names: Collection[str]) -> str:
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


def _no_envelope(text: str) -> str:
    try:
        return no_envelope(parse_object(text.encode()))
    except (NotJsonError, TooDeepError) as error:
        return str(error)


def _no_order(connector: str | None) -> str:
    if connector is None:
        return "The envelope's source doesn't name its connector, so its order isn't known."
    return f"The source of connector {connector} has no position that is known: its order can't be told."


def _orders(source: Columns, reads: np.ndarray) -> pa.ListArray:
    """Return where changes are in their source's order; null if the source doesn't tell, or isn't known.

    PostgreSQL: position of the last commit before the change's transaction, then of the change: transactions come in
    the order of their commits, and their changes are interleaved in the log. MySQL and MariaDB: number of the log file,
    position, row. SQL Server: positions of commit and change, and the number of the event. Oracle: change number of the
    commit, then of the change.
    """
    found = pa.nulls(len(reads), pa.list_(pa.int64()))
    for connector in pc.unique(source["connector"]).to_pylist():
        if connector in _ORDERS:
            mine = where(pc.equal(source["connector"], connector))
            found = pc.if_else(pa.array(mine), _lists(_ORDERS[connector](source, reads)), found)
    return found


def _lists(numbers: Sequence[pa.Array]) -> pa.ListArray:
    """Return lists of numbers; null where one is null."""
    count, size = len(numbers[0]), len(numbers)
    missing = ~np.logical_and.reduce([mask_of(each) for each in numbers])
    values = np.stack([pc.fill_null(each, 0).to_numpy(zero_copy_only=False) for each in numbers], axis=1)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * size)
    return pa.ListArray.from_arrays(offsets, pa.array(values.ravel(), pa.int64()), mask=pa.array(missing))


def _postgres(source: Columns, reads: np.ndarray) -> list[pa.Array]:
    sequence = pc.extract_regex(source["sequence"], _SEQUENCE)
    commit, change = (_whole(sequence.field(name)) for name in ("commit", "change"))
    lsn = pc.coalesce(change, source["lsn"])
    # A row that was read is older than the transaction which comes next, wherever that one's changes are.
    return [pc.coalesce(commit, lsn), pc.if_else(pa.array(reads), pc.multiply(lsn, 0), lsn)]


def _mysql(source: Columns, reads: np.ndarray) -> list[pa.Array]:
    file = _whole(pc.extract_regex(source["file"], r"(?P<number>[0-9]{1,18})$").field("number"))
    return [file, source["pos"], pc.fill_null(source["row"], 0)]


def _sqlserver(source: Columns, reads: np.ndarray) -> list[pa.Array]:
    commits = [_lsn(text) for text in source["commit_lsn"].to_pylist()]
    changes = [_lsn(text) or (0, 0, 0) for text in source["change_lsn"].to_pylist()]
    parts = [pa.array([each and each[part] for each in commits], pa.int64()) for part in range(3)]
    parts += [pa.array([each[part] for each in changes], pa.int64()) for part in range(3)]
    return [*parts, pc.fill_null(source["event_serial_no"], 0)]


def _oracle(source: Columns, reads: np.ndarray) -> list[pa.Array]:
    scn = _whole(source["scn"])
    return [pc.coalesce(_whole(source["commit_scn"]), scn), scn]


_ORDERS: Mapping[str, Callable[[Columns, np.ndarray], list[pa.Array]]] = {
    "postgresql": _postgres,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlserver": _sqlserver,
    "oracle": _oracle,
}


def _lsn(text: str | None) -> tuple[int, ...] | None:
    try:
        numbers = tuple(int(part, 16) for part in (text or "").split(":"))
    except ValueError:
        return None
    return numbers if len(numbers) == 3 else None


def _whole(texts: pa.Array) -> pa.Array:
    """Return texts as whole numbers, null for what isn't one."""
    return only(texts, where(pc.match_substring_regex(texts, "^[0-9]{1,18}$"))).cast(pa.int64())


def joined_names(parts: Sequence[pa.Array]) -> pa.Array:
    """Return the full names of tables, of those of their parts that aren't empty; null without any."""
    return _or_null(joined([pc.binary_join_element_wise(".", _or_null(part), "") for part in parts]))


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def key_fields(key: bytes | None) -> tuple[str, ...]:
    """Return the fields of a record's key in JSON; none if it has none.

    >>> key_fields(b'{"id": 1}'), key_fields(b'{"schema": {}, "payload": {"id": 1}}'), key_fields(b"1")
    (('id',), ('id',), ())
    """
    try:
        found = parse_object(key or b"")
    except (NotJsonError, TooDeepError):
        return ()
    row = found["payload"] if found.keys() == {"schema", "payload"} else found
    return tuple(row) if isinstance(row, dict) else ()
