"""What must become of a JSON record, told from the bytes, the columns and the rules of docs/formats.md alone.

Nothing of kafka_lake's decoding is imported here: this is the second opinion. `judge` compares it with what happened.
"""

import base64
import binascii
import json
import re
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from math import isfinite
from typing import Any

LEVELS = 64
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RANGES = {"byte": 7, "short": 15, "int": 31, "long": 63}
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:?\d\d)?)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Number(str):
    """A JSON number as it was written."""

    __slots__ = ()


class NotStrictError(ValueError):
    """The bytes are not one strict JSON object."""


class MisfitError(ValueError):
    """A value can't be in a column as it is."""


@dataclass(frozen=True)
class Column:
    """A column: its name, its type, and the fields that feed it.

    A type is a name, ``("decimal", precision, scale)``, ``("list", type)``, ``("map", type)`` or
    ``("struct", columns)``.
    """

    name: str
    kind: Any
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A record that became a row: values by column, structs as dicts, maps as lists of pairs."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class Letter:
    """A record that became a dead letter."""

    error_class: str


@dataclass(frozen=True)
class Reported:
    """What a report names.

    Args:
        names: Tells whether it names a field without a column, by its path and value.
        cut: Tells whether it says that times of a column lost digits, by its path.
        rounded: Tells whether it says that numbers of a column were rounded, by its path.
        all_fields: Whether fields without a column matter; those that a schema leaves out don't.
    """

    names: Callable[[tuple[str, ...], Any], bool] = lambda path, value: False
    cut: Callable[[tuple[str, ...]], bool] = lambda path: False
    all_fields: bool = True
    rounded: Callable[[tuple[str, ...]], bool] = lambda path: False


class Doubled(dict[str, Any]):
    """An object with fields that are there twice: their names are in `twice`."""

    twice: frozenset[str] = frozenset()


def parse(content: bytes) -> dict[str, Any]:
    """Return an object, numbers as they were written.

    Raises:
        NotStrictError: If it isn't one, or has text that is no Unicode.
    """

    def once(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made = Doubled(found)
        names = [name for name, _ in found]
        made.twice = frozenset(name for name in made if len(made) < len(names) and names.count(name) > 1)
        return made if made.twice else dict(made)

    def refuse(constant: str) -> Any:
        raise NotStrictError(constant)

    try:
        value = json.loads(
            content.decode("utf-8", "strict"),
            parse_int=Number,
            parse_float=Number,
            parse_constant=refuse,
            object_pairs_hook=once,
        )
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as reason:
        raise NotStrictError(str(reason)) from None
    if not isinstance(value, dict):
        raise NotStrictError("no object")
    return value


def doubled(value: Any) -> bool:
    """Return whether there is an object with a field twice in a value."""
    if isinstance(value, dict):
        return isinstance(value, Doubled) or any(map(doubled, value.values()))
    return isinstance(value, list) and any(map(doubled, value))


def empty(value: Any) -> bool:
    """Return whether there is nothing but brackets and nulls in a value."""
    if isinstance(value, dict | list):
        return all(map(empty, value.values() if isinstance(value, dict) else value))
    return value is None


def levels(content: bytes) -> int:
    """Return how deep the brackets outside of text go."""
    deepest = level = 0
    inside = escaped = False
    for byte in content:
        if inside:
            inside = escaped or byte != 0x22
            escaped = not escaped and byte == 0x5C
        elif byte == 0x22:
            inside = True
        elif byte in b"[{":
            level += 1
            deepest = max(deepest, level)
        elif byte in b"]}":
            level -= 1
    return deepest


def judge(
    content: bytes,
    columns: Sequence[Column],
    outcome: Row | Letter,
    reported: Reported,
) -> list[str]:
    """Return what is wrong with what became of a record; empty if every value of it is accounted for.

    Args:
        content: The record.
        columns: Those of the table at that time.
        outcome: What it became.
        reported: What the report names.
    """
    if levels(content) > LEVELS:
        return [] if isinstance(outcome, Letter) else [f"{shown(content)} is too deep for a row"]
    try:
        value = parse(content)
    except NotStrictError as reason:
        return [] if isinstance(outcome, Letter) else [f"{shown(content)} became a row: {reason}"]
    if isinstance(outcome, Letter):
        if doubled(value) or (outcome.error_class == "wrong_type" and not fits(value, ("struct", tuple(columns)))):
            return []
        return [f"{shown(content)} is a dead letter, {outcome.error_class}, although it fits"]
    return [f"{shown(content)}: {field}" for field in _fields(value, columns, outcome.values, reported, ())]


def fits(value: Any, kind: Any) -> bool:
    """Return whether a column of a type could hold a value."""
    if value is None:
        return True
    name = kind if isinstance(kind, str) else kind[0]
    if name == "list":
        return isinstance(value, list) and all(fits(element, kind[1]) for element in value)
    if name == "map":
        return isinstance(value, dict) and all(fits(element, kind[1]) for element in value.values())
    if name == "struct":
        if not isinstance(value, dict):
            return False
        takers = {s: [c for c in kind[1] if s in c.sources] for c in kind[1] for s in c.sources}
        return all(any(fits(value[s], c.kind) for c in mine) for s, mine in takers.items() if s in value)
    try:
        image(value, kind)
    except MisfitError:
        return False
    return True


def image(value: Any, kind: Any) -> Any:
    """Return what a column of a simple type must hold of a value.

    Raises:
        MisfitError: If it can't hold it, at most rounded to the nearest double or float.
    """
    made = _image(value, kind)
    if made is None:
        raise MisfitError
    return made


def _image(value: Any, kind: Any) -> Any:
    name = kind if isinstance(kind, str) else kind[0]
    if name == "boolean":
        return value if isinstance(value, bool) else None
    if name == "string":
        return value if isinstance(value, str) and not isinstance(value, Number) else Text(value)
    if name == "binary":
        return _bytes(value)
    if name == "decimal":
        return _decimal(value, kind[1], kind[2])
    if name in ("date", "timestamp", "timestamp_ntz"):
        return _moment(value, name)
    if not isinstance(value, Number):
        return None
    if name in _RANGES:
        if not re.fullmatch(r"-?\d+", value) or len(value) > 40:
            return None
        return int(value) if -(2 ** _RANGES[name]) <= int(value) < 2 ** _RANGES[name] else None
    near = float(value)
    if name == "float":
        try:
            (near,) = struct.unpack("f", struct.pack("f", near))
        except OverflowError:
            return None
    return near if isfinite(near) else None


def same(number: str, stored: float, kind: str) -> bool:
    """Return whether the shortest text of a float or double is the same number as a text."""
    if stored != stored or stored in (float("inf"), float("-inf")):
        return False
    given = Decimal(number)
    if kind == "double" and 0 < abs(stored) < sys.float_info.min and len(given.normalize().as_tuple().digits) <= 15:
        # The least doubles have few digits of their own: as many as were written are those of the number itself.
        digits = len(given.normalize().as_tuple().digits)
        if Context(digits).create_decimal_from_float(stored) == given:
            return True
    return Decimal(repr(stored) if kind == "double" else shortest(stored)) == given


def shortest(number: float) -> str:
    """Return the shortest decimal text that only this float of 32 bits is next to."""
    packed = struct.pack("f", number)
    for digits in range(1, 10):
        found = f"{number:.{digits - 1}e}"
        try:
            if struct.pack("f", float(found)) == packed:
                return found
        except OverflowError:
            continue
    raise AssertionError(f"nine digits are enough for {number!r}")


class Text:
    """JSON as the text of a column: equal to any text that says the same."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return False
        try:
            return same_json(parse(f'{{"v":{other}}}'.encode())["v"], self.value)
        except (NotStrictError, UnicodeEncodeError):
            return False

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"the text of {self.value!r}"


def same_json(one: Any, other: Any) -> bool:
    """Return whether two values are the same, numbers to the letter."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_json(member, other[key]) for key, member in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)


def _bytes(value: Any) -> bytes | None:
    if not isinstance(value, str) or isinstance(value, Number):
        return None
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None


def _decimal(value: Any, precision: int, scale: int) -> Decimal | None:
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return None
    mantissa, _, exponent = value.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) - len(fraction)
    kept = digits.rstrip("0")
    if not kept:
        return Decimal(0)
    power += len(digits) - len(kept)
    if -power > scale or len(kept) + power > precision - scale:
        return None
    return Decimal(value)


def _moment(value: Any, kind: str) -> Any:
    if not isinstance(value, str) or isinstance(value, Number):
        return None
    if kind == "date" and len(value) == 11 and value[-1] == "Z":
        value = value[:-1]
    if (match := _TIME.fullmatch(value)) is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        on = date(int(year), int(month), int(day))
        if kind == "date" or hour is None:
            return on if kind == "date" and hour is None else None
        if zone and kind == "timestamp_ntz":
            return None
        at = datetime(on.year, on.month, on.day, int(hour), int(minute), int(second), tzinfo=UTC)
        at += timedelta(microseconds=int((fraction or "")[:6].ljust(6, "0")))
        if zone and zone not in "Zz":
            if int(zone[1:3]) > 23 or int(zone[-2:]) > 59:
                return None
            away = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
            at = at + away if zone[0] == "-" else at - away
    except (ValueError, OverflowError):
        return None
    return (at - EPOCH) // timedelta(microseconds=1) if FIRST <= at <= LAST else None


def _is_cut(value: Any) -> bool:
    match = _TIME.fullmatch(value)
    return bool(match and match[7] and match[7][6:].strip("0"))


Path = tuple[str, ...]


def _fields(
    value: dict[str, Any], columns: Sequence[Column], stored: Mapping[str, Any], reported: Reported, path: Path
) -> list[str]:
    """Return what is wrong with the columns that an object became."""
    wrong: list[str] = []
    explained = set()
    for field, item in value.items():
        takers = [column for column in columns if field in column.sources]
        if isinstance(value, Doubled) and field in value.twice and (takers or reported.all_fields):
            wrong.append(f"{(*path, field)!r} occurs twice")
        if item is None:
            continue
        if not takers:
            if reported.all_fields and (doubled(item) or not reported.names((*path, field), item)):
                wrong.append(f"the value of {(*path, field)!r} is nowhere")
            continue
        holding = [column for column in takers if stored.get(column.name) is not None]
        if not holding:
            wrong.append(f"{(*path, field)!r} is null in {[c.name for c in takers]}")
        for column in holding:
            explained.add(column.name)
        if holding and not any(
            not _value(item, column.kind, stored.get(column.name), reported, (*path, column.name)) for column in holding
        ):
            column = holding[0]
            wrong += _value(item, column.kind, stored.get(column.name), reported, (*path, column.name))
    wrong += [
        f"column {(*path, column.name)!r} holds {shown(stored.get(column.name))}, which no field of the record says"
        for column in columns
        if stored.get(column.name) is not None and column.name not in explained
    ]
    return wrong


def _value(value: Any, kind: Any, stored: Any, reported: Reported, path: Path) -> list[str]:
    name = kind if isinstance(kind, str) else kind[0]
    if value is None or stored is None:
        return [] if value is stored else [f"{path!r} holds {shown(stored)} of {shown(value)}"]
    if name == "struct" and isinstance(value, dict):
        return _fields(value, kind[1], stored, reported, path)
    if name == "list" and isinstance(value, list) and len(value) == len(stored):
        inner = (*path, "element")
        return [w for one, held in zip(value, stored, strict=True) for w in _value(one, kind[1], held, reported, inner)]
    if name == "map" and isinstance(value, dict) and len(value) == len(stored):
        held_by_key = dict(stored)
        if value.keys() == held_by_key.keys():
            inner = (*path, "value")
            return [w for k, one in value.items() for w in _value(one, kind[1], held_by_key[k], reported, inner)]
    if name in ("list", "map", "struct") or doubled(value):
        return [f"{path!r} holds {shown(stored)} of {shown(value)}"]
    try:
        right = image(value, kind)
    except MisfitError:
        return [f"{path!r} ({kind}) holds {shown(stored)}, made of {shown(value)}, which doesn't fit"]
    if right != stored or (type(stored) is bool) != (type(right) is bool):
        return [f"{path!r} ({kind}) holds {shown(stored)} of {shown(value)}"]
    if name in ("timestamp", "timestamp_ntz") and _is_cut(value) and not reported.cut(path):
        return [f"{path!r} ({kind}) lost digits of {shown(value)}, and no report says so"]
    if name in ("double", "float") and not same(value, right, name) and not reported.rounded(path):
        return [f"{path!r} ({kind}) holds {shown(value)} rounded, and no report says so"]
    return []


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:150]}… ({len(text)} characters)"
