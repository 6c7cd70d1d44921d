"""Decimals: numbers up to 38 digits, text beyond."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from kafka_lake.executors.avro.reader import Reader
from kafka_lake.executors.avro.scan import Places, Rows, Scan, after_varint, integer, span

MAX_DIGITS = 38
_LONG_DIGITS = 18
_MAX_UNSCALED_BYTES = 128
_MAX_SCALE = 1024
_LOW = (1 << 64) - 1


def decimal_of(node: Mapping[str, Any], size: int | None) -> Reader | None:
    """Return what reads a decimal; None if it is declared as the specification doesn't allow.

    Args:
        size: The bytes of a fixed type; None for bytes.
    """
    precision, scale = node.get("precision"), node.get("scale", 0)
    most = math.inf if size is None else math.floor(math.log10(2) * (8 * size - 1))
    if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= most) or not precision:
        return None
    if precision <= MAX_DIGITS:
        return DecimalNumbers(precision, scale, size)
    return DecimalTexts(lambda content: decimal_text(_unscaled(content), scale), size)


class _OfBytes(Reader):
    """Reads what stands in bytes, or in a fixed type."""

    def __init__(self, size: int | None) -> None:
        self.size = size

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        """Return where the values end."""
        return self._spans(scan, at, row)[2]

    def walk(self, content: bytes, at: int) -> int:
        """Return where a value ends."""
        return span(content, at)[1] if self.size is None else at + self.size

    def _spans(self, scan: Scan, at: Places, row: Rows) -> tuple[Places, np.ndarray, Places]:
        return scan.spans(at, row) if self.size is None else scan.fixed(at, row, self.size)


class DecimalNumbers(_OfBytes):
    """Reads decimals that a table has as numbers; those with more digits are malformed."""

    def __init__(self, precision: int, scale: int, size: int | None) -> None:
        super().__init__(size)
        self.type = pa.decimal128(precision, scale)
        self._limit = 10**precision

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
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
    """Return the lowest 128 bits of big-endian numbers: the upper half, signed, and the lower one."""
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
    upper, lower = limit >> 64, np.uint64(limit & _LOW)
    found: np.ndarray = (high < upper) | ((high == upper) & (low < lower))
    return found


class DecimalTexts(_OfBytes):
    """Reads decimals that no table has as numbers, as text.

    Args:
        text: Makes it of the bytes of a value; raises ValueError if they are malformed.
        size: The bytes of a fixed type; None for bytes.
    """

    type = pa.string()

    def __init__(self, text: Callable[[bytes], str], size: int | None = None) -> None:
        super().__init__(size)
        self._text = text

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        begin, _, end = self._spans(scan, at, row)
        return texts_of(scan, begin, end, row=row, text=self._text), end


class ScaledDecimals(Reader):
    """Reads Debezium's record of a scale and a number, as text."""

    type = pa.string()

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        end = self.skip(scan, at, row)

        def text(content: bytes) -> str:
            scale, begin = integer(content, 0, 5)
            first, last = span(content, begin)
            return decimal_text(_unscaled(content[first:last]), scale)

        return texts_of(scan, at, end, row=row, text=text), end

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        """Return where the values end."""
        return scan.spans(scan.ints(at, row)[1], row)[2]

    def walk(self, content: bytes, at: int) -> int:
        """Return where a value ends."""
        return span(content, after_varint(content, at))[1]


def texts_of(scan: Scan, begin: Places, end: Places, row: Rows, text: Callable[[bytes], str]) -> pa.Array:
    """Return texts that are made value by value, null where the bytes are malformed, which is marked."""
    made: list[str | None] = []
    for first, last in zip(begin.tolist(), end.tolist(), strict=True):
        try:
            made.append(text(scan.content[first:last]))
        except (ValueError, IndexError, RecursionError):
            made.append(None)
    found = pa.array(made, pa.string())
    if found.null_count:
        scan.fail(row, found.is_null().to_numpy(zero_copy_only=False))
    return found


def big_decimal(content: bytes) -> str:
    """Return a big-decimal as text: the unscaled number as bytes, then the scale as int.

    Raises:
        ValueError: If the bytes are malformed, or go on.
    """
    begin, end = span(content, 0)
    scale, after = integer(content, end, 5)
    if after != len(content):
        raise ValueError("longer than its scale")
    return decimal_text(_unscaled(content[begin:end]), scale)


def decimal_text(number: int, scale: int) -> str:
    """Return all digits of a decimal; with an exponent where the scale isn't 0 to 1024.

    >>> decimal_text(-5, 3), decimal_text(1250, 0), decimal_text(12, -3)
    ('-0.005', '1250', '12E3')
    """
    if not 0 <= scale <= _MAX_SCALE:
        return f"{number}E{-scale}"
    digits = str(abs(number)).rjust(scale + 1, "0")
    pointed = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"-{pointed}" if number < 0 else pointed


def _unscaled(content: bytes) -> int:
    if not 1 <= len(content) <= _MAX_UNSCALED_BYTES:
        raise ValueError("no number, or an endless one")
    return int.from_bytes(content, "big", signed=True)
