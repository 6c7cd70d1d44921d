"""From what Arrow's parser reads to the arrays of columns, and which of the values are the ones that were written."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.json.columns import FIRST_MICROS, LAST_MICROS

_CLOCK = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d"
_OFFSET = r"[Zz]|[+-]([01]\d|2[0-3]):?[0-5]\d"
_DATE = r"\d{4}-\d\d-\d\d"
PLAIN_DATE = f"^{_DATE}Z?$"
PLAIN_TIMES = {
    "timestamp": rf"^{_DATE}[T ]{_CLOCK}(\.\d{{1,6}})?({_OFFSET})?$",
    "timestamp_ntz": rf"^{_DATE}[T ]{_CLOCK}(\.\d{{1,6}})?$",
}


def structs(rows: Sequence[Sequence[Any]], kind: Any) -> pa.StructArray:
    """Return rows, each the values of its columns, as an array of structs."""
    columns = zip(*rows, strict=True) if rows else [()] * kind.num_fields
    arrays = [pa.array(column, field.type) for column, field in zip(columns, kind, strict=True)]
    if not arrays:
        return pa.array([{}] * len(rows), kind)
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def list_like(array: pa.Array, items: pa.Array, kind: Any) -> pa.Array:
    """Return lists of the same lengths as those of an array, nulls where it has nulls, with other items."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]), pa.int32())
    return pa.ListArray.from_arrays(offsets, items, kind, mask=array.is_null())


def as_times(text: pa.Array, pattern: str, kind: Any) -> tuple[pa.Array, np.ndarray | None]:
    """Return texts as dates or times, and which of them are plain ones; None for all."""
    plain = pc.fill_null(pc.match_substring_regex(text, pattern), True)
    fit: np.ndarray | None = None
    if not pc.all(plain, min_count=0).as_py():
        fit = plain.to_numpy(zero_copy_only=False)
        text = pc.if_else(plain, text, None)
    try:
        made = _cast(text, kind)
    except pa.ArrowInvalid:
        # A day that no month has.
        each = [_cast_or_none(one, kind) for one in text.to_pylist()]
        made = pa.array(each, kind)
        real = np.array([one is not None for one in each]) | text.is_null().to_numpy(zero_copy_only=False)
        fit = real if fit is None else fit & real
    inside = in_range(made.cast(pa.timestamp("us")))
    if not inside.all():
        fit = inside if fit is None else fit & inside
    return made, fit


def _cast(text: pa.Array, kind: Any) -> pa.Array:
    if pa.types.is_date(kind):
        text = pc.ascii_rtrim(text, characters="Z")
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # With an offset and without one, which means UTC.
        zoned = pc.match_substring_regex(text, r"([Zz]|[+-]\d\d:?\d\d)$")
        text = pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", ""))
    return text.cast(kind)


def _cast_or_none(text: str | None, kind: Any) -> Any:
    if text is None:
        return None
    try:
        return _cast(pa.array([text], pa.string()), kind)[0].as_py()
    except (pa.ArrowInvalid, ValueError, OverflowError):
        return None


def from_epoch(numbers: pa.Array, kind: Any, unit: float) -> tuple[pa.Array, np.ndarray | None]:
    """Return numbers since 1970 as times, and which of them a column holds; None for all.

    Args:
        kind: The type of the times.
    """
    count = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    if unit < 1:
        # Digits beyond microseconds are looked at one by one.
        fit, micros = count % 1000 == 0, count // 1000
    else:
        # Not by its absolute value: the least number of 64 bits has none.
        limit = LAST_MICROS // int(unit)
        fit, micros = (-limit <= count) & (count <= limit), count * int(unit)
    fit &= (micros >= FIRST_MICROS) & (micros <= LAST_MICROS)
    made = pa.array(np.where(fit, micros, 0), pa.int64(), mask=numbers.is_null().to_numpy(zero_copy_only=False))
    return made.cast(kind), None if fit.all() else fit


def in_range(times: pa.Array) -> np.ndarray:
    """Return which times are of the years 0001 to 9999; nulls are."""
    micros = pc.fill_null(times.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    found: np.ndarray = (micros >= FIRST_MICROS) & (micros <= LAST_MICROS)
    return found
