"""Avro values whose type contains itself: what lies in the second of such values in a row becomes JSON text."""

import base64
import struct
import uuid
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from kafka_lake.executors.as_json import number_of, text_of
from kafka_lake.executors.avro.reader import Reader
from kafka_lake.executors.avro.scan import Places, Rows, Scan, integer, span

Read = Callable[[bytes, int], tuple[Any, int]]
"""Returns the value at a place as JSON has it, and where it ends; raises ValueError or IndexError if it isn't whole."""
Resolve = Callable[[Any, str], tuple[Any, str]]
"""Returns a type itself, what a name stands for, and the namespace that it is in."""

_INT_BYTES, _LONG_BYTES = 5, 10
_EPOCH = date(1970, 1, 1).toordinal()
_LAST_DAY = date.max.toordinal()
_UNITS = {"millis": 1_000, "micros": 1}
_SINGLE = "<f"
_FLOATS = {"float": (_SINGLE, 4), "double": ("<d", 8)}
_BROKEN = (ValueError, IndexError, RecursionError, struct.error)


class Within(Reader):
    """Reads values of a type within itself as JSON text.

    Args:
        node: The type, as the schema has it.
        resolve: Finds types by their names.
    """

    type = pa.string()

    def __init__(self, node: Any, namespace: str, resolve: Resolve) -> None:
        self._read = _Types(resolve).read(node, namespace)

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        texts: list[str | None] = []
        end = at.copy()
        for number, (begin, last) in enumerate(zip(at.tolist(), scan.ends[row].tolist(), strict=True)):
            try:
                value, size = self._read(scan.content[begin:last], 0)
                texts.append(text_of(value))
                end[number] = begin + size
            except _BROKEN:
                texts.append(None)
                scan.bad[row[number]] = True
        return pa.array(texts, pa.string()), end

    def walk(self, content: bytes, at: int) -> int:
        """Return where a value ends."""
        try:
            return self._read(content, at)[1]
        except (RecursionError, struct.error):
            raise ValueError("not whole") from None


class _Types:
    """The types of one schema."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._reads: dict[int, Read] = {}

    def read(self, kind: Any, namespace: str) -> Read:
        """Return what reads values of a type."""
        node, namespace = self._resolve(kind, namespace)
        if isinstance(node, list):
            return _union([self.read(part, namespace) for part in node])
        name = node["type"] if isinstance(node, dict) else node
        logical = node if isinstance(node, dict) else {}
        if name in ("record", "error"):
            return self._record(node, namespace)
        if name in ("array", "map"):
            inner = self.read(node["items" if name == "array" else "values"], namespace)
            return _array(inner) if name == "array" else _map(inner)
        if name == "enum":
            return _enum(node["symbols"])
        if name == "fixed":
            return _bytes_of(int(node["size"]), logical)
        if name in _FLOATS:
            return _float(*_FLOATS[name])
        return _SCALARS[name](logical)

    def _record(self, node: Mapping[str, Any], namespace: str) -> Read:
        """Return what reads a record; its fields' types are looked at when there is one: they may be its own."""
        fields: list[tuple[str, Read]] = []

        def read(data: bytes, at: int) -> tuple[Any, int]:
            if not fields:
                fields.extend((field["name"], self.read(field["type"], namespace)) for field in node["fields"])
            found = {}
            for name, part in fields:
                found[name], at = part(data, at)
            return found, at

        return self._reads.setdefault(id(node), read)


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


def _branch(data: bytes, at: int, count: int) -> tuple[int, int]:
    which, begin = integer(data, at, _INT_BYTES)
    if not 0 <= which < count:
        raise ValueError("a type or symbol that the schema doesn't have")
    return which, begin


def _union(reads: list[Read]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        which, begin = _branch(data, at, len(reads))
        return reads[which](data, begin)

    return read


def _enum(symbols: list[str]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        which, end = _branch(data, at, len(symbols))
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


def _text(data: bytes, at: int) -> tuple[str, int]:
    begin, end = span(data, at)
    return data[begin:end].decode(), end


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    return data[at] == 1, at + 1


def _float(form: str, size: int) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        (value,) = struct.unpack_from(form, data, at)
        return number_of(value, single=form == _SINGLE), at + size

    return read


def _whole(most: int) -> Callable[[Mapping[str, Any]], Read]:
    """Return what makes a reader of numbers of so many bytes at the most."""

    def of(logical: Mapping[str, Any]) -> Read:
        convert = _TIMES.get(str(logical.get("logicalType")))

        def read(data: bytes, at: int) -> tuple[Any, int]:
            count, end = integer(data, at, most)
            return count if convert is None else convert(count), end

        return read

    return of


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
        begin, end = span(data, at) if size is None else (at, at + size)
        if end > len(data):
            raise ValueError("longer than what is there")
        return shown(data[begin:end]), end

    return read


_SCALARS: Mapping[str, Callable[[Mapping[str, Any]], Read]] = {
    "null": lambda logical: lambda data, at: (None, at),
    "boolean": lambda logical: _boolean,
    "int": _whole(_INT_BYTES),
    "long": _whole(_LONG_BYTES),
    "string": lambda logical: _text,
    "bytes": lambda logical: _bytes_of(None, logical),
}
