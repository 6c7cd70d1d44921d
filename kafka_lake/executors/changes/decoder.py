"""Records as changes of keyed rows: the row in a table's columns, what is done to it, why a record is no change."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.changes.change import DELETE, READ, UPSERT, Change
from kafka_lake.executors.changes.told import change_teller
from kafka_lake.executors.decoded import NOTHING, Decoded, failed_at
from kafka_lake.executors.error_classes import (
    KEY_CHANGED,
    NO_KEY,
    NO_OLD_KEY,
    NO_ORDER,
    NULL_IN_REQUIRED_COLUMN,
    VALUE_NOT_SENT,
)
from kafka_lake.executors.registered import schema_ids

_LATER = ", and the row of the old key may be from another partition. Name a column with order_by:."

Errors = dict[int, tuple[str, str]]


class ChangesDecoder:
    """Decodes records that are changes.

    A delete is decoded as far as it tells the row's key.

    Args:
        rows: Decodes rows; an object with ``decode(batch)``.
        old: Decodes the row before an update into the key's columns; None if no record may tell another key.
        in_key: Decodes a record's key into the key's columns, for rows that lack them; None if none do.
        told: What `change_teller` takes; None where values are rows, and a record without a value deletes its key's.
        key: The key's columns in the table; empty if the record's bytes are the key.
        columns: The table's, in their order.
        required: Those of them that must not be null, but for the key.
        order_by: Columns that tell the order of changes.
        comparable: Whether a change of an old key and one of a new key can be compared with others.
        feeds: Columns whose values may not be sent → the fields that feed them; None if all are.
        fed: All fields that feed some column.
        left_out: Fields that get no column; None if no field without a column gets one.
        counts_ids: Whether records begin with ids of schemas, to be counted.
    """

    def __init__(
        self,
        rows: Any,
        old: Any | None,
        in_key: Any | None,
        *,
        told: Mapping[str, Any] | None,
        key: Sequence[str],
        columns: Sequence[str],
        required: Sequence[str],
        order_by: Sequence[str],
        comparable: bool,
        feeds: Mapping[str, Sequence[str]] | None,
        fed: Sequence[str],
        left_out: Sequence[str] | None,
        counts_ids: bool,
    ) -> None:
        self._rows, self._old, self._in_key = rows, old, in_key
        self._tell = change_teller(told) if told is not None else None
        self._key, self._columns, self._required, self._order_by = key, tuple(columns), required, order_by
        self._comparable, self._feeds, self._fed, self._left_out = comparable, feeds, fed, left_out
        self._counts_ids = counts_ids

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Decode records, by their columns ``key`` and ``value``."""
        told = _Told.of(batch, self._tell)
        rows = self._rows.decode(_with_value(batch, told.rows))
        errors = _Refusals(len(batch))
        errors.add_all(told.errors)
        errors.add_decoded(rows)
        columns = _columns(rows)
        there = pc.is_valid(rows.rows).to_numpy(zero_copy_only=False)
        if self._in_key is not None and told.keys is not None:
            self._fill_key(columns, self._in_key.decode(_with_value(batch, told.keys)), there)
        kept = self._keep(columns, told)
        old = self._old.decode(_with_value(batch, told.old)) if self._old is not None else None
        if old is not None and told.old is not None:
            self._refuse_old(errors, old, told.old, columns)
        self._refuse(errors, batch, told, columns=columns, kept=kept)
        places = np.flatnonzero(there & ~errors.failed)
        parts = [columns[name] for name in self._columns]
        whole = pa.StructArray.from_arrays(parts, names=list(self._columns)) if parts else rows.rows
        made = whole if len(places) == len(batch) else whole.take(pa.array(places))
        seen = self._with_ids(rows.seen, batch)
        return Decoded(made, places, *errors.arrays(), seen or NOTHING, told.change(old, kept))

    def _fill_key(self, columns: dict[str, pa.Array], in_key: Decoded, there: np.ndarray) -> None:
        """Give rows the columns of their record's key that they lack."""
        found = dict(zip([f.name for f in in_key.made.type], in_key.rows.flatten(), strict=True))
        for name in self._key:
            if name in columns and name in found:
                filled = pc.coalesce(columns[name], found[name])
                columns[name] = pc.if_else(pa.array(there), filled, pa.scalar(None, filled.type))

    def _keep(self, columns: dict[str, pa.Array], told: "_Told") -> list[list[str]] | None:
        """Null the columns whose values weren't sent, and return which these are of each record; None if all are."""
        if self._feeds is None:
            return None
        kept: list[list[str]] = [[] for _ in range(told.count)]
        masks: dict[str, np.ndarray] = {}
        for place, names in told.unavailable.items():
            own, strange = set(names), {name.lower() for name in names if name not in self._fed}
            for column, feeds in self._feeds.items():
                if own.intersection(feeds) or strange.intersection(map(str.lower, feeds)):
                    kept[place].append(column)
                    masks.setdefault(column, np.zeros(told.count, dtype=bool))[place] = True
        for column, mask in masks.items():
            columns[column] = pc.if_else(pa.array(mask), pa.scalar(None, columns[column].type), columns[column])
        return kept

    def _refuse_old(self, errors: "_Refusals", old: Decoded, given: pa.Array, columns: Mapping[str, pa.Array]) -> None:
        """Refuse updates whose row before doesn't tell its key, or can't go."""
        is_told = pc.is_valid(given).to_numpy(zero_copy_only=False)
        if not is_told.any():
            return
        names = [f.name for f in old.made.type]
        before = dict(zip(names, old.rows.flatten(), strict=True))
        bad = pc.is_valid(old.error_class).to_numpy(zero_copy_only=False)
        reasons = pc.coalesce(old.error_message, old.error_class)
        errors.refuse(is_told & bad, NO_OLD_KEY, lambda n: f"The row before: {reasons[n].as_py()}")
        missing, which = _nulls(before, names, len(is_told))
        errors.refuse(
            is_told & missing,
            NO_OLD_KEY,
            lambda n: f"Null or missing in the key before the update: {', '.join(which(n))}.",
        )
        if self._comparable:
            return
        differ = {name: ~_same(before[name], columns[name]) for name in names}
        moved = np.logical_or.reduce(list(differ.values())) if differ else np.zeros(len(is_told), dtype=bool)

        def changed(n: int) -> str:
            return f"The update changes {', '.join(name for name in names if differ[name][n])}{_LATER}"

        errors.refuse(is_told & moved, KEY_CHANGED, changed)

    def _refuse(
        self,
        errors: "_Refusals",
        batch: pa.RecordBatch,
        told: "_Told",
        columns: Mapping[str, pa.Array],
        kept: list[list[str]] | None,
    ) -> None:
        """Refuse changes that lack what they must have, in the order of importance."""
        count = told.count
        brings = told.is_one_of(UPSERT, READ)
        if self._key:
            missing, which = _nulls(columns, self._key, count)
        else:
            missing = pc.is_null(batch.column("key")).to_numpy(zero_copy_only=False)

            def which(_: int) -> list[str]:
                return ["the record's key"]

        acts = brings | told.is_one_of(DELETE)
        errors.refuse(acts & missing, NO_KEY, lambda n: f"Null or missing in the key: {', '.join(which(n))}")
        missing, lacks = _nulls(columns, self._required, count)
        if kept is not None and missing.any():
            for place in np.flatnonzero(missing).tolist():
                missing[place] = bool(_but(lacks(place), kept[place]))

        def required(n: int) -> str:
            return f"Required, but null or missing: {', '.join(_but(lacks(n), kept[n] if kept else ()))}."

        errors.refuse(brings & missing, NULL_IN_REQUIRED_COLUMN, required)
        missing, unordered = _nulls(columns, self._order_by, count)

        def no_order(n: int) -> str:
            return f"Null or missing, and changes are ordered by it: {', '.join(unordered(n))}."

        errors.refuse(brings & missing, NO_ORDER, no_order)
        if self._feeds is None or self._left_out is None:
            return
        taken = {name.lower() for feeds in self._feeds.values() for name in feeds} | set(map(str.lower, self._left_out))
        for place, names in told.unavailable.items():
            if untaken := [name for name in names if name.lower() not in taken]:
                said = f"Not sent, since unchanged, and the table has no such values: {', '.join(untaken)}."
                errors.add_all({place: (VALUE_NOT_SENT, said)})

    def _with_ids(self, seen: Any, batch: pa.RecordBatch) -> Any:
        """Return what was seen of rows, with the ids of the schemas of records' values and keys instead of rows'."""
        if not self._counts_ids:
            return seen
        values, keys = (schema_ids(batch.column(part)) for part in ("value", "key"))
        return replace(seen, schemas=values, key=replace(NOTHING, schemas=keys) if keys else None)


class _Told:
    """What the records of a batch say of rows.

    Args:
        rows: The rows as bytes, null where there is none.
        does: What is done to each.
        changes: All that is said; None if it is no more than that.
    """

    def __init__(self, rows: pa.Array, does: pa.Array, changes: Sequence[Change] | None) -> None:
        self.rows, self._does, self._changes, self.count = rows, does, changes, len(rows)

    @classmethod
    def of(cls, batch: pa.RecordBatch, tell: Callable[[bytes | None, bytes | None], Change] | None) -> "_Told":
        """Return what records say."""
        values = batch.column("value")
        if tell is None:
            return cls(values, pc.if_else(pc.is_null(values), DELETE, UPSERT), None)
        pairs = zip(batch.column("key").to_pylist(), values.to_pylist(), strict=True)
        changes = [tell(key, value) for key, value in pairs]
        does = pa.array([each.does or None for each in changes], pa.string())
        return cls(pa.array([each.row for each in changes], pa.binary()), does, changes)

    @property
    def errors(self) -> Errors:
        """Why records are no changes, by their places."""
        return {n: (c.error_class, c.error_message) for n, c in self._each() if c.error_class}

    @property
    def unavailable(self) -> Mapping[int, Sequence[str]]:
        """The fields that weren't sent, by the places of records that lack some."""
        return {n: c.unavailable for n, c in self._each() if c.unavailable}

    @property
    def old(self) -> pa.Array:
        """The rows before updates that may have changed the key."""
        return self._bytes("old")

    @property
    def keys(self) -> pa.Array:
        """The records' keys, where the row lacks columns of it."""
        return self._bytes("key")

    def is_one_of(self, *does: str) -> np.ndarray:
        """Return which records do one of these."""
        found: np.ndarray = pc.fill_null(pc.is_in(self._does, pa.array(does)), False).to_numpy(zero_copy_only=False)
        return found

    def change(self, old: Decoded | None, kept: list[list[str]] | None) -> pa.StructArray:
        """Return the column that says what is done to each row."""
        changes = self._changes or ()
        parts: dict[str, pa.Array] = {"does": self._does}
        kinds = {"order": pa.list_(pa.int64()), "at": pa.int64(), "snapshot": pa.string(), "source": pa.string()}
        for name, kind in kinds.items():
            said = [getattr(each, name) for each in changes]
            known = pa.array([each if each != "" else None for each in said], kind) if said else None
            parts[name] = pa.nulls(self.count, kind) if known is None else known
        if old is not None:
            parts["old"] = old.rows
        if kept is not None:
            parts["kept"] = pa.array(kept, pa.list_(pa.string()))
        return pa.StructArray.from_arrays(list(parts.values()), names=list(parts))

    def _bytes(self, name: str) -> pa.Array:
        if self._changes is None:
            return pa.nulls(self.count, pa.binary())
        return pa.array([getattr(each, name) for each in self._changes], pa.binary())

    def _each(self) -> Iterator[tuple[int, Change]]:
        return enumerate(self._changes or ())


class _Refusals:
    """Why records fail: of each, the first reason counts."""

    def __init__(self, count: int) -> None:
        self.failed = np.zeros(count, dtype=bool)
        self._errors: Errors = {}

    def add_all(self, errors: Errors) -> None:
        """Take reasons by the places of records."""
        for place, reason in errors.items():
            self._errors.setdefault(place, reason)
            self.failed[place] = True

    def add_decoded(self, decoded: Decoded) -> None:
        """Take the reasons of records that didn't decode."""
        failed = np.flatnonzero(pc.is_valid(decoded.error_class).to_numpy(zero_copy_only=False)).tolist()
        self.add_all({n: (decoded.error_class[n].as_py(), decoded.error_message[n].as_py()) for n in failed})

    def refuse(self, mask: np.ndarray, name: str, say: Callable[[int], str]) -> None:
        """Refuse the records of a mask that haven't failed yet."""
        self.add_all({place: (name, say(place)) for place in np.flatnonzero(mask & ~self.failed).tolist()})

    def arrays(self) -> tuple[pa.StringArray, pa.StringArray]:
        """Return error classes and messages, null where a record hasn't failed."""
        return failed_at(self._errors, len(self.failed))


def _with_value(batch: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index("value"), "value", values)


def _columns(rows: Decoded) -> dict[str, pa.Array]:
    whole = rows.rows
    return dict(zip([f.name for f in whole.type], whole.flatten(), strict=True))


def _nulls(
    columns: Mapping[str, pa.Array], names: Sequence[str], count: int
) -> tuple[np.ndarray, Callable[[int], list[str]]]:
    """Return in which rows one of some columns is null or not there, and what tells which of them are."""
    every = np.ones(count, dtype=bool)
    masks = {n: pc.is_null(columns[n]).to_numpy(zero_copy_only=False) if n in columns else every for n in names}
    some = np.logical_or.reduce(list(masks.values())) if masks else np.zeros(count, dtype=bool)
    return some.copy(), lambda place: [name for name, mask in masks.items() if mask[place]]


def _but(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [name for name in names if name not in others]


def _same(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Return where two columns have the same value, or both none."""
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    same = pc.or_(pc.fill_null(pc.equal(one, other), False), both_null)
    found: np.ndarray = same.to_numpy(zero_copy_only=False)
    return found
