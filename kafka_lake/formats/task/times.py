"""Texts and numbers as dates and timestamps, whole arrays at once."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.task.columns import FIRST_MICROS, LAST_MICROS

_CLOCK = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d"
_OFFSET = r"[Zz]|[+-]([01]\d|2[0-3]):?[0-5]\d"
_DATE = r"\d{4}-\d\d-\d\d"
PLAIN_DATE = f"^{_DATE}Z?$"
PLAIN_TIMES = {
    "timestamp": rf"^{_DATE}[T ]{_CLOCK}(\.\d{{1,6}})?({_OFFSET})?$",
    "timestamp_ntz": rf"^{_DATE}[T ]{_CLOCK}(\.\d{{1,6}})?$",
}


def as_times(text: pa.Array, pattern: str, kind: pa.DataType) -> tuple[pa.Array, np.ndarray | None]:
    """Return texts as dates or timestamps, and which of them match the pattern and exist; None for all."""
    plain = pc.fill_null(pc.match_substring_regex(text, pattern), True)
    fit: np.ndarray | None = None
    if not pc.all(plain, min_count=0).as_py():
        fit = plain.to_numpy(zero_copy_only=False)
        text = pc.if_else(plain, text, None)
    try:
        times = _cast(text, kind)
    except pa.ArrowInvalid:
        # A day that no month has.
        single = [_cast_or_none(one, kind) for one in text.to_pylist()]
        times = pa.array(single, kind)
        real = np.array([one is not None for one in single]) | text.is_null().to_numpy(zero_copy_only=False)
        fit = real if fit is None else fit & real
    inside = in_range(times.cast(pa.timestamp("us")))
    if not inside.all():
        fit = inside if fit is None else fit & inside
    return times, fit


def _cast(text: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_date(kind):
        text = pc.ascii_rtrim(text, characters="Z")
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # Without an offset it is UTC.
        zoned = pc.match_substring_regex(text, r"([Zz]|[+-]\d\d:?\d\d)$")
        text = pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", ""))
    return text.cast(kind)


def _cast_or_none(text: str | None, kind: pa.DataType) -> Any:
    if text is None:
        return None
    try:
        return _cast(pa.array([text], pa.string()), kind)[0].as_py()
    except (pa.ArrowInvalid, ValueError, OverflowError):
        return None


def from_epoch(numbers: pa.Array, kind: pa.DataType, unit: float) -> tuple[pa.Array, np.ndarray]:
    """Return whole numbers since 1970 as timestamps, and which of them are whole microseconds in range."""
    count = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    if unit < 1:
        fit, micros = count % 1000 == 0, count // 1000
    else:
        # Not by its absolute value: the least number of 64 bits has none.
        limit = LAST_MICROS // int(unit)
        fit, micros = (-limit <= count) & (count <= limit), count * int(unit)
    fit &= (micros >= FIRST_MICROS) & (micros <= LAST_MICROS)
    times = pa.array(np.where(fit, micros, 0), pa.int64(), mask=numbers.is_null().to_numpy(zero_copy_only=False))
    return times.cast(kind), fit


def in_range(times: pa.Array) -> np.ndarray:
    """Return which timestamps are in the years 0001 to 9999; nulls are."""
    micros = pc.fill_null(times.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    inside: np.ndarray = (micros >= FIRST_MICROS) & (micros <= LAST_MICROS)
    return inside
