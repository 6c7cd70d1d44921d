"""Reads the bytes of a batch of Avro values at many places at once.

https://avro.apache.org/docs/1.12.0/specification/#binary-encoding

Each value has a cursor that only moves forward. It may pass the end of a malformed value: no byte after the batch is
read, and a value is valid only if its cursor stops at its end.
"""

import numpy as np
import pyarrow as pa

Places = np.ndarray
"""64-bit places of cursors in the bytes."""
Rows = np.ndarray
"""Ascending numbers of the cursors' values."""

_PAD = 16
_INT_BYTES, _LONG_BYTES = 5, 10
_MORE = np.uint64(0x8080808080808080)
_SEVENS = np.uint64(0x7F7F7F7F7F7F7F7F)
_HALVES = (
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)
_ONE, _THREE = np.uint64(1), np.uint8(3)
_INT = np.uint64(0xFFFFFFFF)


class Scan:
    """The bytes of a batch's values."""

    def __init__(self, values: pa.BinaryArray) -> None:
        _, offsets, content = values.buffers()
        places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        first, size = int(places[0]), int(places[-1] - places[0])
        self.data = np.zeros(size + 2 * _PAD, np.uint8)
        if size:
            self.data[_PAD : _PAD + size] = np.frombuffer(content, np.uint8)[first : first + size]
        places += _PAD - first
        self.begins, self.ends = places[:-1], places[1:]
        self.bad = np.zeros(len(values), dtype=bool)
        self._last = _PAD + size
        self._words = np.ndarray(len(self.data) - 7, "<u8", self.data, strides=(1,))
        self._buffer = pa.py_buffer(self.data)
        self._content: bytes | None = None

    @property
    def content(self) -> bytes:
        """The bytes, for readers of single values."""
        if self._content is None:
            self._content = self.data.tobytes()
        return self._content

    def fail(self, row: Rows, wrong: np.ndarray) -> None:
        """Mark values as malformed."""
        self.bad[row[wrong]] = True

    def byte(self, at: Places) -> np.ndarray:
        """Return the byte at each place."""
        found: np.ndarray = self.data[np.minimum(at, self._last)]
        return found

    def word(self, at: Places) -> np.ndarray:
        """Return eight bytes from each place on, little-endian; places before the first value give any bytes."""
        found: np.ndarray = self._words[np.minimum(at, self._last)]
        return found

    def longs(self, at: Places, row: Rows) -> tuple[np.ndarray, Places]:
        """Return the long at each place, and where it ends."""
        first = self.byte(at)
        if not (first & 0x80).any():
            return _signed(first.astype(np.uint64)), at + 1
        found, size, unended = self._varints(at)
        if unended.any():
            rest = np.flatnonzero(unended)
            ninth, tenth = (self.byte(at[rest] + n).astype(np.uint64) for n in (8, 9))
            two = ninth >= 0x80
            # Bits beyond 64 are dropped, as in Java.
            found[rest] |= ((ninth & np.uint64(0x7F)) << np.uint64(56)) | (two * ((tenth & _ONE) << np.uint64(63)))
            size[rest] = np.where(two, _LONG_BYTES, _LONG_BYTES - 1)
            self.fail(row[rest], two & (tenth >= 0x80))
        return _signed(found), at + size

    def ints(self, at: Places, row: Rows) -> tuple[np.ndarray, Places]:
        """Return the int at each place, as 64 bits, and where it ends."""
        first = self.byte(at)
        if not (first & 0x80).any():
            return _signed(first.astype(np.uint64)), at + 1
        found, size, _ = self._varints(at)
        if (long := size > _INT_BYTES).any():
            self.fail(row, long)
        return _signed(found & _INT), at + size

    def spans(self, at: Places, row: Rows) -> tuple[Places, np.ndarray, Places]:
        """Return start, length and end of the bytes at each place."""
        length, at = self.longs(at, row)
        room = self.ends[row] - at
        wrong = (length < 0) | (length > room)
        if wrong.any():
            self.fail(row, wrong)
            length = np.where(wrong, 0, length)
            at = np.minimum(at, self.ends[row])
        return at, length, at + length

    def fixed(self, at: Places, row: Rows, size: int) -> tuple[Places, np.ndarray, Places]:
        """Return start, length and end of bytes of a fixed size at each place."""
        wrong = at + size > self.ends[row]
        length = np.full(len(at), size)
        if wrong.any():
            self.fail(row, wrong)
            length[wrong] = 0
            at = np.minimum(at, self.ends[row])
        return at, length, at + length

    def binary(self, begin: Places, length: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
        """Return bytes as an array. Places ascend and don't overlap; text isn't validated."""
        kind = kind or pa.binary()
        if not len(begin):
            return pa.array([], kind)
        # One array over all bytes: every second element is a value, the others are the gaps.
        offsets = np.empty(2 * len(begin), np.int32)
        offsets[0::2], offsets[1::2] = begin, begin + length
        whole = pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), self._buffer])
        return whole.take(pa.array(np.arange(0, len(offsets), 2)))

    def _varints(self, at: Places) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the unsigned varints of up to eight bytes at each place, their sizes, and which are longer."""
        word = self.word(at)
        stops = ~word & _MORE
        low = stops & (~stops + _ONE)
        mask = (low << _ONE) - _ONE
        word &= mask & _SEVENS
        for keep, move, shift in _HALVES:
            word = (word & keep) | ((word & move) >> shift)
        return word, (np.bitwise_count(mask) >> _THREE).astype(np.int64), stops == 0


def _signed(number: np.ndarray) -> np.ndarray:
    half: np.ndarray = (number >> _ONE).view(np.int64)
    return half ^ -(number & _ONE).view(np.int64)


def integer(content: bytes, at: int, most: int = _LONG_BYTES) -> tuple[int, int]:
    """Return the int or long at a place, and where it ends.

    >>> integer(bytes([0x03]), 0), integer(bytes([0x80, 0x01]), 0)
    ((-2, 1), (64, 2))
    """
    found = 0
    for number in range(most):
        byte = content[at + number]
        found |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            found &= (1 << (64 if most == _LONG_BYTES else 32)) - 1
            return (found >> 1) ^ -(found & 1), at + number + 1
    raise ValueError("a number that doesn't end")


def span(content: bytes, at: int) -> tuple[int, int]:
    """Return start and end of the bytes at a place; raises ValueError or IndexError if bytes are missing."""
    length, begin = integer(content, at)
    if not 0 <= length <= len(content) - begin:
        raise ValueError("longer than the value")
    return begin, begin + length


def spread(values: pa.Array, at: np.ndarray, count: int) -> pa.Array:
    """Return an array of a length with values at ascending places, and null at the others.

    >>> spread(pa.array(["x", "y"]), np.array([0, 2]), 3).to_pylist()
    ['x', None, 'y']
    """
    if len(values) == count:
        return values
    if not len(values):
        return pa.nulls(count, values.type)
    indexes = np.full(count, -1, dtype=np.int64)
    indexes[at] = np.arange(len(values))
    return values.take(pa.array(indexes, mask=indexes < 0))
