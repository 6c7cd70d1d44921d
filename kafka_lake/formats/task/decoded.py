"""What decoders return: columns, error classes and messages, and what they observed that no column has."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.json.task.types import Kind, first_leaves, leaves, merged
from kafka_lake.formats.task.error_classes import TOO_LARGE

MESSAGE = 2000
"""Characters of an error message that are kept."""
Errors = dict[int, tuple[str, str]]
"""Number of a record → error class and message."""


@dataclass(frozen=True)
class Observed:
    """What a batch had that no column has, and how it was decoded. Paths are of columns.

    Args:
        new_fields: Fields without a column: ``{"in": {column: …}, "new": {field: type}}``, a level for each struct and
            list.
        type_errors: Types of the values that fit no column, as a struct's type; None if all fit.
        truncated: Path → how many of its times lost digits beyond microseconds.
        empty: Fields without a column that were always empty.
        more: Further fields without a column, only counted.
        unmapped: Field without a column → how many values it had.
        rounded: Path → how many of its numbers were rounded.
        schemas: Schema of a registry, as `name_of` writes it → how many values it wrote.
        key: The same of the records' keys.
        slow: Why records were decoded one by one → how many.
    """

    new_fields: Mapping[str, Any] = field(default_factory=dict)
    type_errors: Kind = None
    truncated: Mapping[str, int] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()
    more: int = 0
    unmapped: Mapping[str, int] = field(default_factory=dict)
    rounded: Mapping[str, int] = field(default_factory=dict)
    schemas: Mapping[str, int] = field(default_factory=dict)
    key: "Observed | None" = None
    slow: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        # How records were decoded says nothing about columns.
        return any(getattr(self, part.name) for part in fields(self) if part.name != "slow")

    def data(self) -> dict[str, Any]:
        """Return it as JSON can have it."""
        return {**vars(self), "empty": sorted(self.empty), "key": self.key and self.key.data()}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Observed":
        """Return what `data` returned as an object."""
        return cls(**{**data, "empty": frozenset(data["empty"]), "key": data["key"] and cls.of(data["key"])})

    def and_(self, later: "Observed") -> "Observed":
        """Return what two batches had together."""
        return Observed(
            merged_new_fields(self.new_fields, later.new_fields),
            merged(self.type_errors, later.type_errors),
            truncated=added(self.truncated, later.truncated),
            empty=self.empty | later.empty,
            more=self.more + later.more,
            unmapped=added(self.unmapped, later.unmapped),
            rounded=added(self.rounded, later.rounded),
            schemas=added(self.schemas, later.schemas),
            key=self.key.and_(later.key) if self.key and later.key else self.key or later.key,
            slow=added(self.slow, later.slow),
        )

    def within(self, limit: int) -> "Observed":
        """Return it with at most so many schemas, and new, wrong and empty fields; further fields are counted.

        Names may be data, other ones in each record: the report must not grow with the records.
        """
        schemas = dict(Counter(self.schemas).most_common(limit)) if len(self.schemas) > limit else self.schemas
        new, wrong = new_field_leaves(self.new_fields), leaves(self.type_errors)
        # New fields are among those without a column.
        counts = new, wrong, len(self.empty), 0 if new > limit else len(self.unmapped)
        return replace(
            self,
            schemas=schemas,
            new_fields=first_new_fields(self.new_fields, limit) if new > limit else self.new_fields,
            type_errors=first_leaves(self.type_errors, limit) if wrong > limit else self.type_errors,
            empty=frozenset(sorted(self.empty)[:limit]),
            unmapped=dict(sorted(self.unmapped.items())[:limit]),
            more=self.more + sum(max(0, count - limit) for count in counts),
        )


NOTHING = Observed()
ANOTHER_TYPE = "on_incompatible: new_column stores such values in a second column."
"""The end of a message about a value that fits no column."""


@dataclass(frozen=True)
class Decoded:
    """A decoded batch of values, in their order.

    Args:
        made: A struct of the columns for each value that isn't null and didn't fail.
        places: The numbers of these values, ascending.
        seen: What no column has.
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
        """A struct of the columns for each value; null if it is null, or failed."""
        if len(self.made) == len(self.error_class):
            return self.made
        return self.made.take(_numbers_at(self.places, len(self.error_class)))


def added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of two counters."""
    return {path: one.get(path, 0) + other.get(path, 0) for path in {**one, **other}}


def merged_new_fields(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new fields of two batches."""
    if not one or not other:
        return dict(one or other)
    inner, new = dict(one.get("in", {})), dict(one.get("new", {}))
    for name, below in other.get("in", {}).items():
        inner[name] = merged_new_fields(inner.get(name, {}), below)
    for name, kind in other.get("new", {}).items():
        new[name] = merged(new.get(name), kind)
    return {part: content for part, content in (("in", inner), ("new", new)) if content}


def new_field_leaves(new_fields: Mapping[str, Any]) -> int:
    """Return how many scalars the new fields are made of."""
    new = sum(map(leaves, new_fields.get("new", {}).values()))
    return new + sum(map(new_field_leaves, new_fields.get("in", {}).values()))


def first_new_fields(new_fields: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return the new fields up to so many scalars."""
    kept: dict[str, Any] = {}
    known = first_leaves(["struct", dict(new_fields.get("new", {}))], limit)
    if known is not None:
        kept["new"] = known[1]
        limit -= leaves(known)
    for name, below in new_fields.get("in", {}).items():
        if first := first_new_fields(below, limit):
            kept.setdefault("in", {})[name] = first
            limit -= new_field_leaves(first)
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


def _numbers_at(places: np.ndarray, count: int) -> pa.Array:
    """Return for each of so many values its number among the places; null if it isn't there."""
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
    where = _numbers_at(np.fromiter(errors, dtype=np.int64, count=len(errors)), count)
    classes, messages = (pa.array(texts, pa.string()) for texts in zip(*errors.values(), strict=True))
    return classes.take(where), messages.take(where)
