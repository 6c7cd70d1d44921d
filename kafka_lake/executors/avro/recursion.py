"""Avro values whose type contains itself: what lies in the second of such values in a row becomes JSON text.

The bytes are written anew, with a string where the schema has a type within itself, so that a reader without such types
reads them. https://avro.apache.org/docs/1.12.0/specification/#binary-encoding
"""

import base64
import json
import struct
import uuid
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from kafka_lake.executors.as_json import number_of, text_of
from kafka_lake.executors.changes.avro_spans import Types, branch, integer

Read = Callable[[bytes, int], tuple[Any, int]]
"""Returns the value at a place as JSON has it, and where it ends; raises ValueError or IndexError if it isn't whole."""
Copy = Callable[[bytes, int, bytearray], int]
"""Writes the value at a place, and returns where it ends."""

_EPOCH = date(1970, 1, 1).toordinal()
_LAST_DAY = date.max.toordinal()
_UNITS = {"millis": 1_000, "micros": 1}
_SINGLE = "<f"
_FLOATS = {"float": (_SINGLE, 4), "double": ("<d", 8)}


def rewriter(schema: str) -> Callable[[pa.Array], pa.Array]:
    """Return a function that writes values anew, empty where they are malformed; unused, it can be pickled.

    Args:
        schema: The values' schema, each named type written out where it is first used.
    """
    ready: list[Copy] = []

    def rewrite(payloads: pa.Array) -> pa.Array:
        if not ready:
            parsed = json.loads(schema)
            ready.append(_Recursion(Types(parsed)).copy(parsed, ()))
        written = [None if data is None else _rewritten(data, ready[0]) for data in payloads.to_pylist()]
        return pa.array(written, pa.binary())

    return rewrite


def _rewritten(data: bytes, copy: Copy) -> bytes:
    out = bytearray()
    try:
        end = copy(data, 0, out)
    except (ValueError, IndexError, RecursionError, struct.error):
        return b""
    # What follows the value is an error that the reader finds.
    return bytes(out) + data[end:] if end <= len(data) else b""


class _Recursion:
    """The types of one schema."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self._reads: dict[int, Read] = {}

    def copy(self, kind: Any, above: tuple[int, ...]) -> Copy:
        """Return what writes values of a type.

        Args:
            kind: The type.
            above: The records that it is in.
        """
        node = self._types.resolved(kind)
        if isinstance(node, list):
            branches = [self.copy(part, above) for part in node]

            def of_union(data: bytes, at: int, out: bytearray) -> int:
                which, begin = branch(data, at, len(branches))
                out += data[at:begin]
                return branches[which](data, begin, out)

            return of_union
        name = node["type"] if isinstance(node, dict) else node
        if name in ("record", "error"):
            if id(node) in above:
                return _as_text(self.read(node))
            fields = [self.copy(field["type"], (*above, id(node))) for field in node["fields"]]

            def of_record(data: bytes, at: int, out: bytearray) -> int:
                for field in fields:
                    at = field(data, at, out)
                return at

            return of_record
        if name in ("array", "map"):
            return _copied_blocks(self.copy(node["items" if name == "array" else "values"], above), name == "map")
        read = self.read(node)

        def as_it_is(data: bytes, at: int, out: bytearray) -> int:
            _, end = read(data, at)
            out += data[at:end]
            return end

        return as_it_is

    def read(self, kind: Any) -> Read:
        """Return what reads values of a type."""
        node = self._types.resolved(kind)
        if isinstance(node, list):
            return _union([self.read(part) for part in node])
        name = node["type"] if isinstance(node, dict) else node
        logical = node if isinstance(node, dict) else {}
        if name in ("record", "error"):
            return self._record(node)
        if name in ("array", "map"):
            inner = self.read(node["items" if name == "array" else "values"])
            return _array(inner) if name == "array" else _map(inner)
        if name == "enum":
            return _enum(node["symbols"])
        if name == "fixed":
            return _bytes_of(int(node["size"]), logical)
        if name in _FLOATS:
            return _float(*_FLOATS[name])
        return _SCALARS[name](logical)

    def _record(self, node: Mapping[str, Any]) -> Read:
        """Return what reads a record; its fields' types are looked at when there is one: they may be its own."""
        fields: list[tuple[str, Read]] = []

        def read(data: bytes, at: int) -> tuple[Any, int]:
            if not fields:
                fields.extend((field["name"], self.read(field["type"])) for field in node["fields"])
            found = {}
            for name, part in fields:
                found[name], at = part(data, at)
            return found, at

        return self._reads.setdefault(id(node), read)


def _as_text(read: Read) -> Copy:
    def copy(data: bytes, at: int, out: bytearray) -> int:
        value, end = read(data, at)
        text = text_of(value).encode()
        out += _number(len(text)) + text
        return end

    return copy


def _number(value: int) -> bytes:
    r"""Return a number that isn't negative as Avro writes it.

    >>> _number(0), _number(64)
    (b'\x00', b'\x80\x01')
    """
    rest, out = value << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def _copied_blocks(item: Copy, keyed: bool) -> Copy:
    def copy(data: bytes, at: int, out: bytearray) -> int:
        while True:
            count, at = _block(data, at)
            out += _number(count)
            if not count:
                return at
            for _ in range(count):
                begin = at
                if keyed:
                    _, at = _text(data, at)
                    out += data[begin:at]
                at = _further(data, begin, item(data, at, out))

    return copy


def _block(data: bytes, at: int) -> tuple[int, int]:
    """Return how many elements a block has, and where they begin."""
    count, at = integer(data, at)
    if count < 0:
        _, at = integer(data, at)
    return abs(count), at


def _further(data: bytes, begin: int, end: int) -> int:
    if end == begin or end > len(data):
        # A few bytes could claim billions of elements.
        raise ValueError("more elements than there are bytes")
    return end


def _union(reads: list[Read]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        which, begin = branch(data, at, len(reads))
        return reads[which](data, begin)

    return read


def _enum(symbols: list[str]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        which, end = branch(data, at, len(symbols))
        return symbols[which], end

    return read


def _array(item: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        found: list[Any] = []
        while True:
            count, at = _block(data, at)
            if not count:
                return found, at
            for _ in range(count):
                value, end = item(data, at)
                at = _further(data, at, end)
                found.append(value)

    return read


def _map(item: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        found: dict[str, Any] = {}
        while True:
            count, at = _block(data, at)
            if not count:
                return found, at
            for _ in range(count):
                key, begin = _text(data, at)
                found[key], end = item(data, begin)
                at = _further(data, at, end)

    return read


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, begin = integer(data, at)
    if not 0 <= length <= len(data) - begin:
        raise ValueError("longer than what is there")
    return data[begin : begin + length], begin + length


def _text(data: bytes, at: int) -> tuple[str, int]:
    found, end = _bytes(data, at)
    return found.decode(), end


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    return data[at] == 1, at + 1


def _float(form: str, size: int) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        (value,) = struct.unpack_from(form, data, at)
        return number_of(value, single=form == _SINGLE), at + size

    return read


def _whole(logical: Mapping[str, Any]) -> Read:
    convert = _TIMES.get(str(logical.get("logicalType")))
    if convert is None:
        return integer

    def read(data: bytes, at: int) -> tuple[Any, int]:
        count, end = integer(data, at)
        return convert(count), end

    return read


def _day(days: int) -> Any:
    return date.fromordinal(days + _EPOCH).isoformat() if 0 < days + _EPOCH <= _LAST_DAY else days


def _instant(unit: str, zone: str) -> Callable[[int], Any]:
    def convert(count: int) -> Any:
        try:
            found = datetime(1970, 1, 1) + timedelta(microseconds=count * _UNITS[unit])
        except OverflowError:
            return count
        return f"{found.isoformat()}{zone}"

    return convert


def _clock(unit: str) -> Callable[[int], Any]:
    def convert(count: int) -> Any:
        micros = count * _UNITS[unit]
        in_day = 0 <= micros < timedelta(days=1) / timedelta(microseconds=1)
        return (datetime.min + timedelta(microseconds=micros)).time().isoformat() if in_day else count

    return convert


_TIMES: Mapping[str, Callable[[int], Any]] = {
    "date": _day,
    **{f"time-{unit}": _clock(unit) for unit in _UNITS},
    **{f"timestamp-{unit}": _instant(unit, "Z") for unit in _UNITS},
    **{f"local-timestamp-{unit}": _instant(unit, "") for unit in _UNITS},
}


def _bytes_of(size: int | None, logical: Mapping[str, Any]) -> Read:
    """Return what reads bytes, of a fixed size or as many as they say."""
    kind, scale = logical.get("logicalType"), logical.get("scale", 0)

    def shown(content: bytes) -> Any:
        if kind == "decimal" and isinstance(scale, int) and content:
            # Of text, since arithmetic rounds.
            return str(Decimal(f"{int.from_bytes(content, 'big', signed=True)}E{-scale}"))
        if kind == "uuid" and size == 16:
            return str(uuid.UUID(bytes=content))
        if kind == "duration" and size == 12:
            return dict(zip(("months", "days", "millis"), struct.unpack("<3I", content), strict=True))
        return base64.b64encode(content).decode()

    def read(data: bytes, at: int) -> tuple[Any, int]:
        content, end = _bytes(data, at) if size is None else (data[at : at + size], at + size)
        if end > len(data):
            raise ValueError("longer than what is there")
        return shown(content), end

    return read


_SCALARS: Mapping[str, Callable[[Mapping[str, Any]], Read]] = {
    "null": lambda logical: lambda data, at: (None, at),
    "boolean": lambda logical: _boolean,
    "int": _whole,
    "long": _whole,
    "string": lambda logical: _text,
    "bytes": lambda logical: _bytes_of(None, logical),
}
