"""Where the parts of an Avro value are, by its schema, so that no part is read and written on the way.

https://avro.apache.org/docs/1.12.0/specification/#binary-encoding
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Skip = Callable[[bytes, int], int]
"""Returns where a value ends that begins at a place; raises ValueError or IndexError if it isn't whole."""
Read = Callable[[bytes, int], Any]

_LONGEST = 63
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NAMED = ("record", "error", "enum", "fixed")
_TEXT = ("string", "bytes")
_WHOLE = ("int", "long")


@dataclass(frozen=True)
class Field:
    """A field of a record.

    Args:
        kind: Its type, as the schema has it.
        skip: Returns where its value ends.
        read: Returns its value, if that is a text, a whole number or a boolean; of anything else None.
    """

    name: str
    kind: Any
    skip: Skip
    read: Read


class Types:
    """The types of a schema, by which the parts of its values are found.

    Args:
        schema: As JSON has it, each named type written out where it is first used.
    """

    def __init__(self, schema: Any) -> None:
        self.root = schema
        self._defined: dict[str, Any] = {}
        self._define(schema)

    def fields(self, kind: Any) -> Sequence[Field] | None:
        """Return the fields of a record; None if a type is none."""
        known = self.resolved(kind)
        if not isinstance(known, dict) or known.get("type") not in ("record", "error"):
            return None
        kinds = {each["name"]: each["type"] for each in known["fields"]}
        return [Field(name, kind, self._skip(kind), self._read(kind)) for name, kind in kinds.items()]

    def resolved(self, kind: Any) -> Any:
        """Return a type itself: what a name stands for, without what is merely said of it."""
        while isinstance(kind, dict) and kind["type"] not in _NAMED and isinstance(kind["type"], dict | list):
            kind = kind["type"]
        name = kind["type"] if isinstance(kind, dict) else kind
        return self._defined.get(name, kind) if isinstance(name, str) else kind

    def _read(self, kind: Any) -> Read:
        known = self.resolved(kind)
        if isinstance(known, list):
            return _read_union([self._read(each) for each in known])
        name = known["type"] if isinstance(known, dict) else known
        if name == "string":
            return lambda data, at: data[integer(data, at)[1] : _after_bytes(data, at)].decode()
        if name in _WHOLE:
            return lambda data, at: integer(data, at)[0]
        return (lambda data, at: data[at] == 1) if name == "boolean" else (lambda data, at: None)

    def _define(self, kind: Any) -> None:
        if isinstance(kind, list):
            for each in kind:
                self._define(each)
        elif isinstance(kind, dict):
            if kind["type"] in _NAMED:
                space = kind.get("namespace")
                self._defined[f"{space}.{kind['name']}" if space else kind["name"]] = kind
            for each in kind.get("fields") or ():
                self._define(each["type"])
            for key in ("type", "items", "values"):
                self._define(kind.get(key))

    def _skip(self, kind: Any) -> Skip:
        known = self.resolved(kind)
        if isinstance(known, list):
            return _union([self._skip(each) for each in known])
        name = known["type"] if isinstance(known, dict) else known
        if name in _SIZES:
            size = _SIZES[name]
            return lambda data, at: at + size
        if name in _TEXT:
            return _after_bytes
        if name in _WHOLE or name == "enum":
            return _after_integer
        if name == "fixed":
            length = int(known["size"])
            return lambda data, at: at + length
        if name == "array":
            return _blocks(self._skip(known["items"]))
        if name == "map":
            value = self._skip(known["values"])
            return _blocks(lambda data, at: value(data, _after_bytes(data, at)))
        if name in ("record", "error"):
            return _record([self._skip(each["type"]) for each in known["fields"]])
        raise ValueError(name)


def integer(data: bytes, at: int) -> tuple[int, int]:
    """Return the int or long at a place, and where it ends.

    >>> integer(bytes([0x03]), 0), integer(bytes([0x80, 0x01]), 0)
    ((-2, 1), (64, 2))
    """
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (found >> 1) ^ -(found & 1), at
        shift += 7
        if shift > _LONGEST:
            raise ValueError("a number of more than 64 bits")


def branch(data: bytes, at: int, count: int) -> tuple[int, int]:
    """Return which type of a union of so many a value is of, and where that begins."""
    which, begin = integer(data, at)
    if not 0 <= which < count:
        raise ValueError("a type that the union doesn't have")
    return which, begin


def _after_integer(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1


def _after_bytes(data: bytes, at: int) -> int:
    length, begin = integer(data, at)
    if not 0 <= length <= len(data) - begin:
        raise ValueError("longer than what is there")
    return begin + length


def _union(skips: Sequence[Skip]) -> Skip:
    count = len(skips)

    def skip(data: bytes, at: int) -> int:
        which, begin = branch(data, at, count)
        return skips[which](data, begin)

    return skip


def _read_union(reads: Sequence[Read]) -> Read:
    def read(data: bytes, at: int) -> Any:
        which, begin = branch(data, at, len(reads))
        return reads[which](data, begin)

    return read


def _record(skips: Sequence[Skip]) -> Skip:
    def skip(data: bytes, at: int) -> int:
        for each in skips:
            at = each(data, at)
        return at

    return skip


def _blocks(item: Skip) -> Skip:
    def skip(data: bytes, at: int) -> int:
        while True:
            count, at = integer(data, at)
            if count == 0:
                return at
            if count < 0:
                at = _after_bytes(data, at)
                continue
            for _ in range(count):
                end = item(data, at)
                if end == at or end > len(data):
                    # A few bytes could claim billions of elements.
                    raise ValueError("more elements than there are bytes")
                at = end

    return skip
