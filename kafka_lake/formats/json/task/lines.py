"""Many JSON texts as one run of bytes: what is where, found by looking at all of them at once."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.json.task.types import is_double

_NUMBER = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_OF_NUMBERS = np.isin(np.arange(256), np.frombuffer(b"0123456789.eE+-", np.uint8))
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

    def of(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers of the texts at these places."""
        found: np.ndarray = np.searchsorted(self._starts, places, side="right") - 1
        return found

    def opened(self) -> np.ndarray:
        """Return how many brackets each text opens."""
        found = np.zeros(len(self), dtype=np.int32)
        full = np.flatnonzero(np.diff(self._starts))
        if len(full):
            # The square one differs in one bit. From one start to the next, empty texts between are left out.
            brackets = ((self._bytes | 32) == ord("{")).view(np.uint8)
            found[full] = np.add.reduceat(brackets, self._starts[full], dtype=np.int32)
        return found

    def with_trailing_comma(self) -> np.ndarray:
        """Return the texts in which a comma stands before a closing bracket, in a string too."""
        closing = np.flatnonzero((self._bytes | 32) == ord("}"))
        before = closing - 1
        while (blank := np.isin(self._bytes[before], _SPACE)).any():
            before = np.where(blank, before - 1, before)
        return np.unique(self.of(closing[self._bytes[before] == ord(",")]))

    def unlike_doubles(self) -> np.ndarray:
        """Return the texts with what may be a number that isn't the same as the double next to it."""
        places = self._long_numbers()
        if not len(places):
            return places
        numbers, whole = self._around(places)
        fit = whole & _same_as_doubles(numbers)
        return np.unique(self.of(places[~fit]))

    def _around(self, places: np.ndarray) -> tuple[pa.Array, np.ndarray]:
        """Return what may be a number around each place, and whether that is all of it."""
        padded = np.concatenate([np.zeros(_REACH, np.uint8), self._bytes, np.zeros(_REACH + 1, np.uint8)])
        of_number = _OF_NUMBERS[np.lib.stride_tricks.sliding_window_view(padded, 2 * _REACH + 1)[places]]
        ahead = np.argmin(of_number[:, _REACH::-1], axis=1)
        behind = np.argmin(of_number[:, _REACH:], axis=1)
        content = self._bytes.tobytes()
        spans = zip((places - ahead + 1).tolist(), (places + behind).tolist(), strict=True)
        numbers = pa.array([content[start:end] for start, end in spans], pa.binary()).cast(pa.string())
        return numbers, (ahead > 0) & (behind > 0) & (ahead + behind <= _REACH)

    def _long_numbers(self) -> np.ndarray:
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


def _same_as_doubles(texts: pa.Array) -> np.ndarray:
    """Return which texts are no number, or the same as the double next to them, as far as that is seen at sight."""
    numbers = pc.match_substring_regex(texts, _NUMBER).to_numpy(zero_copy_only=False)
    given = pc.if_else(pa.array(numbers), texts, "0")
    same: np.ndarray = pc.equal(given.cast(pa.float64()).cast(pa.string()), given).to_numpy(zero_copy_only=False)
    for number in np.flatnonzero(~same):
        # What is no number is a part of a text.
        same[number] = is_double(given[number].as_py())
    return same
