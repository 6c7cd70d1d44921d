"""Primitive types and logical types: numbers, text, times, UUIDs, durations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kafka_lake.executors.avro.decimals import DecimalTexts, big_decimal, decimal_of
from kafka_lake.executors.avro.reader import Reader, Sized
from kafka_lake.executors.avro.scan import Places, Rows, Scan, after_varint
from kafka_lake.executors.avro.texts import Bytes, Strings, Uuids, iso_text
from kafka_lake.executors.json.columns import FIRST_MICROS, LAST_MICROS

DURATION = pa.struct([(name, pa.int64()) for name in ("months", "days", "millis")])
_DAYS = (FIRST_MICROS // 86_400_000_000, LAST_MICROS // 86_400_000_000)
_ZONED, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


class Booleans(Sized):
    """Reads booleans; as in Java, what isn't 1 is false."""

    type = pa.bool_()
    size = 1
    primitive = "boolean"

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        return pa.array(scan.byte(at) == 1), at + 1


class Floats(Sized):
    """Reads floats."""

    type = pa.float32()
    size = 4
    primitive = "float"

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        return pa.array(scan.word(at).astype("<u4").view("<f4")), at + 4


class Doubles(Sized):
    """Reads doubles."""

    type = pa.float64()
    size = 8
    primitive = "double"

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        return pa.array(scan.word(at).view("<f8")), at + 8


class Wholes(Reader):
    """Reads ints or longs, and the times that are counted by them.

    Args:
        unit: By how much a number is multiplied.
        bounds: The first and the last number that isn't malformed; None for all.
    """

    def __init__(self, kind: str, type_: pa.DataType, unit: int = 1, bounds: tuple[int, int] | None = None) -> None:
        self.type = type_
        self._is_int, self._unit, self._bounds = kind == "int", unit, bounds
        self.primitive = kind if pa.types.is_integer(type_) and unit == 1 else None

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        numbers, at = scan.ints(at, row) if self._is_int else scan.longs(at, row)
        if self._bounds is not None:
            wrong = (numbers < self._bounds[0]) | (numbers > self._bounds[1])
            if wrong.any():
                scan.fail(row, wrong)
                numbers = np.where(wrong, 0, numbers)
        if self._unit != 1:
            numbers = numbers * self._unit
        return self._made(numbers), at

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        """Return where the values end."""
        return (scan.ints(at, row) if self._is_int else scan.longs(at, row))[1]

    def walk(self, content: bytes, at: int) -> int:
        """Return where a value ends."""
        return after_varint(content, at)

    def _made(self, numbers: np.ndarray) -> pa.Array:
        narrow = np.int32 if pa.types.is_int32(self.type) or pa.types.is_date32(self.type) else np.int64
        return pa.array(numbers.astype(narrow, copy=False)).view(self.type)


class Clocks(Wholes):
    """Reads times of a day as text that sorts by time."""

    def __init__(self, kind: str, unit: int) -> None:
        super().__init__(kind, pa.string(), unit, (0, 86_400_000_000 // unit - 1))

    def _made(self, numbers: np.ndarray) -> pa.Array:
        return pa.array(numbers).view(pa.time64("us")).cast(pa.string())


class Enums(Wholes):
    """Reads enums as their symbols."""

    def __init__(self, symbols: Sequence[str]) -> None:
        super().__init__("int", pa.string(), 1, (0, len(symbols) - 1))
        self._symbols = pa.array(symbols, pa.string())

    def _made(self, numbers: np.ndarray) -> pa.Array:
        return self._symbols.take(pa.array(numbers)) if len(self._symbols) else pa.array([""] * len(numbers))


class Fixeds(Sized):
    """Reads as many bytes for each value."""

    type = pa.binary()

    def __init__(self, size: int) -> None:
        self.size = size
        self.takes_bytes = size > 0

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        begin, length, at = scan.fixed(at, row, self.size)
        return scan.binary(begin, length), at


class FixedUuids(Fixeds):
    """Reads UUIDs of 16 bytes as text."""

    type = pa.string()
    _HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
    _DASHES = (8, 13, 18, 23)

    def __init__(self) -> None:
        super().__init__(16)

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        high, low = scan.word(at), scan.word(at + 8)
        raw = np.stack([high, low], axis=1).astype("<u8").view(np.uint8)
        text = np.full((len(at), 36), ord("-"), np.uint8)
        places = [place for place in range(36) if place not in self._DASHES]
        text[:, places[0::2]], text[:, places[1::2]] = self._HEX[raw >> 4], self._HEX[raw & 15]
        offsets = np.arange(0, 36 * (len(at) + 1), 36, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(at), buffers), at + 16


class Durations(Fixeds):
    """Reads durations as counts of months, days and milliseconds."""

    type = DURATION

    def __init__(self) -> None:
        super().__init__(12)

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        counts = [pa.array(scan.word(at + 4 * n).astype("<u4").astype(np.int64)) for n in range(3)]
        return pa.StructArray.from_arrays(counts, fields=list(DURATION)), at + 12


_TIMES: Mapping[tuple[str, str], Callable[[], Reader]] = {
    ("int", "date"): lambda: Wholes("int", pa.date32(), 1, _DAYS),
    ("int", "time-millis"): lambda: Clocks("int", 1000),
    ("long", "time-micros"): lambda: Clocks("long", 1),
    ("long", "timestamp-millis"): lambda: _instants(_ZONED, 1000),
    ("long", "timestamp-micros"): lambda: _instants(_ZONED, 1),
    ("long", "timestamp-nanos"): lambda: Wholes("long", pa.int64()),
    ("long", "local-timestamp-millis"): lambda: _instants(_LOCAL, 1000),
    ("long", "local-timestamp-micros"): lambda: _instants(_LOCAL, 1),
    ("long", "local-timestamp-nanos"): lambda: Wholes("long", pa.int64()),
}
_PRIMITIVES: Mapping[str, Callable[[], Reader]] = {
    "boolean": Booleans,
    "int": lambda: Wholes("int", pa.int32()),
    "long": lambda: Wholes("long", pa.int64()),
    "float": Floats,
    "double": Doubles,
    "string": Strings,
    "bytes": Bytes,
}
PRIMITIVES = tuple(_PRIMITIVES)


def primitive(kind: str, node: Mapping[str, Any]) -> Reader:
    """Return what reads a primitive type, or the logical type that it is declared as."""
    logical = node.get("logicalType")
    found = _logical(kind, logical, node) if isinstance(logical, str) else None
    if found is None:
        return _PRIMITIVES[kind]()
    found.primitive = None
    return found


def _logical(kind: str, logical: str, node: Mapping[str, Any]) -> Reader | None:
    if make := _TIMES.get((kind, logical)):
        return make()
    if kind == "string":
        return Uuids() if logical == "uuid" else iso_text(logical)
    if (kind, logical) == ("bytes", "big-decimal"):
        return DecimalTexts(big_decimal)
    return decimal_of(node, None) if (kind, logical) == ("bytes", "decimal") else None


def fixed(node: Mapping[str, Any], size: int) -> Reader:
    """Return what reads a fixed type, or the logical type that it is declared as."""
    logical = node.get("logicalType")
    if logical == "decimal" and (found := decimal_of(node, size)):
        return found
    if logical == "uuid" and size == 16:
        return FixedUuids()
    return Durations() if logical == "duration" and size == 12 else Fixeds(size)


def _instants(kind: pa.DataType, unit: int) -> Reader:
    return Wholes("long", kind, unit, (FIRST_MICROS // unit, LAST_MICROS // unit))
