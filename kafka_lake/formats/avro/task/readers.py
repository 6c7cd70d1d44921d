"""Readers of Avro's simple types. Each reads values at many places at once into an Arrow array."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.avro.task.scan import Places, Rows, Scan, integer, span
from kafka_lake.formats.task.columns import FIRST_MICROS, LAST_MICROS
from kafka_lake.formats.task.times import PLAIN_DATE, PLAIN_TIMES, as_times

VARIABLE_SCALE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
ISO_TEXTS = tuple(f"io.debezium.time.{name}" for name in ("ZonedTimestamp", "IsoTimestamp", "IsoDate", "IsoTime"))
"""Debezium's text types."""
_DAYS = (FIRST_MICROS // 86_400_000_000, LAST_MICROS // 86_400_000_000)
_ZONED, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
_MAX_DIGITS, _LONG_DIGITS = 38, 18
_MAX_UNSCALED_BYTES, _MAX_SCALE = 128, 1024


class Reader:
    """Reads the values of one Avro type.

    Attributes:
        type: The Arrow type of the values; fields have no metadata.
        takes_bytes: Whether every value takes at least one byte.
        size: The bytes of each value; None if values differ in size.
    """

    type: pa.DataType
    takes_bytes: bool = True
    size: int | None = None

    @property
    def described(self) -> pa.DataType:
        """The type, with the docs of fields as their comments."""
        return self.type

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values at some places, and their ends; mark malformed values in the scan."""
        raise NotImplementedError

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        """Return the ends of the values at some places."""
        return self.read(scan, at, row)[1] if self.size is None else at + self.size


class _Null(Reader):
    type = pa.null()
    takes_bytes = False
    size = 0

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        return pa.nulls(len(at)), at


NULL = _Null()


class _Sized(Reader):
    """Reads values of a fixed size by a function of the places."""

    def __init__(self, type_: pa.DataType, size: int, made: Callable[[Scan, Places], np.ndarray]) -> None:
        self.type, self.size, self._made = type_, size, made

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        return pa.array(self._made(scan, at)), at + self.size


class _Integers(Reader):
    """Reads ints or longs, and types encoded as them: times, enums.

    Args:
        made: Makes values of 64-bit integers.
        bounds: The least and the greatest valid integer; None for all.
    """

    def __init__(
        self,
        kind: str,
        type_: pa.DataType,
        made: Callable[[np.ndarray], pa.Array],
        bounds: tuple[int, int] | None = None,
    ) -> None:
        self.type, self._made, self._bounds = type_, made, bounds
        self._numbers = Scan.ints if kind == "int" else Scan.longs

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        numbers, at = self._numbers(scan, at, row)
        if self._bounds is not None:
            wrong = (numbers < self._bounds[0]) | (numbers > self._bounds[1])
            if wrong.any():
                scan.fail(row, wrong)
                numbers = np.where(wrong, 0, numbers)
        return self._made(numbers), at

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        return self._numbers(scan, at, row)[1]


def _number(kind: str) -> Reader:
    type_ = pa.int32() if kind == "int" else pa.int64()
    return _Integers(kind, type_, lambda numbers: pa.array(numbers).cast(type_))


def _days() -> Reader:
    return _Integers("int", pa.date32(), lambda days: pa.array(days.astype(np.int32)).view(pa.date32()), _DAYS)


def _instants(type_: pa.DataType, unit: int) -> Reader:
    bounds = FIRST_MICROS // unit, LAST_MICROS // unit
    return _Integers("long", type_, lambda numbers: pa.array(numbers * unit).view(type_), bounds)


def _clocks(kind: str, unit: int) -> Reader:
    """Return the reader of times of day, as text that sorts by time."""

    def made(numbers: np.ndarray) -> pa.Array:
        return pa.array(numbers * unit).view(pa.time64("us")).cast(pa.string())

    return _Integers(kind, pa.string(), made, (0, 86_400_000_000 // unit - 1))


def enums(symbols: Sequence[str]) -> Reader:
    """Return the reader of enums, as their symbols."""
    texts = pa.array(symbols, pa.string())

    def made(numbers: np.ndarray) -> pa.Array:
        return texts.take(pa.array(numbers)) if len(texts) else pa.array([""] * len(numbers))

    return _Integers("int", pa.string(), made, (0, len(symbols) - 1))


class _Bytes(Reader):
    """Reads bytes, of a fixed size or with their length."""

    type = pa.binary()

    def __init__(self, size: int | None = None) -> None:
        self.size = size
        self.takes_bytes = size != 0

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        begin, length, at = self._spans(scan, at, row)
        return scan.binary(begin, length), at

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        return self._spans(scan, at, row)[2]

    def _spans(self, scan: Scan, at: Places, row: Rows) -> tuple[Places, np.ndarray, Places]:
        return scan.spans(at, row) if self.size is None else scan.fixed(at, row, self.size)


class _Strings(_Bytes):
    """Reads text; other bytes than UTF-8 are malformed."""

    type = pa.string()

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        begin, length, at = scan.spans(at, row)
        texts = scan.binary(begin, length, pa.string())
        if not (np.frombuffer(texts.buffers()[2] or b"", np.uint8) & 0x80).any():
            return texts, at
        try:
            texts.validate(full=True)
            return texts, at
        except pa.ArrowInvalid:
            content = texts.view(pa.binary())
            wrong = np.array([not _is_text(value) for value in content.to_pylist()])
        scan.fail(row, wrong)
        return pc.if_else(pa.array(wrong), pa.scalar(None, pa.binary()), content).view(pa.string()), at


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


class _IsoTexts(_Strings):
    """Reads Debezium's dates and times in text, of the years 1 to 9999; digits beyond microseconds are cut.

    Args:
        form: The regular expression of the whole text.
        plain: The format for `as_times`; None for text that stays text.
        zoned: Whether a Z at the end is a time zone: Debezium also writes it for types without one.
    """

    def __init__(self, type_: pa.DataType, form: str, plain: str | None, zoned: bool = False) -> None:
        super().__init__()
        self.type = type_
        self._form, self._plain, self._zoned = f"^{form}$", plain, zoned

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        texts, at = super().read(scan, at, row)
        good = pc.and_(pc.match_substring_regex(texts, self._form), pc.invert(pc.starts_with(texts, "0000")))
        good = pc.fill_null(good, False).to_numpy(zero_copy_only=False)
        texts = pc.if_else(pa.array(good), texts, None)
        if not self._zoned:
            texts = pc.ascii_rtrim(texts, characters="Z")
        if self._plain is not None:
            texts = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")
            texts, fit = as_times(texts, self._plain, self.type)
            good = good if fit is None else good & fit
        scan.fail(row, ~good)
        return texts, at


_DAY, _CLOCK = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
_ISO: Mapping[str, Reader] = dict(
    zip(
        ISO_TEXTS,
        (
            _IsoTexts(_ZONED, f"{_DAY}T{_CLOCK}(Z|[+-][0-9]{{2}}:[0-9]{{2}})", PLAIN_TIMES["timestamp"], zoned=True),
            _IsoTexts(_LOCAL, f"{_DAY}T{_CLOCK}Z?", PLAIN_TIMES["timestamp_ntz"]),
            _IsoTexts(pa.date32(), f"{_DAY}Z?", PLAIN_DATE),
            _IsoTexts(pa.string(), f"{_CLOCK}Z?", None),
        ),
        strict=True,
    )
)


class _DecimalNumbers(_Bytes):
    """Reads decimals of up to 38 digits; those with more digits than declared are malformed."""

    def __init__(self, precision: int, scale: int, size: int | None) -> None:
        super().__init__(size)
        self.type = pa.decimal128(precision, scale)
        self._limit = 10**precision

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        begin, length, end = self._spans(scan, at, row)
        high, low = _two_words(scan, end, length)
        good = (length > 0) & self._within(high, low)
        for number in np.flatnonzero(length > 16).tolist():
            first = scan.content[begin[number] : end[number] - 16]
            good[number] &= set(first) == {255 if high[number] < 0 else 0}
        if not good.all():
            scan.fail(row, ~good)
            high, low = np.where(good, high, 0), np.where(good, low, np.uint64(0))
        words = np.stack([low, high.view(np.uint64)], axis=1)
        return pa.Array.from_buffers(self.type, len(at), [None, pa.py_buffer(words)]), end

    def _within(self, high: np.ndarray, low: np.ndarray) -> np.ndarray:
        if self.type.precision <= _LONG_DIGITS:
            whole = low.view(np.int64)
            found: np.ndarray = (high == whole >> 63) & (whole < self._limit) & (whole > -self._limit)
            return found
        between: np.ndarray = _below(high, low, self._limit) & ~_below(high, low, 1 - self._limit)
        return between


def _two_words(scan: Scan, end: Places, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest 128 bits of big-endian integers: the upper half, signed, and the lower half."""
    low = scan.word(end - 8).byteswap().view(np.int64)
    high = scan.word(end - 16).byteswap().view(np.int64)
    short = length < 8
    if short.any():
        shift = np.where(short, np.minimum(64 - 8 * length, 63), 0)
        low = low << shift >> shift
    shift = np.clip(128 - 8 * length, 0, 63)
    high = np.where(length <= 8, low >> 63, high << shift >> shift)
    return high, low.view(np.uint64)


def _below(high: np.ndarray, low: np.ndarray, limit: int) -> np.ndarray:
    upper, lower = limit >> 64, np.uint64(limit & ((1 << 64) - 1))
    found: np.ndarray = (high < upper) | ((high == upper) & (low < lower))
    return found


class _DecimalTexts(_Bytes):
    """Reads decimals that no decimal column can hold, as text.

    Args:
        scale: The scale of all values; None for Debezium's records of a scale and a number.
    """

    type = pa.string()

    def __init__(self, scale: int | None, size: int | None = None) -> None:
        super().__init__(size)
        self._scale = scale

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        begin, length, end = self._spans(scan, at, row)
        if self._scale is None:
            begin, length = at, end - at
        texts: list[str | None] = []
        for content in scan.binary(begin, length).to_pylist():
            try:
                texts.append(self._text(content))
            except (ValueError, IndexError):
                texts.append(None)
        found = pa.array(texts, pa.string())
        if found.null_count:
            scan.fail(row, found.is_null().to_numpy(zero_copy_only=False))
        return found, end

    def _spans(self, scan: Scan, at: Places, row: Rows) -> tuple[Places, np.ndarray, Places]:
        return super()._spans(scan, scan.ints(at, row)[1] if self._scale is None else at, row)

    def _text(self, content: bytes) -> str:
        scale = self._scale
        if scale is None:
            scale, begin = integer(content, 0, 5)
            first, last = span(content, begin)
            content = content[first:last]
        if not 1 <= len(content) <= _MAX_UNSCALED_BYTES:
            raise ValueError("no number, or one with too many bytes")
        return decimal_text(int.from_bytes(content, "big", signed=True), scale)


def decimal_text(number: int, scale: int) -> str:
    """Return all digits of a decimal, with an exponent if the scale isn't between 0 and 1024.

    >>> decimal_text(-5, 3), decimal_text(1250, 0), decimal_text(12, -3)
    ('-0.005', '1250', '12E3')
    """
    if not 0 <= scale <= _MAX_SCALE:
        return f"{number}E{-scale}"
    digits = str(abs(number)).rjust(scale + 1, "0")
    pointed = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"-{pointed}" if number < 0 else pointed


def _decimals(node: Mapping[str, Any], size: int | None) -> Reader | None:
    """Return the reader of a decimal; None if its declaration is invalid."""
    precision, scale = node.get("precision"), node.get("scale", 0)
    most = math.inf if size is None else math.floor(math.log10(2) * (8 * size - 1))
    if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= most) or not precision:
        return None
    return _DecimalNumbers(precision, scale, size) if precision <= _MAX_DIGITS else _DecimalTexts(scale, size)


PRIMITIVES: Mapping[str, Callable[[], Reader]] = {
    "null": lambda: NULL,
    # As in Java, all bytes but 1 are false.
    "boolean": lambda: _Sized(pa.bool_(), 1, lambda scan, at: scan.byte(at) == 1),
    "int": partial(_number, "int"),
    "long": partial(_number, "long"),
    "float": lambda: _Sized(pa.float32(), 4, lambda scan, at: scan.word(at).astype("<u4").view("<f4")),
    "double": lambda: _Sized(pa.float64(), 8, lambda scan, at: scan.word(at).view("<f8")),
    "string": _Strings,
    "bytes": _Bytes,
}
_TIMES: Mapping[tuple[str, str], Callable[[], Reader]] = {
    ("int", "date"): _days,
    ("int", "time-millis"): partial(_clocks, "int", 1000),
    ("long", "time-micros"): partial(_clocks, "long", 1),
    ("long", "timestamp-millis"): partial(_instants, _ZONED, 1000),
    ("long", "timestamp-micros"): partial(_instants, _ZONED, 1),
    ("long", "local-timestamp-millis"): partial(_instants, _LOCAL, 1000),
    ("long", "local-timestamp-micros"): partial(_instants, _LOCAL, 1),
}


def primitive(kind: str, node: Mapping[str, Any]) -> Reader:
    """Return the reader of a primitive or logical type; unknown logical types are ignored."""
    logical = node.get("logicalType")
    reader: Reader | None = None
    if isinstance(logical, str):
        if make := _TIMES.get((kind, logical)):
            reader = make()
        elif kind == "string":
            reader = _ISO.get(logical)
        elif (kind, logical) == ("bytes", "decimal"):
            reader = _decimals(node, None)
    return reader or PRIMITIVES[kind]()


def fixed(node: Mapping[str, Any], size: int) -> Reader:
    """Return the reader of a fixed type, or of a decimal."""
    return (_decimals(node, size) if node.get("logicalType") == "decimal" else None) or _Bytes(size)


def variable_scale_decimals() -> Reader:
    """Return the reader of Debezium's records of a scale and a number, as text."""
    return _DecimalTexts(None)
