"""Which numbers, as they are written, a double holds."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LEAST_NORMAL, _DIGITS_OF_ALL = sys.float_info.min, sys.float_info.dig
_NUMBER = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_OF_NUMBERS, _BEFORE, _AFTER = (
    np.isin(np.arange(256), np.frombuffer(characters, np.uint8))
    for characters in (b"0123456789.eE+-", b":[, \t\r\n", b"]}, \t\r\n")
)
_REACH = 26
"""A number of fewer characters is looked at; the longest text of a double has 24."""
_PART = 1 << 18
"""Bytes that are looked at in one go: what is made of them stays in the processor's cache."""
_SIGNIFICANT = 15


def is_double(number: str) -> bool:
    """Return whether a number, as it is written, is the same as the shortest text of the nearest double.

    The smallest numbers have fewer digits than others: of those, text with as many digits will do. Java writes two.

    >>> is_double("0.1"), is_double("0.10"), is_double("1e400"), is_double("9007199254740993"), is_double("1e-400")
    (True, True, False, False, False)
    >>> is_double("4.9E-324"), is_double("4.8E-324")
    (True, False)
    """
    near = float(number)
    text = repr(near)
    if text == number or same_number(text, number):
        return True
    if not 0 < abs(near) < _LEAST_NORMAL or (normal := _normal(number)) is None:
        return False
    return same_number(f"{near:.{min(len(normal[1]), _DIGITS_OF_ALL) - 1}e}", number)


def same_number(one: str, other: str) -> bool:
    """Return whether two texts are the same finite number."""
    return _normal(one) == _normal(other)


def _normal(number: str) -> tuple[bool, str, int] | None:
    """Return sign, digits without zeros at their ends, and the exponent of ten; None if it isn't finite."""
    mantissa, _, exponent = number.lower().partition("e")
    negative = mantissa.startswith("-")
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    if not (whole + fraction).isdigit():
        return None
    digits = (whole + fraction).lstrip("0")
    power = (int(exponent) if exponent and len(exponent) < 20 else 0 if not exponent else 10**20) - len(fraction)
    stripped = digits.rstrip("0")
    if not stripped:
        return (False, "", 0)
    return (negative, stripped, power + len(digits) - len(stripped))


def bytes_of(texts: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of texts, one after the other, and where each text starts; the end, too."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = texts.buffers()[2]
    held = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] if content else np.zeros(0, np.uint8)
    return held, offsets - offsets[0]


def with_rounded(texts: pa.StringArray) -> np.ndarray:
    """Return the numbers of the JSON texts with what may be a number that a double rounds, in a string too.

    Whole numbers are left out.
    """
    content, starts = bytes_of(texts)
    padded = np.concatenate([np.zeros(_REACH, np.uint8), content, np.zeros(_REACH + 1, np.uint8)])
    parts = [at + _long_numbers(padded[at : at + _PART + 2 * _REACH]) for at in range(0, len(content), _PART)]
    places = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if not len(places):
        return places
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * _REACH + 1)[places - _REACH]
    of_number = _OF_NUMBERS[around]
    before = np.argmin(of_number[:, _REACH::-1], axis=1)
    after = np.argmin(of_number[:, _REACH:], axis=1)
    rows = np.arange(len(places))
    # A UUID may have the digits of a number, but not what stands around one.
    alone = ((before == 0) | _BEFORE[around[rows, _REACH - before]]) & (
        (after == 0) | _AFTER[around[rows, _REACH + after]]
    )
    places, before, after = places[alone], before[alone], after[alone]
    whole = (before > 0) & (after > 0) & (before + after <= _REACH)
    held = whole.copy()
    held[whole] = _same_as_doubles(_texts_at(padded, (places - before + 1)[whole], (places + after)[whole]))
    return np.unique(np.searchsorted(starts, places[~held] - _REACH, side="right") - 1)


def _texts_at(content: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.StringArray:
    """Return parts of ASCII text."""
    offsets = np.concatenate([[0], np.cumsum(ends - starts)])
    index = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], ends - starts)
    return pa.StringArray.from_buffers(
        len(starts), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content[index])
    )


def _long_numbers(padded: np.ndarray) -> np.ndarray:
    """Return places within what may be a number with a fraction and 16 digits, or with an exponent of 3.

    Args:
        padded: Bytes. No place is among the first and last ``_REACH``.
    """
    is_digit = (padded - ord("0")) < 10

    def digits(places: np.ndarray, step: int) -> np.ndarray:
        """Count the digits in a row before or after places, 16 at most."""
        count, in_row = np.zeros(len(places), dtype=np.int64), np.ones(len(places), dtype=bool)
        for distance in range(1, _SIGNIFICANT + 2):
            in_row &= is_digit[places + step * distance]
            if not in_row.any():
                break
            count += in_row
        return count

    inner, before, after = slice(_REACH, -_REACH), slice(_REACH - 1, -_REACH - 1), slice(_REACH + 1, 1 - _REACH)
    points = _REACH + np.flatnonzero((padded[inner] == ord(".")) & is_digit[before] & is_digit[after])
    # One side has half of the digits.
    half = (_SIGNIFICANT + 1) // 2
    points = points[is_digit[points + half] | is_digit[points - half]]
    points = points[digits(points, 1) + digits(points, -1) > _SIGNIFICANT]
    letters = _REACH + np.flatnonzero(((padded[inner] | 32) == ord("e")) & is_digit[before])
    first = np.where(np.isin(padded[letters + 1], (ord("-"), ord("+"))), 2, 1)
    long = is_digit[letters + first] & is_digit[letters + first + 1] & is_digit[letters + first + 2]
    # 16 digits without a point, and an exponent of any length.
    long |= is_digit[letters + first] & (digits(letters, -1) > _SIGNIFICANT)
    return np.concatenate([points, letters[long]])


def _same_as_doubles(texts: pa.Array) -> np.ndarray:
    """Return which texts aren't numbers, or equal their nearest double."""
    numbers = pc.match_substring_regex(texts, _NUMBER).to_numpy(zero_copy_only=False)
    given = pc.if_else(pa.array(numbers), texts, "0")
    same: np.ndarray = pc.equal(given.cast(pa.float64()).cast(pa.string()), given).to_numpy(zero_copy_only=False)
    for number in np.flatnonzero(~same):
        same[number] = is_double(given[number].as_py())
    return same
