"""The strict path: JSON objects become rows by the rules of docs/formats.md, each value unchanged or a type error."""

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from math import isfinite
from typing import Any

import numpy as np

from kafka_lake.formats.json.task.doubles import is_double, same_number
from kafka_lake.formats.json.task.text import MINUS_ZERO, Real, Twice, dumps, refuse_twice, shown, twice
from kafka_lake.formats.json.task.types import TIME, Kind, as_text, kind_of, merged
from kafka_lake.formats.task.columns import FIRST_MICROS, LAST_MICROS, UNITS, Column, Rules
from kafka_lake.formats.task.decoded import ANOTHER_TYPE

Convert = Callable[[Any], Any]
Path = tuple[str, ...]

_EPOCH = date(1970, 1, 1).toordinal()
_BITS = {"byte": 7, "short": 15, "int": 31, "long": 63}
"""Bits of the kinds of whole numbers, without the sign."""
_DOUBLE = 2**53
# Of text, what Arrow takes for a number.
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_ALL_DIGITS = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


class TypeMismatchError(Exception):
    """A value fits none of its columns.

    Args:
        kind: The type of what doesn't fit.
        partly: Whether only a part of the value doesn't fit.
    """

    def __init__(self, kind: Kind, partly: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.partly = partly


@dataclass
class Notes:
    """What was seen and no column has. What belongs to a record that fails is undone.

    Args:
        new_fields: Fields without a column: the path of their struct, by columns' names; name; and value, which is None
            if nothing is inferred.
        truncated: Paths of columns whose time lost digits.
        rounded: Paths of columns whose number was rounded.
    """

    new_fields: list[tuple[Path, str, Any]] = field(default_factory=list)
    truncated: list[Path] = field(default_factory=list)
    rounded: list[Path] = field(default_factory=list)

    def mark(self) -> tuple[int, int, int]:
        """Return the state to which `undo` returns."""
        return len(self.new_fields), len(self.truncated), len(self.rounded)

    def undo(self, mark: tuple[int, int, int]) -> None:
        """Drop what was noted since the mark."""
        new_fields, truncated, rounded = mark
        del self.new_fields[new_fields:]
        del self.truncated[truncated:]
        del self.rounded[rounded:]


def _micros(text: str, zoned: bool) -> tuple[int, bool]:
    """Return a time in microseconds since 1970, and whether it had more digits than that."""
    match = TIME.fullmatch(text)
    if match is None or match["clock"] is None or (match["zone"] and not zoned):
        raise TypeMismatchError("text")
    hour, minute, second = (int(part) for part in match["clock"].split(":"))
    if hour > 23 or minute > 59 or second > 59:
        raise TypeMismatchError("text")
    seconds = (_days(match["date"]) * 24 + hour) * 3600 + minute * 60 + second - _offset(match["zone"] or "Z")
    fraction = match["fraction"] or ""
    return seconds * 1_000_000 + int(fraction[:6].ljust(6, "0")), bool(fraction[6:].strip("0"))


def _offset(zone: str) -> int:
    if zone in "Zz":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 23 or minutes > 59:
        raise TypeMismatchError("text")
    seconds = hours * 3600 + minutes * 60
    return -seconds if zone[0] == "-" else seconds


def _days(text: str) -> int:
    try:
        return date(int(text[:4]), int(text[5:7]), int(text[8:])).toordinal() - _EPOCH
    except ValueError:
        raise TypeMismatchError("text") from None


def _since_epoch(value: int | Real, unit: Decimal) -> tuple[int, bool]:
    """Return a number since 1970 in whole microseconds, and whether there was more."""
    number = Decimal(value)
    if number.adjusted() > 30:
        raise TypeMismatchError(kind_of(value))
    micros = _ALL_DIGITS.multiply(number, unit)
    whole = int(micros.to_integral_value(rounding="ROUND_FLOOR"))
    return whole, whole != micros


def _date(value: Any) -> int:
    # A day of UTC may say so, as in XML Schema and in Debezium's isostring: it is that very day.
    day = value.removesuffix("Z") if type(value) is str else ""
    if len(day) != 10 or (match := TIME.fullmatch(day)) is None:
        raise TypeMismatchError(kind_of(value))
    return _days(match["date"])


def _whole_of(bits: int) -> Convert:
    low, high = -(2**bits), 2**bits

    def convert(value: Any) -> int:
        if type(value) is int and low <= value < high:
            return value
        if type(value) is Real and value == MINUS_ZERO:
            return 0
        raise TypeMismatchError(kind_of(value))

    return convert


def _double(value: Any) -> tuple[float, bool]:
    """Return the nearest double, and whether its shortest text is the same number."""
    kind = type(value)
    if kind is int and -_DOUBLE <= value <= _DOUBLE:
        return float(value), True
    if kind is Real or kind is int:
        text = str(value)
        near = float(text)
        if isfinite(near):
            return near, is_double(text)
    raise TypeMismatchError(kind_of(value))


def _float(value: Any) -> tuple[float, bool]:
    if type(value) in (int, Real):
        with np.errstate(over="ignore", under="ignore"):
            near = np.float32(str(value))
        if isfinite(near):
            return float(near), same_number(str(near), str(value))
    raise TypeMismatchError(kind_of(value))


def _decimal_of(precision: int, scale: int) -> Convert:
    last = Decimal((0, (1,), -scale))

    def convert(value: Any) -> Decimal:
        kind = type(value)
        if kind is int or kind is Real or (kind is str and _DECIMAL.fullmatch(value)):
            number = Decimal(value)
            if not number:
                return Decimal(0)
            _, digits, exponent = number.as_tuple()
            assert isinstance(exponent, int), "JSON has finite numbers only"
            zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
            if exponent + zeros >= -scale and number.adjusted() < precision - scale:
                # Arrow counts zeros at the end too.
                return _ALL_DIGITS.quantize(number, last)
        raise TypeMismatchError(kind_of(value))

    return convert


def _boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise TypeMismatchError(kind_of(value))


def _string(value: Any) -> str:
    if type(value) is not str:
        refuse_twice(value)
    return as_text(value)


def _binary(value: Any) -> bytes:
    if type(value) is str:
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            pass
    raise TypeMismatchError(kind_of(value))


_CONVERTERS: dict[str, Convert] = {"boolean": _boolean, "string": _string, "binary": _binary, "date": _date}
_NEAREST: dict[str, Callable[[Any], tuple[float, bool]]] = {"float": _float, "double": _double}


@dataclass(frozen=True)
class FieldMapping:
    """Which columns the fields of an object feed.

    Args:
        path: The path of the columns' struct.
        by_name: Name of a field → the columns that it feeds, by number, with the converter of its values.
        in_any_case: Name in lower case → the one of those names that it is, if fields may differ from it in case.
    """

    path: Path
    by_name: dict[str, list[tuple[int, Convert]]]
    in_any_case: dict[str, str]

    def names(self, value: dict[str, Any]) -> dict[str, str]:
        """Return of the fields that have a value: the name in the object → the name in `by_name`.

        A field whose name differs in case counts only if no other field of the object could be meant.
        """
        names = {name: name for name, content in value.items() if content is not None}
        others: dict[str, list[str]] = {}
        for name in names:
            if name not in self.by_name and (known := self.in_any_case.get(name.lower())) and known not in names:
                others.setdefault(known, []).append(name)
        return names | {spelled[0]: known for known, spelled in others.items() if len(spelled) == 1}


class Converter:
    """Turns JSON objects into rows.

    Attributes:
        notes: What no column has, of all objects.
    """

    def __init__(self, columns: Sequence[Column], rules: Rules) -> None:
        self._columns, self._rules = tuple(columns), rules
        self.notes = Notes()
        self._mapping = self._mapping_of(self._columns, ())
        self._required = [(index, column[0]) for index, column in enumerate(self._columns) if column[3]]

    def row(self, value: dict[str, Any]) -> list[Any]:
        """Return the values of the columns for an object, ready for Arrow."""
        return self._filled(value, self._mapping, len(self._columns))

    def missing(self, row: Sequence[Any]) -> list[str]:
        """Return the names of the required columns that are null."""
        return [name for index, name in self._required if row[index] is None]

    def message(self, value: dict[str, Any], wrong: dict[str, Kind]) -> str:
        """Return which columns got which values, for an object whose fields don't fit."""
        by_name, parts = self._mapping.by_name, dict[str, None]()
        spelled = {known: name for name, known in self._mapping.names(value).items()}
        for name in sorted(wrong, key=lambda name: by_name[name][0][0]):
            content = value[spelled[name]]
            try:
                index, _ = self._first_fit(content, by_name[name])
            except TypeMismatchError:
                fed = (self._columns[index] for index, _ in by_name[name])
                columns = " or ".join(f"{column[0]} ({column[4]})" for column in fed)
                parts[f"Column {columns} got {shown(dumps(content))}."] = None
            else:
                column, _, sources, *_ = self._columns[index]
                both = " and ".join(shown(source) for source in spelled if source in sources)
                parts[f"Column {column} got different values of {both}."] = None
        return " ".join([*parts, ANOTHER_TYPE])

    def _mapping_of(self, columns: Sequence[Column], path: Path) -> FieldMapping:
        by_name: dict[str, list[tuple[int, Convert]]] = {}
        for index, (name, kind, sources, _, _) in enumerate(columns):
            convert = self._convert(kind, (*path, name))
            for source in sources:
                by_name.setdefault(source, []).append((index, convert))
        in_any_case: dict[str, list[str]] = {}
        for source in by_name if self._rules.any_case else ():
            in_any_case.setdefault(source.lower(), []).append(source)
        return FieldMapping(path, by_name, {name: same[0] for name, same in in_any_case.items() if len(same) == 1})

    def _filled(self, value: dict[str, Any], mapping: FieldMapping, count: int) -> list[Any]:
        """Return an object's fields as the values of so many columns."""
        row: list[Any] = [None] * count
        wrong: dict[str, Kind] = {}
        infer, by_name = self._rules.infer, mapping.by_name
        names = mapping.names(value) if mapping.in_any_case else None
        if isinstance(value, Twice) and (read := self._read(value, mapping)):
            raise twice(read)
        for spelled, content in value.items():
            if content is None:
                continue
            name = spelled if names is None else names[spelled]
            columns = by_name.get(name)
            if columns is None:
                if infer:
                    refuse_twice(content)
                self.notes.new_fields.append((mapping.path, spelled, content if infer else None))
                continue
            try:
                index, converted = self._first_fit(content, columns)
            except TypeMismatchError as error:
                wrong[name] = error.kind
                continue
            if row[index] is None:
                row[index] = converted
            elif row[index] != converted:
                # Two fields feed the column since it was renamed, and they differ.
                wrong[name] = kind_of(content)
        if wrong:
            raise TypeMismatchError(["struct", wrong], True)
        return row

    def _read(self, value: Twice, mapping: FieldMapping) -> frozenset[str]:
        """Return the fields that are there twice and are read."""
        if self._rules.infer:
            return value.names
        return frozenset(n for n in value.names if n in mapping.by_name or n.lower() in mapping.in_any_case)

    def _first_fit(self, value: Any, columns: Sequence[tuple[int, Convert]]) -> tuple[int, Any]:
        """Return the number of the first column that a value fits, and the value there."""
        if len(columns) == 1:
            index, convert = columns[0]
            return index, convert(value)
        why: TypeMismatchError | None = None
        for index, convert in columns:
            mark = self.notes.mark()
            try:
                return index, convert(value)
            except TypeMismatchError as error:
                self.notes.undo(mark)
                why = error if why is None or (error.partly and not why.partly) else why
        assert why is not None, "every field has a column to feed"
        raise why

    def _convert(self, kind: Any, path: Path) -> Convert:
        name = kind[0]
        if name == "struct":
            return self._struct(kind[1], path)
        if name == "list":
            return self._list(kind[1], path)
        if name == "map":
            return self._map(kind[1], path)
        if name == "decimal":
            return _decimal_of(kind[1], kind[2])
        if name in _BITS:
            return _whole_of(_BITS[name])
        if name in _NEAREST:
            return self._real(_NEAREST[name], path)
        if name in ("timestamp", "timestamp_ntz"):
            return self._time(name == "timestamp", path)
        return _CONVERTERS[name]

    def _struct(self, columns: Sequence[Column], path: Path) -> Convert:
        mapping = self._mapping_of(columns, path)
        names = [column[0] for column in columns]

        def convert(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise TypeMismatchError(kind_of(value))
            return dict(zip(names, self._filled(value, mapping, len(names)), strict=True))

        return convert

    def _list(self, element: Any, path: Path) -> Convert:
        inner = self._convert(element, (*path, "element"))

        def convert(value: Any) -> list[Any]:
            if not isinstance(value, list):
                raise TypeMismatchError(kind_of(value))
            return _converted(value, inner)

        return convert

    def _map(self, value_kind: Any, path: Path) -> Convert:
        inner = self._convert(value_kind, (*path, "value"))

        def convert(value: Any) -> list[tuple[str, Any]]:
            if not isinstance(value, dict):
                raise TypeMismatchError(kind_of(value))
            if isinstance(value, Twice):
                raise twice(value.names)
            return list(zip(value, _converted(list(value.values()), inner), strict=True))

        return convert

    def _real(self, nearest: Callable[[Any], tuple[float, bool]], path: Path) -> Convert:
        rounded = self.notes.rounded

        def convert(value: Any) -> float:
            near, same = nearest(value)
            if not same:
                rounded.append(path)
            return near

        return convert

    def _time(self, zoned: bool, path: Path) -> Convert:
        unit = None if self._rules.timestamp_unit is None else Decimal(str(UNITS[self._rules.timestamp_unit]))
        truncated = self.notes.truncated

        def convert(value: Any) -> int:
            if type(value) is str:
                micros, lost = _micros(value, zoned)
            elif unit is not None and isinstance(value, int | Real) and not isinstance(value, bool):
                micros, lost = _since_epoch(value, unit)
            else:
                raise TypeMismatchError(kind_of(value))
            if not FIRST_MICROS <= micros <= LAST_MICROS:
                raise TypeMismatchError("text" if isinstance(value, str) else kind_of(value))
            if lost:
                truncated.append(path)
            return micros

        return convert


def _converted(values: Sequence[Any], inner: Convert) -> list[Any]:
    """Return the items of a list or the values of a map."""
    converted, wrong = [], None
    for value in values:
        try:
            converted.append(None if value is None else inner(value))
        except TypeMismatchError as error:
            wrong = merged(wrong, error.kind)
    if wrong is not None:
        raise TypeMismatchError(["list", wrong], True)
    return converted
