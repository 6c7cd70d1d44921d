"""What decoders return: columns, error classes and messages, and what they observed that no column takes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.json.task.types import Kind, ends, first_leaves, leaves, merged
from kafka_lake.formats.task.error_classes import TOO_LARGE

MESSAGE = 2000
"""Characters of an error message that are kept."""
Errors = dict[int, tuple[str, str]]
"""Number of a record → error class and message."""


@dataclass(frozen=True)
class Observed:
    """What a batch had that no column takes, and how it was decoded. Paths are of columns.

    Args:
        news: Fields without a column: ``{"in": {column: …}, "new": {field: type}}``, a level for each struct and list.
        misfits: Types of the values that fit no column, as a struct's type; None if all fit.
        cut: Path → how many of its times lost digits beyond microseconds.
        empty: Fields without a column that were always empty.
        more: Further fields without a column, only counted.
        aside: Field without a column → how many values it had.
        rounded: Path → how many of its numbers were rounded.
        schemas: Schema of a registry, as `name_of` writes it → how many values it wrote.
        key: The same of the records' keys.
        singly: Why records were decoded one by one → how many.
    """

    news: Mapping[str, Any] = field(default_factory=dict)
    misfits: Kind = None
    cut: Mapping[str, int] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()
    more: int = 0
    aside: Mapping[str, int] = field(default_factory=dict)
    rounded: Mapping[str, int] = field(default_factory=dict)
    schemas: Mapping[str, int] = field(default_factory=dict)
    key: "Observed | None" = None
    singly: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        # How records were decoded says nothing about columns.
        return any(getattr(self, each.name) for each in fields(self) if each.name != "singly")

    def data(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**vars(self), "empty": sorted(self.empty), "key": self.key and self.key.data()}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Observed":
        """Return what `data` returned."""
        return cls(**{**data, "empty": frozenset(data["empty"]), "key": data["key"] and cls.of(data["key"])})

    def and_(self, later: "Observed") -> "Observed":
        """Return what two batches had together."""
        return Observed(
            merged_news(self.news, later.news),
            merged(self.misfits, later.misfits),
            cut=added(self.cut, later.cut),
            empty=self.empty | later.empty,
            more=self.more + later.more,
            aside=added(self.aside, later.aside),
            rounded=added(self.rounded, later.rounded),
            schemas=added(self.schemas, later.schemas),
            key=self.key.and_(later.key) if self.key and later.key else self.key or later.key,
            singly=added(self.singly, later.singly),
        )

    def within(self, most: int) -> "Observed":
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


NOTHING = Observed()
ANOTHER_TYPE = "on_incompatible: new_column keeps such values in a column of their own."
"""What a message about a value that fits no column ends with."""


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
    seen: Observed = NOTHING
    change: pa.StructArray | None = None

    @property
    def rows(self) -> pa.StructArray:
        """A struct of the columns for each value; null where it is null, or failed."""
        if len(self.made) == len(self.error_class):
            return self.made
        return self.made.take(_at(self.places, len(self.error_class)))


def added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of two counters."""
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
    """Return the numbers of the values that are not null and not over the limit."""
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
