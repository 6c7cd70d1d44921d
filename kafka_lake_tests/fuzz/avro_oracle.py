"""What an Avro value becomes, value by value: Java's BinaryDecoder and GenericDatumReader, then the documented types.

Written after org.apache.avro 1.12, on purpose without a line of the decoder that it judges. `Malformed` is raised where
Java throws, and where a value has no place in a table.
"""

import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

EPOCH = datetime(1970, 1, 1)


class MalformedError(Exception):
    """The bytes are no value of the schema."""


class JavaReader:
    """Reads values of a schema one after the other.

    Args:
        schema: As `json.loads` gives it.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._named: dict[str, Any] = {}
        self._define(schema, "")

    def value(self, data: bytes) -> Any:
        """Return the value of all the bytes.

        Raises:
            MalformedError: If they are none, or more than one.
        """
        self._data, self._at = data, 0
        found = self._read(self._schema, "")
        if self._at != len(data):
            raise MalformedError("trailing bytes")
        return found

    def _define(self, node: Any, space: str) -> None:
        for branch in node if isinstance(node, list) else []:
            self._define(branch, space)
        if not isinstance(node, dict):
            return
        if "name" in node and node["type"] in ("record", "enum", "fixed"):
            full = _full(node, space)
            self._named[full] = node, space
            space = full.rpartition(".")[0]
            for field in node.get("fields", ()):
                self._define(field["type"], space)
        for key in ("type", "items", "values"):
            self._define(node.get(key), space)

    def _take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._data):
            raise MalformedError("EOF")
        self._at += count
        return self._data[self._at - count : self._at]

    def _number(self, bits: int) -> int:
        found = 0
        for shift in range(0, bits, 7):
            (byte,) = self._take(1)
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                found %= 2**bits
                return (found >> 1) ^ -(found & 1)
        raise MalformedError("Invalid encoding")

    def _text(self) -> str:
        try:
            return self._take(self._number(64)).decode()
        except UnicodeDecodeError:
            raise MalformedError("not UTF-8") from None

    def _read(self, node: Any, space: str) -> Any:
        if isinstance(node, list):
            return self._union(node, space)
        if isinstance(node, str):
            name = next((n for n in (f"{space}.{node}", node) if n in self._named), None)
            if name is not None:
                return self._read(*self._named[name])
            node = {"type": node}
        kind = node["type"]
        if kind == "record":
            below = _full(node, space).rpartition(".")[0]
            found = {field["name"]: self._read(field["type"], below) for field in node["fields"]}
            kept = {f["name"] for f in node["fields"] if f["type"] not in ("null", ["null"])}
            return {name: value for name, value in found.items() if name in kept} or {"_set": True}
        if kind == "array":
            return self._blocks(lambda: self._read(node["items"], space))
        if kind == "map":
            return dict(self._blocks(lambda: (self._text(), self._read(node["values"], space))))
        return getattr(self, f"_{kind}")(node) if kind in _OWN else self._read(kind, space)

    def _blocks(self, item: Any) -> list[Any]:
        found: list[Any] = []
        while count := self._number(64):
            if count < 0:
                count = -count
                self._number(64)
            if count > len(self._data) - self._at:
                raise MalformedError("EOF")
            found += [item() for _ in range(count)]
        return found

    def _union(self, kinds: list[Any], space: str) -> Any:
        which = self._number(32)
        if not 0 <= which < len(kinds):
            raise MalformedError("no such branch")
        value = self._read(kinds[which], space)
        solid = [kind for kind in kinds if kind != "null"]
        if kinds[which] == "null" or len(solid) == 1:
            return value
        names = [self._label(kind, space) for kind in solid]
        return {**dict.fromkeys(names), self._label(kinds[which], space): value}

    def _label(self, kind: Any, space: str) -> str:
        if isinstance(kind, str):
            return kind.rpartition(".")[2]
        return _full(kind, space).rpartition(".")[2] if "name" in kind else str(kind["type"])

    def _null(self, _: Any) -> None:
        return None

    def _boolean(self, _: Any) -> bool:
        return self._take(1) == b"\x01"

    def _float(self, _: Any) -> float:
        return float(struct.unpack("<f", self._take(4))[0])

    def _double(self, _: Any) -> float:
        return float(struct.unpack("<d", self._take(8))[0])

    def _int(self, node: Mapping[str, Any]) -> Any:
        return _time(self._number(32), node.get("logicalType"), ("date", "time-millis"))

    def _long(self, node: Mapping[str, Any]) -> Any:
        return _time(self._number(64), node.get("logicalType"), tuple(_UNITS))

    def _string(self, _: Mapping[str, Any]) -> str:
        return self._text()

    def _enum(self, node: Mapping[str, Any]) -> Any:
        which = self._number(32)
        if not 0 <= which < len(node["symbols"]):
            raise MalformedError("no such symbol")
        return node["symbols"][which]

    def _fixed(self, node: Mapping[str, Any]) -> Any:
        data = self._take(node["size"])
        return _decimal(data, node) if node.get("logicalType") == "decimal" else data

    def _bytes(self, node: Mapping[str, Any]) -> Any:
        data = self._take(self._number(64))
        return _decimal(data, node) if node.get("logicalType") == "decimal" else data


_OWN = ("null", "boolean", "int", "long", "float", "double", "string", "enum", "fixed", "bytes")
_UNITS = {"time-micros": 1, "timestamp-millis": 1000, "timestamp-micros": 1, "local-timestamp-millis": 1000,
          "local-timestamp-micros": 1}  # fmt: skip


def _full(node: Mapping[str, Any], space: str) -> str:
    name, own = node["name"], node.get("namespace", space)
    return name if "." in name or not own else f"{own}.{name}"


def _time(number: int, logical: Any, known: tuple[str, ...]) -> Any:
    if logical not in known:
        return number
    try:
        if logical == "date":
            return date(1970, 1, 1) + timedelta(days=number)
        if logical.startswith("time-"):
            micros = number * (1000 if logical == "time-millis" else 1)
            if not 0 <= micros < 86_400_000_000:
                raise MalformedError("not within a day")
            return f"{(EPOCH + timedelta(microseconds=micros)).time().isoformat(timespec='microseconds')}"
        found = EPOCH + timedelta(microseconds=number * _UNITS[logical])
    except OverflowError:
        raise MalformedError("no such year") from None
    return found if logical.startswith("local") else found.replace(tzinfo=UTC)


def _decimal(data: bytes, node: Mapping[str, Any]) -> Any:
    number, fits = int.from_bytes(data, "big", signed=True), node["precision"] <= 38
    if not data or (abs(number) >= 10 ** node["precision"] if fits else len(data) > 128):
        raise MalformedError("no such decimal")
    with localcontext(prec=2000):
        found = Decimal(number).scaleb(-node.get("scale", 0))
        return found if fits else f"{found:f}"
