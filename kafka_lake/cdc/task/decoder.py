"""Records as changes of keyed rows: the row in a table's columns, what is done to it, why a record is no change."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.cdc.task.change import (
    DELETE,
    READ,
    UPSERT,
    Changes,
    Columns,
    Envelope,
    Errors,
    columns_of,
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
    """Decodes records that are changes.

    A delete is decoded as far as it tells the row's key.

    Args:
        rows: Decodes rows, or for Debezium in Avro whole envelopes; an object with ``decode(batch)``.
        keys: Decodes the columns of the row's key; None if only the record's bytes tell the key, or ``rows`` decode it.
        envelope: What records are wrapped in: its name, and other settings of the class that opens it.
        columns: Those of the table.
        key: The names of those that are the row's key; empty if the record's bytes are the key.
        order_by: Columns that tell the order of changes.
        comparable: Whether a change of an old key and one of a new key can be compared with others.
        ignored: Fields that get no column; None if no field without a column gets one.
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
        self._required = [name for name, _, _, required, _ in columns if required and name not in key]
        debezium = envelope["name"].startswith("debezium")
        self._unsent = {
            name: feeds
            for name, kind, feeds, _, _ in columns
            if debezium and name not in key and may_be_unavailable(arrow_type(kind))
        }
        self._keeps = any(debezium and may_be_unavailable(arrow_type(each[1])) for each in columns)
        may_move = envelope["name"] in ("maxwell", "canal") or (debezium and not envelope["of_record"])
        moving = [pa.field(name, arrow_type(kind)) for name, kind, *_ in columns if may_move and name in key]
        self._old_type = pa.struct(moving) if moving else None

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Decode records, by their columns ``key`` and ``value``."""
        changes = self._envelope.open(batch)
        kept = self._keep(changes)
        self._refuse_old(changes)
        self._refuse(changes, batch, kept)
        there = where(pc.is_in(changes.does, pa.array([UPSERT, READ, DELETE])))
        places = np.flatnonzero(there & ~changes.errors.failed)
        names = [column[0] for column in self._columns]
        fields = [pa.field(name, arrow_type(kind)) for name, kind, *_ in self._columns]
        if names:
            whole = pa.StructArray.from_arrays([changes.columns[name] for name in names], fields=fields)
        else:
            whole = pa.array([{}] * len(batch), pa.struct([]))
        made = whole if len(places) == len(batch) else whole.take(pa.array(places))
        return Decoded(made, places, *changes.errors.arrays(), changes.seen, self._change(changes, kept))

    def _keep(self, changes: Changes) -> dict[int, list[str]]:
        """Null the columns whose values weren't sent, and return which these are, by the numbers of records."""
        kept: dict[int, list[str]] = {}
        fed = {feed for column in self._columns for feed in column[2]}
        masks: dict[str, np.ndarray] = {}
        for number, names in changes.unavailable.items():
            own, strange = set(names), {name.lower() for name in names if name not in fed}
            for column, feeds in self._unsent.items():
                if own.intersection(feeds) or strange.intersection(map(str.lower, feeds)):
                    kept.setdefault(number, []).append(column)
                    masks.setdefault(column, np.zeros(len(changes.does), dtype=bool))[number] = True
        for column, mask in masks.items():
            values = changes.columns[column]
            changes.columns[column] = pc.if_else(pa.array(mask), pa.scalar(None, values.type), values)
        return kept

    def _refuse_old(self, changes: Changes) -> None:
        """Refuse updates whose row before doesn't tell its key, or can't go."""
        has_old, old, errors = changes.has_old, changes.old, changes.errors
        if old is None or has_old is None or not has_old.any() or self._old_type is None:
            return
        reasons = pc.coalesce(old.error_message, old.error_class)
        errors.refuse(has_old & mask_of(old.error_class), NO_OLD_KEY, lambda n: f"The row before: {reasons[n].as_py()}")
        before, names = columns_of(old), self._old_type.names
        missing, which = _nulls(before, names, len(has_old))
        errors.refuse(
            has_old & missing,
            NO_OLD_KEY,
            lambda n: f"Null or missing in the key before the update: {', '.join(which(n))}.",
        )
        if self._comparable:
            return
        differ = {name: ~_same(before[name], changes.columns[name]) for name in names}
        moved = np.logical_or.reduce(list(differ.values()))

        def changed(n: int) -> str:
            return f"The update changes {', '.join(name for name in names if differ[name][n])}{_LATER}"

        errors.refuse(has_old & moved, KEY_CHANGED, changed)

    def _refuse(self, changes: Changes, batch: pa.RecordBatch, kept: Mapping[int, Sequence[str]]) -> None:
        """Refuse changes that lack what they must have, in the order of importance."""
        count, errors, columns = len(batch), changes.errors, changes.columns
        brings = where(pc.is_in(changes.does, pa.array([UPSERT, READ])))
        acts = brings | where(pc.equal(changes.does, DELETE))
        if self._key:
            missing, which = _nulls(columns, self._key, count)
        else:
            missing, which = ~mask_of(batch.column("key")), lambda _: ["the record's key"]
        errors.refuse(acts & missing, NO_KEY, lambda n: f"Null or missing in the key: {', '.join(which(n))}")
        missing, lacks = _nulls(columns, self._required, count)

        def lacking(n: int) -> list[str]:
            return [name for name in lacks(n) if name not in kept.get(n, ())]

        for number in kept:
            missing[number] = bool(lacking(number))
        errors.refuse(
            brings & missing,
            NULL_IN_REQUIRED_COLUMN,
            lambda n: f"Required, but null or missing: {', '.join(lacking(n))}.",
        )
        missing, unordered = _nulls(columns, self._order_by, count)
        errors.refuse(
            brings & missing,
            NO_ORDER,
            lambda n: f"Null or missing, and changes are ordered by it: {', '.join(unordered(n))}.",
        )
        self._refuse_unsent(changes)

    def _refuse_unsent(self, changes: Changes) -> None:
        """Refuse changes that lack values of fields which have no column yet."""
        if self._ignored is None:
            return
        feeds = [*self._unsent.values(), *(column[2] for column in self._columns if column[0] in self._key)]
        taken = {name.lower() for names in feeds for name in names} | set(map(str.lower, self._ignored))
        for number, names in changes.unavailable.items():
            if untaken := [name for name in names if name.lower() not in taken]:
                said = f"Not sent, since unchanged, and the table has no such values: {', '.join(untaken)}."
                changes.errors.add({number: (VALUE_NOT_SENT, said)})

    def _change(self, changes: Changes, kept: Mapping[int, Sequence[str]]) -> pa.StructArray:
        """Return the column that says what is done to each row."""
        parts: dict[str, pa.Array] = {"does": changes.does}
        for name, kind in _CHANGE.items():
            known = getattr(changes, name)
            parts[name] = pa.nulls(len(changes.does), kind) if known is None else known
        if self._old_type is not None:
            old, has_old = changes.old, changes.has_old
            none = pa.nulls(len(changes.does), self._old_type)
            parts["old"] = none if old is None else pc.if_else(pa.array(has_old), old.rows.cast(self._old_type), none)
        if self._keeps:
            counts = np.zeros(len(changes.does) + 1, dtype=np.int32)
            for number, names in kept.items():
                counts[number + 1] = len(names)
            every = [name for number in sorted(kept) for name in kept[number]]
            parts["kept"] = pa.ListArray.from_arrays(
                pa.array(np.cumsum(counts), pa.int32()), pa.array(every, pa.string())
            )
        return pa.StructArray.from_arrays(list(parts.values()), names=list(parts))


class NoEnvelope:
    """Records whose value is the row; one without a value deletes the row of its key.

    Args:
        keys: Decodes keys in JSON; None if the record's bytes are the key, or ``rows`` decode it.
        fields: Those of the row's key.
    """

    def __init__(self, rows: Any, keys: Any | None, fields: Sequence[str]) -> None:
        self._rows, self._keys, self._fields = rows, keys, fields

    def open(self, batch: pa.RecordBatch) -> Changes:
        """Return what records say."""
        errors, values = Errors(len(batch)), batch.column("value")
        rows = self._rows.decode(batch)
        errors.add_decoded(rows)
        columns = columns_of(rows)
        gone = ~mask_of(values)
        if self._keys is not None and gone.any():
            keys = only(batch.column("key"), gone).to_pylist()
            texts = pa.array([key_row(each, self._fields) for each in keys], pa.string())
            decoded = self._keys.decode(with_value(batch, texts))
            errors.add_decoded(decoded)
            columns |= {name: pc.coalesce(columns[name], key) for name, key in columns_of(decoded).items()}
        return Changes(pc.if_else(pa.array(gone), DELETE, UPSERT), columns, errors, seen=rows.seen)


def _envelope(rows: Any, keys: Any, settings: Mapping[str, Any], columns: Sequence[Column]) -> Envelope:
    more = {name: value for name, value in settings.items() if name != "name"}
    if settings["name"] == "debezium_avro":
        return DebeziumAvro(rows, keys, **more, columns={column[0]: column[2] for column in columns})
    kinds: Mapping[str, Callable[..., Envelope]] = {"debezium": DebeziumJson, "maxwell": Maxwell, "canal": Canal}
    return kinds.get(settings["name"], NoEnvelope)(rows, keys, **more)


def _nulls(columns: Columns, names: Sequence[str], count: int) -> tuple[np.ndarray, Callable[[int], list[str]]]:
    """Return in which rows one of some columns is null or not there, and what tells which of them are."""
    masks = {n: ~mask_of(columns[n]) if n in columns else np.ones(count, dtype=bool) for n in names}
    some = np.logical_or.reduce(list(masks.values())) if masks else np.zeros(count, dtype=bool)
    return some.copy(), lambda number: [name for name, mask in masks.items() if mask[number]]


def _same(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Return where two columns have the same value, or both none."""
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    return where(pc.or_(pc.fill_null(pc.equal(one, other), False), both_null))


def key_row(key: bytes | None, columns: Sequence[str]) -> str | None:
    """Return as JSON the columns that a record's key tells; None if it doesn't.

    Where the row's key has one column, a key that is no JSON object is its value.

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
        # What else the key tells is no column of the row.
        names = {name.lower() for name in columns}
        return dumps({name: each for name, each in value.items() if name.lower() in names})
    if len(columns) != 1:
        return None
    is_scalar = text == text.strip() and value is not None and not isinstance(value, list)
    return dumps({columns[0]: value if is_scalar else text})
