"""Many JSON texts as one run of bytes: what is where, found by looking at all of them at once."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.json.types import is_double

_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_BEGIN, _NUMBER_END = re.compile(rb"[0-9.eE+-]*"), re.compile(rb"[0-9.eE+-]*\Z")
_REACH = 40
_SIGNIFICANT = 15


class Block:
    """Values as the lines of a text.

    Attributes:
        lines: The text.
    """

    def __init__(self, text: pa.Array) -> None:
        values = pa.concat_arrays([text, pa.array([""], text.type)])
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values), "\n")
        self.lines: pa.Buffer = joined[0].as_buffer()
        self._starts = np.zeros(len(text) + 1, dtype=np.int64)
        np.cumsum(pc.binary_length(text).to_numpy(zero_copy_only=False) + 1, out=self._starts[1:])

    def __len__(self) -> int:
        return len(self._starts) - 1

    def behind(self, count: int) -> "Block":
        """Return what is left behind the first values."""
        rest = Block.__new__(Block)
        begin = int(self._starts[count])
        rest.lines, rest._starts = self.lines.slice(begin), self._starts[count:] - begin
        return rest

    def parts(self, count: int, size: int) -> Iterator["Block"]:
        """Yield the values in parts of so many values and bytes at most, but of one value at least."""
        first = 0
        while first < len(self):
            end = int(np.searchsorted(self._starts, self._starts[first] + size, side="right")) - 1
            end = max(first + 1, min(end, first + count))
            part = self.behind(first)
            part.lines = part.lines.slice(0, int(self._starts[end] - self._starts[first]))
            part._starts = part._starts[: end - first + 1]
            yield part
            first = end


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
        return self._brackets("{")

    def balanced(self) -> np.ndarray:
        """Return which texts close as many brackets as they open; those in strings count too."""
        found: np.ndarray = self._brackets("{") == self._brackets("}")
        return found

    def _brackets(self, curly: str) -> np.ndarray:
        # The square one differs in one bit.
        return np.bincount(self.of(np.flatnonzero((self._bytes | 32) == ord(curly))), minlength=len(self))

    def matching(self, pattern: bytes) -> np.ndarray:
        """Return the texts in which a pattern begins to match."""
        return self.of(np.array([match.start() for match in re.finditer(pattern, self._bytes.data)], dtype=np.int64))

    def places(self, word: bytes) -> np.ndarray:
        """Return where a word is."""
        whole, found, place = self._bytes.tobytes(), [], -1
        while (place := whole.find(word, place + 1)) >= 0:
            found.append(place)
        return np.array(found, dtype=np.int64)

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
