"""What JSON values look like together: a type that holds each of them, the one rule of inference.

Each is held unchanged, except that a double rounds numbers beside a fraction that have more digits than it holds.

A type is plain data, so that it travels: the name of a scalar (see `SCALARS`), ``["list", element]`` or
``["struct", {field: type}]`` with the fields in the order in which they were first seen. None is the type of what was
always null.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from math import isfinite
from typing import Any

from kafka_lake.formats.json.task.text import MINUS_ZERO, Real, dumps

Kind = Any
SCALARS = {
    "boolean": "true and false",
    "long": "whole numbers of 64 bits",
    "double": "other numbers, within a double's range",
    "date": "text that is a date",
    "timestamp": "text that is a time with an offset",
    "timestamp_ntz": "text that is a time without one",
    "text": "text, and whatever has no other type in common",
}
LEVELS = 20
"""Levels of structs and lists that columns are made of; what lies deeper is kept as its JSON text."""

TIME = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"([Tt ](?P<clock>[0-9]{2}:[0-9]{2}:[0-9]{2})(\.(?P<fraction>[0-9]+))?(?P<zone>[Zz]|[+-][0-9]{2}:?[0-9]{2})?)?",
    re.ASCII,
)
"""RFC 3339, section 5.6: ``T`` or one space between date and time; an offset may be missing, or lack its colon."""
_LONG = 2**63
_NUMBERS = ("long", "double")
TIMES = ("date", "timestamp", "timestamp_ntz")
_MICROS = 6


def kind_of(value: Any, levels: int = LEVELS) -> Kind:
    """Return the type of one value that `parse` gave."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, Real):
        if value == MINUS_ZERO:
            return "long"
        return "double" if isfinite(float(value)) else "text"
    if isinstance(value, str):
        return _text_kind(value)
    if isinstance(value, int):
        return _whole_kind(value)
    if levels == 0:
        return "text"
    if isinstance(value, dict):
        return ["struct", {name: kind_of(member, levels - 1) for name, member in value.items()}]
    element: Kind = None
    for part in value:
        element = merged_into(element, kind_of(part, levels - 1))
    return ["list", element]


def _whole_kind(value: int) -> Kind:
    if -_LONG <= value < _LONG:
        return "long"
    return "double" if isfinite(float(str(value))) else "text"


def _text_kind(text: str) -> Kind:
    if len(text) < 10 or not text[0].isdigit():
        return "text"
    match = TIME.fullmatch(text)
    if match is None or len(match["fraction"] or "") > _MICROS:
        return "text"
    try:
        datetime.fromisoformat(text.upper())
    except ValueError:
        return "text"
    if match["clock"] is None:
        return "date"
    return "timestamp" if match["zone"] else "timestamp_ntz"


def merged(one: Kind, other: Kind) -> Kind:
    """Return the type that holds what either does; fields keep their order, new ones come last.

    >>> merged(["struct", {"a": "long"}], ["struct", {"b": None, "a": "double"}])
    ['struct', {'a': 'double', 'b': None}]
    >>> merged(["struct", {"a": "text", "b": "text"}], ["struct", {"b": "text", "a": "text"}])
    ['struct', {'a': 'text', 'b': 'text'}]
    >>> merged("long", "double"), merged("date", "timestamp"), merged("text", ["list", None])
    ('double', 'text', 'text')
    """
    if one is None:
        return other
    # Types are equal whatever the order of their fields.
    if other is None or one == other:
        return one
    if isinstance(one, list) and isinstance(other, list) and one[0] == other[0]:
        if one[0] == "list":
            return ["list", merged(one[1], other[1])]
        fields = dict(one[1])
        for name, kind in other[1].items():
            fields[name] = merged(fields.get(name), kind)
        return ["struct", fields]
    if one in _NUMBERS and other in _NUMBERS:
        return max(one, other, key=_NUMBERS.index)
    return "text"


def merged_into(one: Kind, other: Kind) -> Kind:
    """Return what `merged` does, and use up the first type for it: many types in a row don't cost their square."""
    if not (isinstance(one, list) and isinstance(other, list) and one[0] == other[0]):
        return merged(one, other)
    if one[0] == "list":
        one[1] = merged_into(one[1], other[1])
    else:
        for name, kind in other[1].items():
            one[1][name] = merged_into(one[1].get(name), kind)
    return one


def settled(kind: Kind, times: bool) -> Kind:
    """Return a type without unknown fields, None if nothing is left; without `times`, times are text."""
    if isinstance(kind, list) and kind[0] == "struct":
        fields = {name: known for name, part in kind[1].items() if (known := settled(part, times)) is not None}
        return ["struct", fields] if fields else None
    if isinstance(kind, list):
        element = settled(kind[1], times)
        return ["list", element] if element is not None else None
    return "text" if kind in TIMES and not times else kind


def leaves(kind: Kind) -> int:
    """Return how many scalars a type is made of. What was always null or empty is one.

    >>> leaves(["struct", {"a": "long", "b": ["list", ["struct", {"c": "text", "d": None}]]}])
    3
    """
    if not isinstance(kind, list):
        return 1
    return leaves(kind[1]) if kind[0] == "list" else max(1, sum(map(leaves, kind[1].values())))


def first_leaves(kind: Kind, limit: int) -> Kind:
    """Return a type up to so many scalars; None if nothing is left.

    >>> first_leaves(["struct", {"a": "long", "b": None, "c": ["list", "text"], "d": "text"}], 2)
    ['struct', {'a': 'long', 'c': ['list', 'text']}]
    """
    if not isinstance(kind, list) or limit <= 0:
        return kind if limit > 0 else None
    if kind[0] == "list":
        element = first_leaves(kind[1], limit)
        return ["list", element] if element is not None else None
    fields = {}
    for name, part in kind[1].items():
        known = first_leaves(part, limit)
        if known is not None:
            fields[name] = known
            limit -= leaves(known)
    return ["struct", fields] if fields else None


def empty_fields(kind: Kind, path: str = "") -> Iterator[str]:
    """Give the paths of fields that were there and empty, ``[]`` or ``{}``, and never anything else but null."""
    if not isinstance(kind, list):
        return
    if settled(kind, False) is None:
        yield path
    elif kind[0] == "list":
        yield from empty_fields(kind[1], f"{path}.element")
    else:
        for name, part in kind[1].items():
            yield from empty_fields(part, f"{path}.{name}" if path else name)


def as_text(value: Any) -> str:
    """Return what a text column keeps of a value: text as it is, all else as JSON, numbers as they were written."""
    return value if isinstance(value, str) else dumps(value)
