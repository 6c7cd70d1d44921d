"""The members of a JSON object as the texts that they are, so that no number is read and written on the way."""

import re
from json import JSONDecoder
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

_BLANK = re.compile(r"[ \t\n\r]*")
_LAST_MILLISECOND = 253_402_300_799_999


def members(text: str) -> dict[str, str] | None:
    """Return the members of a JSON object, each as the text that stands there; None if the text is no object.

    Of a name that is there twice the last member counts, as everywhere in JSON.

    >>> members('{"a": 1.10, "b": {"c": [1, 2]}}')
    {'a': '1.10', 'b': '{"c": [1, 2]}'}
    >>> members('[1]') is None
    True
    """
    try:
        found, end = _members(text)
    except (ValueError, StopIteration, RecursionError):
        return None
    return found if _skipped(text, end) == len(text) else None


def items(text: str) -> list[str] | None:
    """Return the items of a JSON array, each as the text that stands there; None if the text is no array.

    >>> items('[1.10, {"b": [1]}]'), items('[]'), items('{}')
    (['1.10', '{"b": [1]}'], [], None)
    """
    try:
        found, end = _items(text)
    except (ValueError, StopIteration, RecursionError):
        return None
    return found if _skipped(text, end) == len(text) else None


def string(text: str | None) -> str | None:
    r"""Return the text that a JSON string stands for; None for null, for no member, and for what is no string.

    >>> string('"a\\u00fc"'), string('1'), string(None)
    ('aü', None, None)
    """
    if text is None or not text.startswith('"'):
        return None
    found: str = scanstring(text, 1, True)[0]
    return found


def integer(text: str | None) -> int | None:
    """Return a JSON integer, or a string of one; None for anything else.

    >>> integer('17'), integer('"17"'), integer('1.5'), integer('null')
    (17, 17, None, None)
    """
    digits = string(text) if text is not None and text.startswith('"') else text
    try:
        return int(digits) if digits is not None else None
    except ValueError:
        return None


def time_ms(text: str | None, unit: int = 1) -> int | None:
    """Return a JSON number as a time, in milliseconds since the epoch; None if it is none from then to the year 9999.

    Nor is 0 a time: tools write it that know none.

    Args:
        unit: How many milliseconds one of it is.

    >>> time_ms("17"), time_ms("17", unit=1000), time_ms("0"), time_ms("-1"), time_ms("253402300800", unit=1000)
    (17, 17000, None, None, None)
    """
    number = integer(text)
    at = None if number is None else number * unit
    return at if at is not None and 0 < at <= _LAST_MILLISECOND else None


def is_null(text: str | None) -> bool:
    """Return whether a member is missing or null."""
    return text is None or text == "null"


def _skipped(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _members(text: str) -> tuple[dict[str, str], int]:
    at = _skipped(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("no object")
    # Made here, since a scanner can't travel to a task with this module.
    decoder: Any = JSONDecoder(parse_float=str, parse_int=str)
    scan = decoder.scan_once
    found: dict[str, str] = {}
    at = _skipped(text, at + 1)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise ValueError("no name")
        name, at = scanstring(text, at + 1, True)
        at = _skipped(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("no colon")
        begin = _skipped(text, at + 1)
        _, end = scan(text, begin)
        found[name] = text[begin:end]
        at = _skipped(text, end)
        following = text[at : at + 1]
        if following == "}":
            return found, at + 1
        if following != ",":
            raise ValueError("no comma")
        at = _skipped(text, at + 1)


def _items(text: str) -> tuple[list[str], int]:
    at = _skipped(text, 0)
    if text[at : at + 1] != "[":
        raise ValueError("no array")
    decoder: Any = JSONDecoder(parse_float=str, parse_int=str)
    scan = decoder.scan_once
    found: list[str] = []
    at = _skipped(text, at + 1)
    if text[at : at + 1] == "]":
        return found, at + 1
    while True:
        _, end = scan(text, at)
        found.append(text[at:end])
        at = _skipped(text, end)
        following = text[at : at + 1]
        if following == "]":
            return found, at + 1
        if following != ",":
            raise ValueError("no comma")
        at = _skipped(text, at + 1)
