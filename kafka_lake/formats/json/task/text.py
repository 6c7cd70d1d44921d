"""Strict JSON: from the bytes of a value to Python's objects, with every number as it was written, and back to text."""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

DEPTH = 64
"""Levels of objects and arrays that a value may have."""
SHOWN = 80
"""Characters of a value that messages show."""

MINUS_ZERO = "-0"

_MINUS_ZERO = re.compile(rb"(?<![0-9A-Za-z])-0(?![0-9.eE])")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# A text without an end goes on to the end: else it is looked for again from every quote in it.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.?)*"?|[\[{]|[\]}]', re.DOTALL)
_SPACE = " \t\r\n"


class Real(str):
    """A number that an int of Python's is not: with a fraction or exponent, ``-0``, thousands of digits; as written."""

    __slots__ = ()


class Twice(dict[str, Any]):
    """An object in which fields are there twice; the last of each is kept."""

    names: frozenset[str] = frozenset()


class NotJsonError(ValueError):
    """A value isn't one strict JSON object; the text says why."""


class TooDeepError(ValueError):
    """A value has more levels than `DEPTH`."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    twice = Twice(found)
    twice.names = frozenset(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    return twice


def _refuse(constant: str) -> Any:
    raise NotJsonError(f"The value is not strict JSON: {constant} isn't a number.")


def _whole(text: str) -> Any:
    # Python reads no more digits than this, and takes the sign away from zero.
    return int(text) if len(text) < 4000 and text != MINUS_ZERO else Real(text)


class _Strict(json.JSONDecoder):
    """The standard library's reader, as what can travel."""

    def __init__(self, parse_int: Callable[[str], Any] | None = None) -> None:
        super().__init__(parse_float=Real, parse_int=parse_int, parse_constant=_refuse, object_pairs_hook=_object)
        self._given = parse_int

    def __reduce__(self) -> Any:
        return _Strict, (self._given,)


_DECODER = _Strict()
_LONG_NUMBERS = _Strict(_whole)
_ENCODED = json.encoder.encode_basestring


def parse(content: bytes) -> Any:
    """Return a JSON value: numbers as int or `Real`, objects with fields that are there twice as `Twice`."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise NotJsonError(f"The value is not UTF-8; it begins with 0x{content[:8].hex().upper()}.") from None
    if (content.count(b"{") + content.count(b"[")) > DEPTH and depth(content) > DEPTH:
        raise TooDeepError(f"The value has more than {DEPTH} levels of objects and arrays.")
    try:
        value = (_LONG_NUMBERS if _MINUS_ZERO.search(content) else _DECODER).decode(text)
    except NotJsonError:
        raise
    except json.JSONDecodeError as error:
        raise NotJsonError(_reason(text, error)) from None
    except ValueError:
        value = _LONG_NUMBERS.decode(text)
    if _SURROGATE.search(content):
        try:
            dumps(value).encode()
        except UnicodeEncodeError:
            raise NotJsonError(
                "The value has half of a surrogate pair (\\ud800 to \\udfff), which isn't a character."
            ) from None
    return value


def parse_object(content: bytes) -> dict[str, Any]:
    """Return a JSON object as `parse` does."""
    value = parse(content)
    if isinstance(value, dict):
        return value
    kind = "array" if isinstance(value, list) else "scalar"
    raise NotJsonError(f"The value is a JSON {kind}, not an object: {shown(content.decode().lstrip(_SPACE))}.")


def depth(content: bytes) -> int:
    """Return how many levels of objects and arrays a text has at most, valid JSON or not.

    >>> depth(b'{"a": [[1], "[[[["]}')
    3
    """
    deepest = level = 0
    for match in _BRACKETS.finditer(content):
        first = content[match.start()]
        if first in b"[{":
            level += 1
            deepest = max(deepest, level)
        elif first in b"]}":
            level -= 1
    return deepest


def dumps(value: Any) -> str:
    """Return what `parse` gave as compact JSON text, every number as it was written.

    >>> dumps(parse(b'{"a": [1.50, "x"], "b": null}'))
    '{"a":[1.50,"x"],"b":null}'
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Real):
        return str(value)
    if isinstance(value, str):
        return _ENCODED(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_ENCODED(name)}:{dumps(member)}" for name, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(dumps(element) for element in value) + "]"
    return str(value)


def shown(text: str) -> str:
    """Return the beginning of a text, fit to be shown in a message."""
    start = text[:SHOWN] + "…" if len(text) > SHOWN else text
    return _CONTROL.sub("\ufffd", start)


def twice(names: frozenset[str]) -> NotJsonError:
    """Return the error for an object that has fields twice."""
    return NotJsonError(f"The value is not strict JSON: the field {shown(min(names))} occurs twice.")


def _reason(text: str, error: json.JSONDecodeError) -> str:
    start = text.lstrip(_SPACE)
    if not text:
        return "The value is empty."
    if not start:
        return "The value is white space only."
    if start.startswith("\ufeff"):
        return "The value begins with a byte order mark."
    if error.msg == "Extra data" and start.startswith("{"):
        return "The value goes on after its first JSON object."
    return f"The value is broken JSON; it begins with {shown(start)}."


def refuse_twice(value: Any) -> None:
    """Refuse a value that has an object with a field that occurs twice."""
    if isinstance(value, dict):
        if isinstance(value, Twice):
            raise twice(value.names)
        for member in value.values():
            refuse_twice(member)
    elif isinstance(value, list):
        for element in value:
            refuse_twice(element)
