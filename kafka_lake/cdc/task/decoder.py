"""The decoder of change events: the row in the table's columns, the operation, and why a record isn't a change."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.cdc.task.change import (
    DELETE,
    READ,
    UPSERT,
    ChangeEvents,
    Columns,
    Envelope,
    Errors,
    fields_of,
    mask_of,
    only,
    where,
    with_value,
)
from kafka_lake.cdc.task.debezium import DebeziumAvro, DebeziumJson
from kafka_lake.cdc.task.mysql import Canal, Maxwell
from kafka_lake.cdc.task.unavailable import may_be_unavailable
from kafka_lake.formats.json.task.text import NotJsonError, TooDeepError, dumps, parse
from kafka_lake.formats.task.columns import Column, arrow_type
from kafka_lake.formats.task.decoded import Decoded
from kafka_lake.formats.task.error_classes import (
    KEY_CHANGED,
    NO_KEY,
    NO_OLD_KEY,
    NO_ORDER,
    NULL_IN_REQUIRED_COLUMN,
    VALUE_NOT_SENT,
)

_LATER = ", and the row of the old key may be from another partition. Name a column with order_by:."
_CHANGE = {"order": pa.list_(pa.int64()), "at": pa.int64(), "snapshot": pa.string(), "source": pa.string()}


class ChangesDecoder:
    """Decodes change events. Of a delete, only the row's key is needed.

    Args:
        rows: Decodes rows; with Debezium in Avro, whole envelopes.
        keys: Decodes the columns of the row's key; None if ``rows`` does, or if the record's bytes are the key.
        envelope: ``name`` and the arguments of the envelope's class.
        key: Names of the row's key; empty if the record's bytes are the key.
        comparable: Whether a change of the old key and one of the new key are ordered, even in two partitions.
        ignored: Fields that get no column; None if no new field gets one.
    """

    def __init__(
        self,
        rows: Any,
        keys: Any | None,
        *,
        envelope: Mapping[str, Any],
        columns: Sequence[Column],
        key: Sequence[str],
        order_by: Sequence[str],
        comparable: bool,
        ignored: Sequence[str] | None,
    ) -> None:
        self._envelope = _envelope(rows, keys, envelope, columns)
        self._columns, self._key, self._order_by = tuple(columns), key, order_by
        self._comparable, self._ignored = comparable, ignored
        self._fields = [pa.field(name, arrow_type(kind)) for name, kind, *_ in columns]
        self._required = [name for name, _, _, required, _ in columns if required and name not in key]
        debezium = envelope["name"].startswith("debezium")
        long = {field.name for field in self._fields if debezium and may_be_unavailable(field.type)}
        self._has_unavailable = bool(long)
        self._unavailable = {name: feeds for name, _, feeds, *_ in columns if name in long and name not in key}
        key_may_change = envelope["name"] in ("maxwell", "canal") or (debezium and not envelope["of_record"])
        old_key = [field for field in self._fields if key_may_change and field.name in key]
        self._old_key_type = pa.struct(old_key) if old_key else None

    def decode_records(self, batch: pa.RecordBatch) -> Decoded:
        """Decode records, by their columns ``key`` and ``value``."""
        events = self._envelope.open(batch)
        unavailable = self._unavailable_columns(events)
        self._check_old_keys(events)
        self._check(events, batch, unavailable)
        has_row = where(pc.is_in(events.operations, pa.array([UPSERT, READ, DELETE])))
        places = np.flatnonzero(has_row & ~events.errors.failed)
        if self._fields:
            arrays = [events.columns[field.name] for field in self._fields]
            rows = pa.StructArray.from_arrays(arrays, fields=self._fields)
        else:
            rows = pa.array([{}] * len(batch), pa.struct([]))
        made = rows if len(places) == len(batch) else rows.take(pa.array(places))
        return Decoded(made, places, *events.errors.arrays(), events.observed, self._change(events, unavailable))

    def _unavailable_columns(self, events: ChangeEvents) -> dict[int, list[str]]:
        """Return the columns whose values weren't sent, by record number, and set them to null."""
        unavailable: dict[int, list[str]] = {}
        exact = {feed for column in self._columns for feed in column[2]}
        masks: dict[str, np.ndarray] = {}
        for number, names in events.unavailable.items():
            own, in_any_case = set(names), {name.lower() for name in names if name not in exact}
            for column, feeds in self._unavailable.items():
                if own.intersection(feeds) or in_any_case.intersection(map(str.lower, feeds)):
                    unavailable.setdefault(number, []).append(column)
                    masks.setdefault(column, np.zeros(len(events.operations), dtype=bool))[number] = True
        for column, mask in masks.items():
            events.columns[column] = only(events.columns[column], ~mask)
        return unavailable

    def _check_old_keys(self, events: ChangeEvents) -> None:
        """Reject updates without their old key, and those whose old and new rows aren't ordered."""
        has_old, old, errors = events.has_old_key, events.old_key, events.errors
        if old is None or has_old is None or not has_old.any() or self._old_key_type is None:
            return
        reasons = pc.coalesce(old.error_message, old.error_class)
        errors.reject(has_old & mask_of(old.error_class), NO_OLD_KEY, lambda n: f"The row before: {reasons[n].as_py()}")
        before, names = fields_of(old.rows), self._old_key_type.names
        missing, which = _nulls(before, names, len(has_old))
        errors.reject(
            has_old & missing,
            NO_OLD_KEY,
            lambda n: f"Null or missing in the key before the update: {', '.join(which(n))}.",
        )
        if self._comparable:
            return
        differ = {name: ~_same(before[name], events.columns[name]) for name in names}
        moved = np.logical_or.reduce(list(differ.values()))

        def message(n: int) -> str:
            return f"The update changes {', '.join(name for name in names if differ[name][n])}{_LATER}"

        errors.reject(has_old & moved, KEY_CHANGED, message)

    def _check(self, events: ChangeEvents, batch: pa.RecordBatch, unavailable: Mapping[int, Sequence[str]]) -> None:
        """Reject changes without key, required value or order, the most important error first."""
        count, errors, columns = len(batch), events.errors, events.columns
        upserts = where(pc.is_in(events.operations, pa.array([UPSERT, READ])))
        needs_key = upserts | where(pc.equal(events.operations, DELETE))
        if self._key:
            missing, which = _nulls(columns, self._key, count)
        else:
            missing, which = ~mask_of(batch.column("key")), lambda _: ["the record's key"]
        errors.reject(needs_key & missing, NO_KEY, lambda n: f"Null or missing in the key: {', '.join(which(n))}")
        missing, nulls = _nulls(columns, self._required, count)

        def lacking(n: int) -> list[str]:
            return [name for name in nulls(n) if name not in unavailable.get(n, ())]

        for number in unavailable:
            missing[number] = bool(lacking(number))
        errors.reject(
            upserts & missing,
            NULL_IN_REQUIRED_COLUMN,
            lambda n: f"Required, but null or missing: {', '.join(lacking(n))}.",
        )
        missing, unordered = _nulls(columns, self._order_by, count)
        errors.reject(
            upserts & missing,
            NO_ORDER,
            lambda n: f"Null or missing, and changes are ordered by it: {', '.join(unordered(n))}.",
        )
        self._check_unavailable(events)

    def _check_unavailable(self, events: ChangeEvents) -> None:
        """Reject changes whose unavailable values have no column yet."""
        if self._ignored is None:
            return
        feeds = [*self._unavailable.values(), *(column[2] for column in self._columns if column[0] in self._key)]
        known = {name.lower() for names in feeds for name in names} | set(map(str.lower, self._ignored))
        for number, names in events.unavailable.items():
            if unknown := [name for name in names if name.lower() not in known]:
                message = f"The source omitted unchanged values that the table doesn't have: {', '.join(unknown)}."
                events.errors.add({number: (VALUE_NOT_SENT, message)})

    def _change(self, events: ChangeEvents, unavailable: Mapping[int, Sequence[str]]) -> pa.StructArray:
        """Return the column with the operations and what belongs to them, see `kafka_lake.cdc.changes`."""
        count = len(events.operations)
        parts: dict[str, pa.Array] = {"operation": events.operations}
        for name, kind in _CHANGE.items():
            values = getattr(events, name)
            parts[name] = pa.nulls(count, kind) if values is None else values
        if self._old_key_type is not None:
            old, mask = events.old_key, events.has_old_key
            if old is None or mask is None:
                parts["old_key"] = pa.nulls(count, self._old_key_type)
            else:
                parts["old_key"] = only(old.rows.cast(self._old_key_type), mask)
        if self._has_unavailable:
            counts = np.zeros(count + 1, dtype=np.int32)
            for number, names in unavailable.items():
                counts[number + 1] = len(names)
            names = pa.array([name for number in sorted(unavailable) for name in unavailable[number]], pa.string())
            parts["unavailable"] = pa.ListArray.from_arrays(pa.array(np.cumsum(counts), pa.int32()), names)
        return pa.StructArray.from_arrays(list(parts.values()), names=list(parts))


class NoEnvelope:
    """Records whose value is the row; one without a value deletes the row of its key.

    Args:
        keys: Decodes keys in JSON; None if ``rows`` does, or if the record's bytes are the key.
    """

    def __init__(self, rows: Any, keys: Any | None, fields: Sequence[str]) -> None:
        self._rows, self._keys, self._fields = rows, keys, fields

    def open(self, batch: pa.RecordBatch) -> ChangeEvents:
        """Return an upsert or a delete for each record."""
        errors, deletes = Errors(len(batch)), ~mask_of(batch.column("value"))
        rows = self._rows.decode_records(batch)
        errors.add_decoded(rows)
        columns = fields_of(rows.rows)
        if self._keys is not None and deletes.any():
            keys = only(batch.column("key"), deletes).to_pylist()
            texts = pa.array([key_row(key, self._fields) for key in keys], pa.string())
            decoded = self._keys.decode_records(with_value(batch, texts))
            errors.add_decoded(decoded)
            columns |= {name: pc.coalesce(columns[name], key) for name, key in fields_of(decoded.rows).items()}
        operations = pc.if_else(pa.array(deletes), DELETE, UPSERT)
        return ChangeEvents(operations, columns, errors, observed=rows.seen)


def _envelope(rows: Any, keys: Any, settings: Mapping[str, Any], columns: Sequence[Column]) -> Envelope:
    arguments = {name: value for name, value in settings.items() if name != "name"}
    if settings["name"] == "debezium_avro":
        arguments["columns"] = {column[0]: column[2] for column in columns}
    kinds: Mapping[str, Callable[..., Envelope]] = {
        "none": NoEnvelope,
        "debezium": DebeziumJson,
        "debezium_avro": DebeziumAvro,
        "maxwell": Maxwell,
        "canal": Canal,
    }
    return kinds[settings["name"]](rows, keys, **arguments)


def _nulls(columns: Columns, names: Sequence[str], count: int) -> tuple[np.ndarray, Callable[[int], list[str]]]:
    """Return in which rows any of some columns is null or missing, and a function that names these columns."""
    masks = {n: ~mask_of(columns[n]) if n in columns else np.ones(count, dtype=bool) for n in names}
    some = np.logical_or.reduce(list(masks.values())) if masks else np.zeros(count, dtype=bool)
    return some.copy(), lambda number: [name for name, mask in masks.items() if mask[number]]


def _same(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Return where two columns have the same value, or both null."""
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    return where(pc.or_(pc.fill_null(pc.equal(one, other), False), both_null))


def key_row(key: bytes | None, columns: Sequence[str]) -> str | None:
    """Return the key's columns of a record's key as JSON; None if it has none.

    If the row's key has one column, a record's key that isn't a JSON object is its value.

    >>> key_row(b'{"id": 1}', ["id"]), key_row(b"17", ["id"]), key_row(b"a b", ["name"])
    ('{"id":1}', '{"id":17}', '{"name":"a b"}')
    >>> key_row(b"17", ["a", "b"]) is None
    True
    """
    if key is None:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    try:
        value = parse(key)
    except (NotJsonError, TooDeepError):
        value = text
    if isinstance(value, dict):
        # Other fields of the key are no columns of the row.
        names = {name.lower() for name in columns}
        return dumps({name: member for name, member in value.items() if name.lower() in names})
    if len(columns) != 1:
        return None
    is_scalar = text == text.strip() and value is not None and not isinstance(value, list)
    return dumps({columns[0]: value if is_scalar else text})
