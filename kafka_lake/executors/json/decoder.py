"""Batches of JSON records become Arrow columns: column by column what surely fits, record by record all else.

The two agree on every record that the first takes; what it can't take is set apart, and only that is looked at alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.json.arrays import structs
from kafka_lake.executors.json.columns import Column, Rules, arrow_type, fed_alone, spelled, structs_of
from kafka_lake.executors.json.converter import Converter
from kafka_lake.executors.json.fast import Fast, FastReader
from kafka_lake.executors.json.marks import Path
from kafka_lake.executors.json.misfit import MisfitError
from kafka_lake.executors.json.text import NotJsonError, TooDeepError, parse_object
from kafka_lake.executors.json.types import (
    Kind,
    empty_fields,
    ends,
    first_leaves,
    kind_of,
    leaves,
    merged,
    merged_into,
    settled,
)

NOT_JSON, TOO_DEEP, TOO_LARGE = "not_json", "too_deep", "too_large"
WRONG_TYPE, NULL_IN_REQUIRED_COLUMN, UNDECODABLE = "wrong_type", "null_in_required_column", "undecodable"
MESSAGE = 2000
"""Characters of an error message that are kept."""


@dataclass(frozen=True)
class Seen:
    """What a batch had that is in no column.

    Args:
        news: Fields without a column: ``{"in": {column: …}, "new": {field: type}}``, a level for each struct and list.
        misfits: Fields whose values fit no column, as a struct's type; None if there are none.
        cut: Path of a column → how many of its times lost digits beyond microseconds.
        rounded: Path of a column → how many of its numbers were rounded to a double or float.
        schemas: Name of a registry's schema, known or not → how many values it has written.
        key: The same of the records' keys, as `data` gives it; empty if there is nothing to say of them.
        alone: Why records were decoded one by one, a column's path or what is odd about them → how many.
        empty: Paths of fields that are empty and have no column.
        more: How many other fields without a column there were, in each batch; of those nothing is known.
        aside: Path of a field without a column → how many values it had.
    """

    news: Mapping[str, Any]
    misfits: Kind
    cut: Mapping[str, int]
    empty: frozenset[str] = frozenset()
    more: int = 0
    aside: Mapping[str, int] = field(default_factory=dict)
    rounded: Mapping[str, int] = field(default_factory=dict)
    schemas: Mapping[str, int] = field(default_factory=dict)
    key: Mapping[str, Any] = field(default_factory=dict)
    alone: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        # How records were decoded tells nothing of columns: it is no reason to look at them again.
        return any(getattr(self, each.name) for each in fields(self) if each.name != "alone")

    def data(self) -> dict[str, Any]:
        """Return it as plain data."""
        kept = {"news": self.news, "misfits": self.misfits, "cut": self.cut, "empty": sorted(self.empty)}
        kept |= {"more": self.more, "aside": self.aside, "rounded": self.rounded, "schemas": self.schemas}
        return {**kept, "key": self.key, "alone": self.alone}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Seen":
        """Return what `data` gave."""
        kept = {field.name: data[field.name] for field in fields(cls)}
        return cls(**{**kept, "empty": frozenset(data["empty"])})

    def and_(self, later: "Seen") -> "Seen":
        """Return what two batches had together."""
        return Seen(
            merged_news(self.news, later.news),
            merged(self.misfits, later.misfits),
            cut=_added(self.cut, later.cut),
            empty=self.empty | later.empty,
            more=self.more + later.more,
            aside=_added(self.aside, later.aside),
            rounded=_added(self.rounded, later.rounded),
            schemas=_added(self.schemas, later.schemas),
            key=Seen.of(self.key).and_(Seen.of(later.key)).data() if self.key and later.key else self.key or later.key,
            alone=_added(self.alone, later.alone),
        )

    def within(self, most: int) -> "Seen":
        """Return it with so many new fields, misfits and empty ones at the most; the others are counted.

        Names may be data, another one in each record: what is told of them must not grow with the records.
        """
        if len(self.schemas) > most:
            return replace(self, schemas=dict(Counter(self.schemas).most_common(most))).within(most)
        wide, crowded = _news_ends(self.news) > most, ends(self.misfits) > most
        if not (wide or crowded or len(self.empty) > most or len(self.aside) > most):
            return self
        # What is inferred of a field that is aside tells of it already.
        counts = news_leaves(self.news), leaves(self.misfits), len(self.empty), 0 if wide else len(self.aside)
        return replace(
            self,
            news=first_news(self.news, most) if wide else self.news,
            misfits=first_leaves(self.misfits, most) if crowded else self.misfits,
            empty=frozenset(sorted(self.empty)[:most]),
            aside=dict(sorted(self.aside.items())[:most]),
            more=self.more + sum(max(0, count - most) for count in counts),
        )


NOTHING = Seen({}, None, {})


@dataclass(frozen=True)
class Decoded:
    """What became of a batch's values, in their order.

    Args:
        made: A struct of the columns for each value that is not null and did not fail.
        places: Which values those are, ascending.
        error_class: Null where it did not fail.
        seen: What is in no column.
        change: What each record does to a row, if records are changes.
    """

    made: pa.StructArray
    places: np.ndarray
    error_class: pa.StringArray
    error_message: pa.StringArray
    seen: Seen = NOTHING
    change: pa.StructArray | None = None

    @property
    def rows(self) -> pa.StructArray:
        """A struct of the columns for each value; null where it is null, or failed."""
        if len(self.made) == len(self.error_class):
            return self.made
        return self.made.take(_at(self.places, len(self.error_class)))


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {path: one.get(path, 0) + other.get(path, 0) for path in {**one, **other}}


def merged_news(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the news of two batches as those of both."""
    if not one or not other:
        return dict(one or other)
    inner = {
        name: merged_news(one.get("in", {}).get(name, {}), other.get("in", {}).get(name, {}))
        for name in {**one.get("in", {}), **other.get("in", {})}
    }
    new = dict(one.get("new", {}))
    for name, kind in other.get("new", {}).items():
        new[name] = merged(new.get(name), kind)
    return {key: found for key, found in (("in", inner), ("new", new)) if found}


def news_leaves(news: Mapping[str, Any]) -> int:
    """Return how many scalars the new fields are made of."""
    new = sum(map(leaves, news.get("new", {}).values()))
    return new + sum(map(news_leaves, news.get("in", {}).values()))


def _news_ends(news: Mapping[str, Any]) -> int:
    return sum(map(ends, news.get("new", {}).values())) + sum(map(_news_ends, news.get("in", {}).values()))


def first_news(news: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return news without what is beyond so many scalars."""
    kept: dict[str, Any] = {}
    known = first_leaves(["struct", dict(news.get("new", {}))], most)
    if known is not None:
        kept["new"] = known[1]
        most -= leaves(known)
    for name, inner in news.get("in", {}).items():
        if found := first_news(inner, most):
            kept.setdefault("in", {})[name] = found
            most -= news_leaves(found)
    return kept


class JsonDecoder:
    """Decodes batches of JSON records.

    Args:
        max_bytes: Longer values are ``too_large`` and not parsed; None for no limit.
        plain: Whether the fast path takes what it can; without it every record is decoded alone.
    """

    def __init__(
        self, columns: Sequence[Column], rules: Rules, max_bytes: int | None = None, plain: bool = True
    ) -> None:
        self._kind = arrow_type(("struct", tuple(columns)))
        self._columns, self._rules = tuple(columns), rules
        self._exact = Converter(columns, rules)
        self._max_bytes = max_bytes
        # One more than fit shows that they don't.
        self._most = rules.max_columns + 1
        self._fast = FastReader(columns, rules) if plain else None
        self._spelled: dict[tuple[str, ...], str] = {}

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values."""
        open_ = pc.is_valid(values).to_numpy(zero_copy_only=False)
        large = too_large(values, self._max_bytes)
        if large:
            open_ = open_.copy()
            open_[list(large)] = False
        todo = np.flatnonzero(open_)
        parts: list[pa.StructArray] = []
        places: list[np.ndarray] = []
        fast: Fast | None = None
        if self._fast is not None and len(todo):
            fast = self._fast.read(values if len(todo) == len(values) else values.take(pa.array(todo)))
            parts.append(fast.rows)
            places.append(todo[fast.taken])
            todo = todo[~fast.taken]
        errors: dict[int, tuple[str, str]] = {}
        misfits: Kind = None
        if len(todo):
            made, at, errors, misfits = self._one_by_one(values, todo)
            parts.append(made)
            places.append(at)
        errors |= large
        made, at = in_order(parts, places, self._kind)
        return Decoded(made, at, *failed_at(errors, len(values)), self._seen(misfits, fast))

    def _seen(self, misfits: Kind, fast: Fast | None) -> Seen:
        """Return what was in no column, of all values."""
        notes = self._exact.notes
        aside, rounded = (dict(fast.aside), dict(fast.rounded)) if fast else ({}, {})
        aside = _added(aside, Counter(".".join((*path, name)) for path, name, _ in notes.found))
        rounded = _added(rounded, Counter(map(".".join, notes.rounded)))
        news, empty = self._inferred(dict(fast.kinds) if fast else {}) if self._rules.infer else ({}, frozenset())
        cut = dict(Counter(map(".".join, notes.cut)))
        if notes.spelled:
            self._respell(dict(notes.spelled))
        notes.back((0, 0, 0, 0))
        alone = fast.alone if fast else {}
        return Seen(news, misfits, cut, empty, aside=aside, rounded=rounded, alone=alone).within(self._most)

    def _inferred(self, kinds: dict[tuple[Path, str], Kind]) -> tuple[dict[str, Any], frozenset[str]]:
        """Return the types of fields without a column, and the paths of those that are empty."""
        news: dict[str, Any] = {}
        empty: frozenset[str] = frozenset()
        for path, name, value in self._exact.notes.found:
            kinds[path, name] = merged_into(kinds.get((path, name)), kind_of(value))
        for (path, name), kind in kinds.items():
            below = ".".join((*path, name))
            empty |= {below if not inner else f"{below}.{inner}" for inner in empty_fields(kind)}
            if settled(kind, False) is None:
                continue
            node = news
            for step in path:
                node = node.setdefault("in", {}).setdefault(step, {})
            node.setdefault("new", {})[name] = kind
        return news, empty

    def _respell(self, found: Mapping[tuple[str, ...], str]) -> None:
        """Let the fast path look for columns by the names that the last values had, in whatever case."""
        if self._fast is None or found.items() <= self._spelled.items():
            return
        if not all(map(fed_alone, structs_of(("struct", self._columns)))):
            return
        self._spelled |= found
        self._fast = FastReader(spelled(self._columns, self._spelled), self._rules, self._fast.texts)

    def _one_by_one(
        self, values: pa.Array, todo: np.ndarray
    ) -> tuple[pa.StructArray, np.ndarray, dict[int, tuple[str, str]], Kind]:
        """Return the rows of the values at these places, where they are, and why others failed."""
        rows: list[list[Any]] = []
        good: list[int] = []
        errors: dict[int, tuple[str, str]] = {}
        misfits: Kind = None
        for index, content in zip(todo.tolist(), values.take(pa.array(todo)).to_pylist(), strict=True):
            mark = self._exact.notes.mark()
            try:
                value = parse_object(content)
                row = self._exact.row(value)
                if not (missing := self._exact.missing(row)):
                    rows.append(row)
                    good.append(index)
                    continue
                error = NULL_IN_REQUIRED_COLUMN, f"Required, but null or missing: {', '.join(missing)}."
            except NotJsonError as reason:
                error = NOT_JSON, str(reason)
            except TooDeepError as reason:
                error = TOO_DEEP, str(reason)
            except MisfitError as reason:
                misfits = merged(misfits, reason.kind)
                error = WRONG_TYPE, self._exact.message(value, reason.kind[1])
            except Exception as reason:
                # Whatever it is, it is this record's, and must not stop the others.
                error = UNDECODABLE, f"{type(reason).__name__}: {reason}"
            self._exact.notes.back(mark)
            errors[index] = error[0], error[1][:MESSAGE]
        return *self._built(rows, good, errors), errors, misfits

    def _built(
        self, rows: list[list[Any]], good: list[int], errors: dict[int, tuple[str, str]]
    ) -> tuple[pa.StructArray, np.ndarray]:
        try:
            return structs(rows, self._kind), np.array(good, dtype=np.int64)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as reason:
            if len(rows) == 1:
                errors[good[0]] = UNDECODABLE, f"{type(reason).__name__}: {reason}"[:MESSAGE]
                return structs([], self._kind), np.array([], dtype=np.int64)
        half = len(rows) // 2
        first, first_at = self._built(rows[:half], good[:half], errors)
        second, second_at = self._built(rows[half:], good[half:], errors)
        return pa.concat_arrays([first, second]), np.concatenate([first_at, second_at])


def in_order(
    parts: Sequence[pa.StructArray], places: Sequence[np.ndarray], kind: pa.StructType
) -> tuple[pa.StructArray, np.ndarray]:
    """Return the elements of all parts in the order of their places, and those; within each part they ascend."""
    filled = [number for number, part in enumerate(parts) if len(part)]
    if not filled:
        return pa.nulls(0, kind), np.array([], dtype=np.int64)
    if len(filled) == 1:
        return parts[filled[0]], places[filled[0]]
    at = np.concatenate(places)
    order = np.argsort(at, kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order)), at[order]


def _at(places: np.ndarray, count: int) -> pa.Array:
    """Return, for each of so many values, its number among those at the places; null for others."""
    where = np.full(count, -1, dtype=np.int64)
    where[places] = np.arange(len(places))
    return pa.array(where, mask=where < 0)


def too_large(values: pa.Array, max_bytes: int | None) -> dict[int, tuple[str, str]]:
    """Return the errors of the values that have more bytes than this, by place; None for no limit."""
    if max_bytes is None:
        return {}
    size = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    large = np.flatnonzero(size > max_bytes)
    return {int(at): (TOO_LARGE, f"The value has {size[at]} bytes, the limit is {max_bytes}.") for at in large}


def small_enough(values: pa.Array, max_bytes: int | None, errors: dict[int, tuple[str, str]]) -> np.ndarray:
    """Return the numbers of the values that are not null and not over the limit.

    Args:
        max_bytes: The limit; None for none.
        errors: Gets an error for each value over it.
    """
    open_ = pc.is_valid(values).to_numpy(zero_copy_only=False)
    if large := too_large(values, max_bytes):
        errors.update(large)
        open_ = open_.copy()
        open_[list(large)] = False
    found: np.ndarray = np.flatnonzero(open_)
    return found


def failed_at(errors: Mapping[int, tuple[str, str]], count: int) -> tuple[pa.StringArray, pa.StringArray]:
    """Return error classes and messages of so many values, null where there is none, by errors by place."""
    if not errors:
        return pa.nulls(count, pa.string()), pa.nulls(count, pa.string())
    where = _at(np.fromiter(errors, dtype=np.int64, count=len(errors)), count)
    classes, messages = (pa.array(each, pa.string()) for each in zip(*errors.values(), strict=True))
    return classes.take(where), messages.take(where)
