"""Debezium's envelope in JSON and Avro: operation, row, key and order of each change.

The order is the position in the source's log, as a list of integers. Timestamps aren't unique, so they order nothing.
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
    ChangeEvents,
    Columns,
    Errors,
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
from kafka_lake.formats.task.decoded import NOTHING as NOTHING_OBSERVED
from kafka_lake.formats.task.decoded import Decoded, Observed
from kafka_lake.formats.task.error_classes import NO_OLD_KEY, NO_ORDER, NOT_A_CHANGE, OTHER_KEY
from kafka_lake.formats.task.framing import SchemaId
from kafka_lake.formats.task.registered import headers_of

_NAMES = ("db", "schema", "table", "collection")
_TEXTS = ("connector", "sequence", "file", "commit_lsn", "change_lsn", "scn", "commit_scn", "snapshot", *_NAMES)
_NUMBERS = ("lsn", "pos", "row", "event_serial_no", "ts_ms")
SOURCE: Mapping[str, str] = {**dict.fromkeys(_TEXTS, "string"), **dict.fromkeys(_NUMBERS, "long")}
"""Types of the members of ``source`` with the time, table and position of a change."""
_OPERATIONS = {"c": UPSERT, "u": UPSERT, "r": READ, "d": DELETE, "t": TRUNCATE}
_ENVELOPE = {"before", "after", "source", "op"}
LAST_MILLISECOND = 253_402_300_799_999
_SOURCE_SHAPE = {**dict.fromkeys(_TEXTS, "VARCHAR"), **dict.fromkeys(_NUMBERS, "BIGINT")}
_SHAPE = {"before": "JSON", "after": "JSON", "op": "VARCHAR", "source": _SOURCE_SHAPE}
NOT_AN_ENVELOPE = "is not an envelope of Debezium"
"""Part of the message about schemas of other values."""
_SEQUENCE = r'^\["?(?P<commit>[0-9]{1,18}|null)"?(?:,\s*"?(?P<change>[0-9]{1,18}|null)"?)?\]$'
_NO_KEY = (
    "The update's record has no key, so it is unknown whether it changes the row's key. Let the connector write "
    "keys, or "
    "name the key's columns with key:."
)
_NO_BEFORE = (
    "`before` isn't a row, and the record's key lacks columns of the row's key: it is unknown whether the update "
    "changes the key. Let updates have the row before (PostgreSQL: REPLICA IDENTITY FULL), or let the record's key "
    "have the "
    "columns (message.key.columns)."
)


class Keys:
    """The keys of a batch's records.

    Args:
        kinds: The index in ``names`` of each key's fields; -1 for a record without a key.
    """

    def __init__(
        self, decoded: Decoded, kinds: np.ndarray, names: Sequence[Collection[str]], wanted: Collection[str]
    ) -> None:
        self.decoded, self._kinds, self._names, self._wanted = decoded, kinds, names, frozenset(wanted)
        self.exist = kinds >= 0
        # The last element is for records without a key.
        self.match = np.array([*(set(fields) == self._wanted for fields in names), False], dtype=bool)[kinds]
        self.cover = np.array([*(set(fields) >= self._wanted for fields in names), False], dtype=bool)[kinds]

    def mismatch(self, number: int) -> str:
        """Return the message about a key whose fields aren't those of the row's key."""
        return other_key("record's", self._names[self._kinds[number]], self._wanted)


@dataclass(frozen=True)
class _Members:
    """Members of a batch's envelopes; ``after`` decodes rows, ``before`` their keys, for the records of a mask."""

    operations: pa.Array
    source: Columns
    has_after: np.ndarray
    after: Callable[[np.ndarray], Decoded]
    has_before: np.ndarray
    before: Callable[[np.ndarray], Decoded]
    keys: Keys
    observed: Observed
    unavailable: Mapping[int, Sequence[str]]


class Debezium:
    """Reads Debezium's envelopes.

    Args:
        rows: Decodes rows; in Avro, whole envelopes.
        of_record: Whether the row's key is the record's key. Otherwise deletes need the row before.
    """

    def __init__(self, rows: Any, keys: Any, fields: Sequence[str], *, of_record: bool) -> None:
        self._rows, self._keys, self._fields, self._of_record = rows, keys, fields, of_record
        self._placeholders = Placeholders()

    def open(self, batch: pa.RecordBatch) -> ChangeEvents:
        """Return the change events of records. One without a value is the tombstone after a delete."""
        errors, has_value = Errors(len(batch)), mask_of(batch.column("value"))
        members = self._members(batch, errors)
        codes, source, keys = members.operations, members.source, members.keys
        operations = pa.array(list(_OPERATIONS.values())).take(pc.index_in(codes, pa.array(list(_OPERATIONS))))
        if self._of_record:
            errors.reject(keys.exist & ~keys.match, OTHER_KEY, keys.mismatch)
        errors.reject(has_value & ~mask_of(operations), NOT_A_CHANGE, lambda n: _no_operation(codes[n].as_py()))
        deletes = np.full(len(batch), self._of_record) | ~keys.exist | keys.cover
        operations = pc.if_else(pa.array(has_value), operations, pc.if_else(pa.array(deletes), DELETE, NOTHING))
        reads = where(pc.equal(operations, READ))
        order = _orders(source, reads)
        errors.reject(has_value & ~mask_of(order), NO_ORDER, lambda n: _no_order(source["connector"][n].as_py()))
        upserts = reads | where(pc.equal(operations, UPSERT))
        no_row = "The operation is {}, and `after` isn't a row."
        errors.reject(upserts & ~members.has_after, NOT_A_CHANGE, lambda n: no_row.format(codes[n]))
        # A connector writes two records for an update that changes the record's key.
        may_move = where(pc.equal(codes, "u")) & has_value & ~keys.cover & ~errors.failed
        has_old_key = self._has_old_key(may_move, members.has_before, errors)
        rows = members.after(upserts & ~errors.failed)
        errors.add_decoded(rows)
        columns = fields_of(rows.rows)
        self._fill_keys(columns, members, where(pc.equal(operations, DELETE)) & ~errors.failed, errors)
        at = source["ts_ms"]
        return ChangeEvents(
            operations=operations,
            columns=columns,
            errors=errors,
            old_key=members.before(has_old_key) if has_old_key.any() else None,
            has_old_key=has_old_key,
            order=only(order, has_value),
            at=only(at, where(pc.and_(pc.greater(at, 0), pc.less_equal(at, LAST_MILLISECOND)))),
            snapshot=only(_or_null(source["snapshot"]), reads),
            source=joined_names([source[name] for name in _NAMES]),
            unavailable=members.unavailable,
            observed=rows.seen.and_(members.observed),
        )

    def _members(self, batch: pa.RecordBatch, errors: Errors) -> _Members:
        raise NotImplementedError

    def _fill_keys(self, columns: Columns, members: _Members, deletes: np.ndarray, errors: Errors) -> None:
        """Fill in the key columns of deletes, and columns of the record's key that a row lacks.

        A transformation may move columns into the record's key: ByLogicalTableRouter does.
        """
        keys = members.keys
        has_key = keys.exist if self._of_record else np.zeros(len(deletes), dtype=bool)
        by_before = deletes & members.has_before & ~has_key
        errors.add_decoded(keys.decoded, deletes & ~by_before)
        parts = [(keys.decoded, keys.exist & ~by_before & ~errors.failed)]
        if by_before.any():
            before = members.before(by_before)
            errors.add_decoded(before, by_before)
            parts.append((before, by_before))
        for decoded, mask in parts:
            for name, values in fields_of(decoded.rows).items():
                columns[name] = pc.coalesce(columns[name], only(values, mask))

    def _has_old_key(self, may_move: np.ndarray, has_before: np.ndarray, errors: Errors) -> np.ndarray:
        """Return the updates whose row before has the old key; reject those without it."""
        if self._of_record:
            errors.reject(may_move, NO_OLD_KEY, lambda _: _NO_KEY)
            return np.zeros(len(may_move), dtype=bool)
        errors.reject(may_move & ~has_before, NO_OLD_KEY, lambda _: _NO_BEFORE)
        has_old_key: np.ndarray = may_move & has_before
        return has_old_key


class DebeziumJson(Debezium):
    """Debezium's envelope in JSON, with or without the schemas of Connect's JSON converter.

    Args:
        learns_keys: Whether the table lacks columns for fields of the row's key.
    """

    def __init__(self, *parts: Any, learns_keys: bool, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self._learns_keys = learns_keys
        self._texts = JsonTexts()
        self._json, self._converter = JsonMembers(_SHAPE, self._texts), Converter(self._texts)

    def _members(self, batch: pa.RecordBatch, errors: Errors) -> _Members:
        texts, groups = unwrapped(utf8(batch.column("value"), errors))
        members, one_by_one = self._json.read(texts, errors)
        structs = [(group.places, structs_in(group.schema)) for group in groups]
        operations, before = members["op"], members["before"]
        errors.reject(mask_of(texts) & ~mask_of(operations), NOT_A_CHANGE, lambda n: _no_envelope(texts[n].as_py()))
        after, unavailable = self._available(members["after"])
        keys = self._keys_of(batch)

        def decoded(decoder: Any, rows: pa.Array, part: str, mask: np.ndarray) -> Decoded:
            of_part = ((places, known.get(part)) for places, known in structs)
            converted = self._converter.in_groups(only(rows, mask), of_part, one_by_one)
            result: Decoded = decoder.decode_records(with_value(batch, converted))
            return result

        return _Members(
            operations,
            fields_of(members["source"]),
            has_after=where(pc.starts_with(after, "{")),
            after=partial(decoded, self._rows, after, "after"),
            has_before=where(pc.starts_with(before, "{")),
            before=partial(decoded, self._keys, before, "before"),
            keys=keys,
            observed=keys.decoded.seen if self._learns_keys else NOTHING_OBSERVED,
            unavailable=unavailable,
        )

    def _keys_of(self, batch: pa.RecordBatch) -> Keys:
        texts, groups = unwrapped(utf8(batch.column("key")))
        kinds, names = field_names(texts, self._texts)
        structs = ((group.places, struct_of(group.schema)) for group in groups)
        texts = self._converter.in_groups(only(texts, kinds >= 0), structs, np.zeros(len(batch), dtype=bool))
        return Keys(self._keys.decode_records(with_value(batch, texts)), kinds, names, self._fields)

    def _available(self, texts: pa.Array) -> tuple[pa.Array, dict[int, list[str]]]:
        """Return rows without the fields whose values weren't sent, and the names of these fields."""
        unavailable: dict[int, list[str]] = {}
        candidates = np.flatnonzero(self._placeholders.may_be_in(texts)).tolist()
        if not candidates:
            return texts, unavailable
        rows = texts.to_pylist()
        for number in candidates:
            try:
                row = parse_object(rows[number].encode())
            except (NotJsonError, TooDeepError):
                # The decoder of rows reports it.
                continue
            names = [name for name, value in row.items() if self._placeholders.matches(value)]
            if names:
                unavailable[number] = names
                rows[number] = dumps({name: value for name, value in row.items() if name not in names})
        return pa.array(rows, pa.string()), unavailable


class DebeziumAvro(Debezium):
    """Debezium's envelope in Avro, as columns ``after``, ``before`` (the row's key), ``op`` and ``source``.

    Args:
        key_fields: The fields of records' keys by schema id.
    """

    def __init__(
        self,
        *parts: Any,
        key_fields: Mapping[SchemaId, Sequence[str]],
        columns: Mapping[str, Sequence[str]],
        **settings: Any,
    ) -> None:
        super().__init__(*parts, **settings)
        self._columns, self._key_names = columns, list(key_fields.values())
        self._key_numbers = {id_: number for number, id_ in enumerate(key_fields)}

    def _members(self, batch: pa.RecordBatch, errors: Errors) -> _Members:
        envelopes = self._rows.decode_records(batch)
        messages = pc.replace_substring(envelopes.error_message, "Column after.", "Column ")
        no_change = pc.fill_null(pc.match_substring(messages, NOT_AN_ENVELOPE), False)
        classes = pc.if_else(no_change, NOT_A_CHANGE, envelopes.error_class)
        errors.add_decoded(replace(envelopes, error_class=classes, error_message=messages))
        members = fields_of(envelopes.rows)
        after, before = members["after"], members["before"]
        keys, frames = self._keys.decode_framed(batch.column("key"), headers_of(batch))
        kinds = np.full(len(batch), -1)
        for id_, places in frames:
            kinds[places] = self._key_numbers.get(id_, -1)
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
            keys=Keys(keys, kinds, self._key_names, self._fields),
            observed=replace(envelopes.seen, key=keys.seen if keys.seen else None),
            unavailable=self._unavailable(fields_of(after)),
        )

    def _unavailable(self, columns: Columns) -> dict[int, list[str]]:
        """Return the fields whose values weren't sent, by record number."""
        unavailable: dict[int, list[str]] = {}
        for name, feeds in self._columns.items():
            if may_be_unavailable(columns[name].type):
                for number in np.flatnonzero(self._placeholders.in_column(columns[name])).tolist():
                    unavailable.setdefault(number, []).append(feeds[0])
        return unavailable


def other_key(owner: str, names: Collection[str], wanted: Collection[str]) -> str:
    """Return the message about a key whose fields aren't those of the row's key."""
    have = ", ".join(sorted(names)) or "(none)"
    return f"The {owner} key has the columns {have}, the table's key has {', '.join(sorted(wanted))}."


def _no_operation(operation: str | None) -> str:
    return f"The operation is {operation!r}, not one of c, u, r, d and t."


def no_envelope(names: Collection[str]) -> str:
    """Return the message about a value without an operation."""
    return f"The value has no operation: {_what_else(names)}."


def _what_else(names: Collection[str]) -> str:
    if "ddl" in names or "tableChanges" in names:
        return "it is a change of the schema; Debezium has a topic for those"
    if "status" in names and "id" in names:
        return "it begins or ends a transaction; Debezium has a topic for those"
    if set(names) == {"ts_ms"}:
        return "it is a heartbeat; Debezium has a topic for those"
    if names and not set(names) & _ENVELOPE:
        return "it looks like a row; leave out envelope: if a transformation has taken the envelope off"
    return f"it {NOT_AN_ENVELOPE}"


def _no_envelope(text: str) -> str:
    try:
        return no_envelope(parse_object(text.encode()))
    except (NotJsonError, TooDeepError) as error:
        return str(error)


def _no_order(connector: str | None) -> str:
    if connector is None:
        return "The envelope's source doesn't name its connector, so its order is unknown."
    return f"The source of connector {connector} has no known position, so its order is unknown."


def _orders(source: Columns, reads: np.ndarray) -> pa.ListArray:
    """Return the positions of changes in their source's log; null if the connector or the position isn't known.

    PostgreSQL: position of the last commit before the change's transaction, then of the change, since transactions are
    ordered by commit and interleaved in the log. MySQL and MariaDB: number of the log file, position, row. SQL Server:
    positions of commit and change, number of the event. Oracle: change numbers of commit and change.
    """
    orders = pa.nulls(len(reads), pa.list_(pa.int64()))
    for connector in pc.unique(source["connector"]).to_pylist():
        if connector in _ORDERS:
            mask = pc.equal(source["connector"], connector)
            orders = pc.if_else(mask, _lists(_ORDERS[connector](source, reads)), orders)
    return orders


def _lists(numbers: Sequence[pa.Array]) -> pa.ListArray:
    """Return rows of numbers as lists; null if one of them is null."""
    count, size = len(numbers[0]), len(numbers)
    missing = ~np.logical_and.reduce([mask_of(column) for column in numbers])
    values = np.stack([pc.fill_null(column, 0).to_numpy(zero_copy_only=False) for column in numbers], axis=1)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * size)
    return pa.ListArray.from_arrays(offsets, pa.array(values.ravel(), pa.int64()), mask=pa.array(missing))


def _postgres(source: Columns, reads: np.ndarray) -> list[pa.Array]:
    sequence = pc.extract_regex(source["sequence"], _SEQUENCE)
    commit, change = (_integers(sequence.field(name)) for name in ("commit", "change"))
    lsn = pc.coalesce(change, source["lsn"])
    # A row of a snapshot is older than the next transaction, wherever the changes of that are in the log.
    return [pc.coalesce(commit, lsn), pc.if_else(pa.array(reads), pc.multiply(lsn, 0), lsn)]


def _mysql(source: Columns, reads: np.ndarray) -> list[pa.Array]:
    file = _integers(pc.extract_regex(source["file"], r"(?P<number>[0-9]{1,18})$").field("number"))
    return [file, source["pos"], pc.fill_null(source["row"], 0)]


def _sqlserver(source: Columns, reads: np.ndarray) -> list[pa.Array]:
    commits = [_lsn(text) for text in source["commit_lsn"].to_pylist()]
    changes = [_lsn(text) or (0, 0, 0) for text in source["change_lsn"].to_pylist()]
    parts = [pa.array([lsn and lsn[part] for lsn in commits], pa.int64()) for part in range(3)]
    parts += [pa.array([lsn[part] for lsn in changes], pa.int64()) for part in range(3)]
    return [*parts, pc.fill_null(source["event_serial_no"], 0)]


def _oracle(source: Columns, reads: np.ndarray) -> list[pa.Array]:
    scn = _integers(source["scn"])
    return [pc.coalesce(_integers(source["commit_scn"]), scn), scn]


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


def _integers(texts: pa.Array) -> pa.Array:
    """Convert texts to integers; null if one isn't an integer."""
    return only(texts, where(pc.match_substring_regex(texts, "^[0-9]{1,18}$"))).cast(pa.int64())


def joined_names(parts: Sequence[pa.Array]) -> pa.Array:
    """Return the full names of tables, without empty parts; null if all parts are empty."""
    return _or_null(joined([pc.binary_join_element_wise(".", _or_null(part), "") for part in parts]))


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def key_fields(key: bytes | None) -> tuple[str, ...]:
    """Return the fields of a record's key in JSON; empty if it isn't a JSON object.

    >>> key_fields(b'{"id": 1}'), key_fields(b'{"schema": {}, "payload": {"id": 1}}'), key_fields(b"1")
    (('id',), ('id',), ())
    """
    try:
        row = parse_object(key or b"")
    except (NotJsonError, TooDeepError):
        return ()
    row = row["payload"] if row.keys() == {"schema", "payload"} else row
    return tuple(row) if isinstance(row, dict) else ()
