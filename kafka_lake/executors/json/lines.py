"""Many JSON texts as one run of bytes: what is where, found by looking at all of them at once."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.json.types import is_double

_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_BEGIN, _NUMBER_END = re.compile(rb"[0-9.eE+-]*"), re.compile(rb"[0-9.eE+-]*\Z")
_REACH = 40
_SIGNIFICANT = 15
_SPACE = np.frombuffer(b" \t\r\n", np.uint8)


def lines_of(texts: pa.Array) -> pa.Buffer:
    """Return texts as the lines of one."""
    values = pa.concat_arrays([texts, pa.array([""], texts.type)])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values), "\n")
    return joined[0].as_buffer()


class Lines:
    """The bytes of many texts in a row, and which of them a place is in."""

    def __init__(self, text: pa.Array) -> None:
        offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
        content = text.buffers()[2]
        self._starts = offsets - offsets[0]
        self._bytes = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] if content else np.zeros(0, np.uint8)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def around(self, place: int) -> bytes:
        """Return what may be a number around a place, of 80 characters at most."""
        before = _NUMBER_END.search(self._bytes[max(0, place - _REACH) : place].tobytes())
        behind = _NUMBER_BEGIN.match(self._bytes[place : place + _REACH].tobytes())
        return (before[0] if before else b"") + (behind[0] if behind else b"")

    def of(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers of the texts at these places."""
        found: np.ndarray = np.searchsorted(self._starts, places, side="right") - 1
        return found

    def opened(self) -> np.ndarray:
        """Return how many brackets each text opens."""
        # The square one differs in one bit.
        return np.bincount(self.of(np.flatnonzero((self._bytes | 32) == ord("{"))), minlength=len(self))

    def with_trailing_comma(self) -> np.ndarray:
        """Return the texts in which a comma stands before a closing bracket, in a string too."""
        closing = np.flatnonzero((self._bytes | 32) == ord("}"))
        before = closing - 1
        while (blank := np.isin(self._bytes[before], _SPACE)).any():
            before = np.where(blank, before - 1, before)
        return np.unique(self.of(closing[self._bytes[before] == ord(",")]))

    def long_numbers(self) -> np.ndarray:
        """Return places within what may be a number with a fraction and 16 digits, or with an exponent of 3."""
        padded = np.concatenate(
            [np.zeros(_SIGNIFICANT + 1, np.uint8), self._bytes, np.zeros(_SIGNIFICANT + 1, np.uint8)]
        )
        points = np.flatnonzero(self._bytes == ord("."))
        points = points[self._digits(padded, points, 1) & self._digits(padded, points, -1)]
        ahead, behind = (self._run(padded, points, step) for step in (1, -1))
        letters = np.flatnonzero((self._bytes | 32) == ord("e"))
        letters = letters[self._digits(padded, letters, -1)]
        signed = np.isin(padded[letters + _SIGNIFICANT + 2], (ord("-"), ord("+")))
        first = np.where(signed, 2, 1)
        long = np.ones(len(letters), dtype=bool)
        for step in range(3):
            long &= self._digits(padded, letters, first + step)
        # 16 digits without a point, and an exponent of any length.
        long |= self._digits(padded, letters, first) & (self._run(padded, letters, -1) > _SIGNIFICANT)
        return np.concatenate([points[ahead + behind > _SIGNIFICANT], letters[long]])

    @staticmethod
    def _digits(padded: np.ndarray, places: np.ndarray, step: Any) -> np.ndarray:
        found: np.ndarray = (padded[places + _SIGNIFICANT + 1 + step] - ord("0")) < 10
        return found

    @classmethod
    def _run(cls, padded: np.ndarray, places: np.ndarray, step: int) -> np.ndarray:
        """Return how many digits there are in a row from the places on, 16 at most."""
        count, still = np.zeros(len(places), dtype=np.int64), np.ones(len(places), dtype=bool)
        for index in range(1, _SIGNIFICANT + 2):
            still &= cls._digits(padded, places, step * index)
            if not still.any():
                break
            count += still
        return count


def fits_a_double(number: bytes) -> bool:
    """Return whether text that may be a number is what is stored of it as a double, as far as that is told at sight."""
    if len(number) > _REACH:
        return False
    # What is no number is a part of a text.
    return _NUMBER.fullmatch(number) is None or is_double(number.decode())
