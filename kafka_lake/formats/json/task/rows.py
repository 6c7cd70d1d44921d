"""From JSON objects to rows by the rules of docs/formats.md: each value unchanged, or a misfit."""

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


class MisfitError(Exception):
    """A value fits none of its columns.

    Args:
        kind: The type of what doesn't fit.
        partly: Whether that is a part of the value only.
    """

    def __init__(self, kind: Kind, partly: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.partly = partly


_EPOCH = date(1970, 1, 1).toordinal()


def instant_of(text: str, zoned: bool) -> tuple[int, bool]:
    """Return a time in microseconds since 1970, and whether it had more digits than that."""
    match = TIME.fullmatch(text)
    if match is None or match["clock"] is None or (match["zone"] and not zoned):
        raise MisfitError("text")
    hour, minute, second = (int(part) for part in match["clock"].split(":"))
    if hour > 23 or minute > 59 or second > 59:
        raise MisfitError("text")
    seconds = (days_of(match["date"]) * 24 + hour) * 3600 + minute * 60 + second - _offset(match["zone"] or "Z")
    fraction = match["fraction"] or ""
    return seconds * 1_000_000 + int(fraction[:6].ljust(6, "0")), bool(fraction[6:].strip("0"))


def _offset(zone: str) -> int:
    if zone in "Zz":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 23 or minutes > 59:
        raise MisfitError("text")
    seconds = hours * 3600 + minutes * 60
    return -seconds if zone[0] == "-" else seconds


def days_of(text: str) -> int:
    """Return a date in days since 1970."""
    try:
        return date(int(text[:4]), int(text[5:7]), int(text[8:])).toordinal() - _EPOCH
    except ValueError:
        raise MisfitError("text") from None


Convert = Callable[[Any], Any]
Nearest = Callable[[Any], tuple[float, bool]]
WHOLE_BITS = {"byte": 7, "short": 15, "int": 31, "long": 63}
"""Bits of the kinds of whole numbers, without the sign."""
_DOUBLE = 2**53
# Of text, what Arrow takes for a number.
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_ALL_DIGITS = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def since_epoch(value: int | Real, unit: Decimal) -> tuple[int, bool]:
    """Return a time that is a number since 1970 in whole microseconds, and whether there was more."""
    number = Decimal(value)
    if number.adjusted() > 30:
        raise MisfitError(kind_of(value))
    micros = _ALL_DIGITS.multiply(number, unit)
    whole = int(micros.to_integral_value(rounding="ROUND_FLOOR"))
    return whole, whole != micros


def _date(value: Any) -> int:
    # A day of UTC may say so, as in XML Schema and in Debezium's isostring: it is that very day.
    day = value.removesuffix("Z") if type(value) is str else ""
    if len(day) != 10 or (match := TIME.fullmatch(day)) is None:
        raise MisfitError(kind_of(value))
    return days_of(match["date"])


def whole_of(bits: int) -> Convert:
    """Return what takes whole numbers of so many bits, without the sign."""
    low, high = -(2**bits), 2**bits

    def convert(value: Any) -> int:
        if type(value) is int and low <= value < high:
            return value
        if type(value) is Real and value == MINUS_ZERO:
            return 0
        raise MisfitError(kind_of(value))

    return convert


def _double(value: Any) -> tuple[float, bool]:
    kind = type(value)
    if kind is int and -_DOUBLE <= value <= _DOUBLE:
        return float(value), True
    if kind is Real or kind is int:
        text = str(value)
        near = float(text)
        if isfinite(near):
            return near, is_double(text)
    raise MisfitError(kind_of(value))


def _float(value: Any) -> tuple[float, bool]:
    if type(value) in (int, Real):
        with np.errstate(over="ignore", under="ignore"):
            near = np.float32(str(value))
        if isfinite(near):
            return float(near), same_number(str(near), str(value))
    raise MisfitError(kind_of(value))


def decimal_of(precision: int, scale: int) -> Convert:
    """Return what takes numbers, also as text, that fit a precision and a scale."""
    last = Decimal((0, (1,), -scale))

    def convert(value: Any) -> Decimal:
        kind = type(value)
        if kind is int or kind is Real or (kind is str and _DECIMAL.fullmatch(value)):
            number = Decimal(value)
            if not number:
                return Decimal(0)
            _, digits, exponent = number.as_tuple()
            assert isinstance(exponent, int), "what isn't finite is no JSON"
            zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
            if exponent + zeros >= -scale and number.adjusted() < precision - scale:
                # Arrow counts zeros at the end too.
                return _ALL_DIGITS.quantize(number, last)
        raise MisfitError(kind_of(value))

    return convert


def _boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise MisfitError(kind_of(value))


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    refuse_twice(value)
    return as_text(value)


def _binary(value: Any) -> bytes:
    if type(value) is str:
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            pass
    raise MisfitError(kind_of(value))


CONVERTERS: dict[str, Convert] = {
    "boolean": _boolean,
    "string": _string,
    "binary": _binary,
    "date": _date,
}
"""What takes values of the kinds that need nothing but their name."""
NEAREST: dict[str, Nearest] = {"float": _float, "double": _double}
"""What gives the number of a kind that is next to a value, and whether its shortest text is the value's number."""


Path = tuple[str, ...]


@dataclass
class Notes:
    """What was seen and is in no column. What belongs to a record that fails is taken back.

    Args:
        found: Fields without a column: the path of the struct that they are in, by columns' names; name; and value,
            which is None where nothing is inferred.
        cut: Paths of columns whose time lost digits.
        rounded: Paths of columns whose number was rounded.
    """

    found: list[tuple[Path, str, Any]] = field(default_factory=list)
    cut: list[Path] = field(default_factory=list)
    rounded: list[Path] = field(default_factory=list)

    def mark(self) -> tuple[int, int, int]:
        """Return where the notes are."""
        return len(self.found), len(self.cut), len(self.rounded)

    def back(self, mark: tuple[int, int, int]) -> None:
        """Take back what was noted since."""
        found, cut, rounded = mark
        del self.found[found:]
        del self.cut[cut:]
        del self.rounded[rounded:]


@dataclass(frozen=True)
class Takers:
    """What takes the fields of an object.

    Args:
        path: What the columns are below.
        by_name: Name of a field → the columns that it feeds, by number, with what converts its values.
        in_any_case: Name in lower case → the one of those names that it is, if fields may differ from it in case.
    """

    path: Path
    by_name: dict[str, list[tuple[int, Convert]]]
    in_any_case: dict[str, str]

    def named(self, value: dict[str, Any]) -> dict[str, str]:
        """Return of the fields that have a value: the name in the object → the name that columns know it by.

        A field whose name differs in case counts only if nothing else in the object could be meant.
        """
        found = {name: name for name, given in value.items() if given is not None}
        others: dict[str, list[str]] = {}
        for name in found:
            if name not in self.by_name and (known := self.in_any_case.get(name.lower())) and known not in found:
                others.setdefault(known, []).append(name)
        return found | {names[0]: known for known, names in others.items() if len(names) == 1}


class Converter:
    """Turns JSON objects into rows.

    Attributes:
        notes: What was seen and is in no column, until somebody takes it away.
    """

    def __init__(self, columns: Sequence[Column], rules: Rules) -> None:
        self._columns = tuple(columns)
        self._rules = rules
        self.notes = Notes()
        self._takers = self._takers_of(self._columns, ())
        self._required = [(index, each[0]) for index, each in enumerate(self._columns) if each[3]]

    def row(self, value: dict[str, Any]) -> list[Any]:
        """Return the values of the columns for an object, ready for Arrow."""
        row: list[Any] = [None] * len(self._columns)
        wrong = self._fill(value, row, self._takers)
        if wrong:
            raise MisfitError(["struct", wrong], True)
        return row

    def missing(self, row: Sequence[Any]) -> list[str]:
        """Return the names of the columns that must not be null and are."""
        return [name for index, name in self._required if row[index] is None]

    def message(self, value: dict[str, Any], wrong: dict[str, Kind]) -> str:
        """Return which columns got what, for an object whose fields don't fit."""
        takers, said = self._takers.by_name, []
        given = {known: name for name, known in self._takers.named(value).items()}
        for name in sorted(wrong, key=lambda name: takers[name][0][0]):
            kinds = (self._columns[index] for index, _ in takers[name])
            columns = " or ".join(f"{column[0]} ({column[4]})" for column in kinds)
            said.append(f"Column {columns} got {shown(dumps(value[given[name]]))}.")
        return " ".join([*said, ANOTHER_TYPE])

    def _takers_of(self, columns: Sequence[Column], path: Path) -> Takers:
        takers: dict[str, list[tuple[int, Convert]]] = {}
        for index, (name, kind, sources, _, _) in enumerate(columns):
            convert = self._convert(kind, (*path, name))
            for source in sources:
                takers.setdefault(source, []).append((index, convert))
        in_any_case: dict[str, list[str]] = {}
        for source in takers if self._rules.any_case else ():
            in_any_case.setdefault(source.lower(), []).append(source)
        alone = {name: sources[0] for name, sources in in_any_case.items() if len(sources) == 1}
        return Takers(path, takers, alone)

    def _fill(self, value: dict[str, Any], row: list[Any], takers: Takers) -> dict[str, Kind]:
        """Put an object's fields into a row; return the types of those that don't fit."""
        wrong: dict[str, Kind] = {}
        infer, by_name = self._rules.infer, takers.by_name
        named = takers.named(value) if takers.in_any_case else None
        if isinstance(value, Twice) and (bad := self._read_twice(value, takers)):
            raise twice(bad)
        for given, held in value.items():
            if held is None:
                continue
            name = given if named is None else named[given]
            mine = by_name.get(name)
            if mine is None:
                if infer:
                    refuse_twice(held)
                self.notes.found.append((takers.path, given, held if infer else None))
                continue
            try:
                index, made = self._taken(held, mine)
            except MisfitError as error:
                wrong[name] = error.kind
                continue
            if row[index] is None:
                row[index] = made
            elif row[index] != made:
                # Two fields feed the column since it was renamed, and say different things.
                wrong[name] = kind_of(held)
        return wrong

    def _read_twice(self, value: Twice, takers: Takers) -> frozenset[str]:
        """Return the fields that are read and are there twice."""
        if self._rules.infer:
            return value.names
        return frozenset(n for n in value.names if n in takers.by_name or n.lower() in takers.in_any_case)

    def _taken(self, value: Any, takers: Sequence[tuple[int, Convert]]) -> tuple[int, Any]:
        """Return which column a value goes to and what it is there: the first that it fits."""
        if len(takers) == 1:
            index, convert = takers[0]
            return index, convert(value)
        why: MisfitError | None = None
        for index, convert in takers:
            mark = self.notes.mark()
            try:
                return index, convert(value)
            except MisfitError as error:
                self.notes.back(mark)
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
            return decimal_of(kind[1], kind[2])
        if name in WHOLE_BITS:
            return whole_of(WHOLE_BITS[name])
        if name in NEAREST:
            return self._real(NEAREST[name], path)
        if name in ("timestamp", "timestamp_ntz"):
            return self._time(name == "timestamp", path)
        return CONVERTERS[name]

    def _struct(self, columns: Sequence[Column], path: Path) -> Convert:
        takers = self._takers_of(columns, path)
        names = [each[0] for each in columns]

        def convert(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise MisfitError(kind_of(value))
            row: list[Any] = [None] * len(names)
            wrong = self._fill(value, row, takers)
            if wrong:
                raise MisfitError(["struct", wrong], True)
            return dict(zip(names, row, strict=True))

        return convert

    def _each(self, values: Sequence[Any], inner: Convert) -> list[Any]:
        made, wrong = [], None
        for value in values:
            try:
                made.append(None if value is None else inner(value))
            except MisfitError as error:
                wrong = merged(wrong, error.kind)
        if wrong is not None:
            raise MisfitError(["list", wrong], True)
        return made

    def _list(self, element: Any, path: Path) -> Convert:
        inner = self._convert(element, (*path, "element"))

        def convert(value: Any) -> list[Any]:
            if not isinstance(value, list):
                raise MisfitError(kind_of(value))
            return self._each(value, inner)

        return convert

    def _map(self, value_kind: Any, path: Path) -> Convert:
        inner = self._convert(value_kind, (*path, "value"))

        def convert(value: Any) -> list[tuple[str, Any]]:
            if not isinstance(value, dict):
                raise MisfitError(kind_of(value))
            if isinstance(value, Twice):
                raise twice(value.names)
            return list(zip(value, self._each(list(value.values()), inner), strict=True))

        return convert

    def _real(self, nearest: Nearest, path: Path) -> Convert:
        rounded = self.notes.rounded

        def convert(value: Any) -> float:
            near, same = nearest(value)
            if not same:
                rounded.append(path)
            return near

        return convert

    def _time(self, zoned: bool, path: Path) -> Convert:
        unit = None if self._rules.timestamp_unit is None else Decimal(str(UNITS[self._rules.timestamp_unit]))
        exact, cut = self._rules.exact_times, self.notes.cut

        def convert(value: Any) -> int:
            if type(value) is str:
                micros, lost = instant_of(value, zoned)
            elif unit is not None and isinstance(value, int | Real) and not isinstance(value, bool):
                micros, lost = since_epoch(value, unit)
            else:
                raise MisfitError(kind_of(value))
            if not FIRST_MICROS <= micros <= LAST_MICROS or (lost and exact):
                raise MisfitError("text" if isinstance(value, str) else kind_of(value))
            if lost:
                cut.append(path)
            return micros

        return convert
