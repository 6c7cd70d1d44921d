"""Placeholders: what Debezium writes for a value that PostgreSQL hasn't sent, in each type that it has one for.

A long value is stored beside its row (TOAST), and an update of other columns doesn't send it. A column of a type that
isn't here (``numeric``, arrays of times, fractions or booleans) is null then, which nothing tells from a real null.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-toasted-values
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import md5
from typing import Any
from uuid import UUID

from kafka_lake.executors.changes.avro_spans import Types

DEFAULT_PLACEHOLDER = "__debezium_unavailable_value"
_HEX = "hex:"
_SHAPES = tuple(
    map(
        bytes.fromhex,
        (
            "0101000020e6100000000000fc83d797c1000000fc83d797c1",
            "0101000020e61000000c21e7fdff7f66401842cefbff7f5640",
        ),
    )
)
"""The points that stand for a geometry and a geography, in well-known binary, whatever the setting is."""


class Placeholders:
    """Knows values that weren't sent.

    Raises:
        ValueError: If it begins with ``hex:`` and no bytes of UTF-8 follow.
    """

    def __init__(self, setting: str = DEFAULT_PLACEHOLDER) -> None:
        raw = bytes.fromhex(setting.removeprefix(_HEX)) if setting.startswith(_HEX) else setting.encode()
        text, encoded = raw.decode(), b64encode(raw).decode()
        id_ = str(UUID(bytes=md5(raw, usedforsecurity=False).digest(), version=3))
        # Java's bytes have a sign.
        numbers = [byte - 256 if byte > 127 else byte for byte in raw]
        self._raw, self._id, self._numbers = raw, id_, numbers
        as_text = json.dumps({text: text}, ensure_ascii=False, separators=(",", ":"))
        self._in_json: list[Any] = [text, encoded, raw.hex(), as_text, [text], [encoded], [id_], numbers, {text: text}]
        self._shapes = tuple(b64encode(each).decode() for each in _SHAPES)
        marks = [text, json.dumps(text)[1:-1], encoded, raw.hex(), id_, *self._shapes]
        marks += [separator.join(map(str, numbers)) for separator in (",", ", ")]
        self._marks = tuple(dict.fromkeys(marks))

    def may_be_in(self, text: str) -> bool:
        """Return whether JSON may have a placeholder; few records have any."""
        return any(mark in text for mark in self._marks)

    def is_json(self, text: str) -> bool:
        """Return whether the JSON of a column's value is a placeholder."""
        if not self.may_be_in(text):
            return False
        value = json.loads(text)
        if isinstance(value, dict) and "wkb" in value:
            return value["wkb"] in self._shapes
        return value in self._in_json

    def in_avro(self, types: Types, kind: Any) -> tuple[bytes, ...]:
        """Return what a column's value begins with if it is a placeholder."""
        return tuple(self._encoded(types, kind))

    def _encoded(self, types: Types, kind: Any) -> Iterator[bytes]:
        known = types.resolved(kind)
        if isinstance(known, list):
            for number, each in enumerate(known):
                yield from (_whole(number) + found for found in self._encoded(types, each))
            return
        name = known["type"] if isinstance(known, dict) else known
        if name in ("string", "bytes"):
            texts = [self._raw, b64encode(self._raw), self._raw.hex().encode()]
            yield from map(_text, [*texts, self._as_map()] if name == "string" else texts[:1])
        elif name == "array":
            yield from self._arrays(types, known["items"])
        elif name == "map":
            for value in self._encoded(types, known["values"]):
                yield _block([_text(self._raw) + value])
        elif name in ("record", "error") and known["fields"][0]["name"] == "wkb":
            yield from map(_text, _SHAPES)

    def _arrays(self, types: Types, items: Any) -> Iterator[bytes]:
        for prefix, name in _kinds(types, items):
            if name in ("int", "long"):
                yield _block([prefix + _whole(number) for number in self._numbers])
            elif name in ("string", "bytes"):
                for raw in (self._raw, b64encode(self._raw), self._id.encode()):
                    yield _block([prefix + _text(raw)])

    def _as_map(self) -> bytes:
        return str(self._in_json[3]).encode()


def _kinds(types: Types, kind: Any) -> Iterator[tuple[bytes, str]]:
    """Give the names of a type, or those of a union's types, and what a value of each begins with."""
    known = types.resolved(kind)
    if not isinstance(known, list):
        yield b"", known["type"] if isinstance(known, dict) else known
        return
    for number, each in enumerate(known):
        yield from ((_whole(number) + prefix, name) for prefix, name in _kinds(types, each))


def _whole(number: int) -> bytes:
    r"""Return an int or long as Avro has it.

    >>> _whole(0), _whole(-1), _whole(64)
    (b'\x00', b'\x01', b'\x80\x01')
    """
    rest, found = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def _text(raw: bytes) -> bytes:
    return _whole(len(raw)) + raw


def _block(items: Sequence[bytes]) -> bytes:
    return _whole(len(items)) + b"".join(items) + b"\x00"
