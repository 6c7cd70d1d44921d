"""From JSON values to the values of columns, each unchanged or a misfit: the rules of docs/formats.md, one by one.

A column is plain data, so that it travels: ``(name, kind, sources, required, shown)`` with the names of the fields that
feed it and its type as messages show it. A kind is ``("long",)`` and the like, ``("decimal", precision, scale)``,
``("list", kind)``, ``("map", kind)`` with text as keys, or ``("struct", columns)``.
"""

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from kafka_lake.executors.json_text import MINUS_ZERO, Real, Twice, dumps, shown, twice
from kafka_lake.executors.json_types import TIME, Kind, as_text, is_double, kind_of, merged, same_number

Column = tuple[str, Any, tuple[str, ...], bool, str]
Convert = Callable[[Any], Any]
Path = tuple[str, ...]

UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0.001}
"""Units of a time that is a number since 1970, and how many microseconds each is."""
FIRST_MICROS, LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 0001 to 9999, which is what every reader of a table holds."""

_EPOCH = date(1970, 1, 1).toordinal()
_WHOLE = {"byte": 7, "short": 15, "int": 31, "long": 63}
_DOUBLE = 2**53
# Of text, what Arrow takes for a number.
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_ALL_DIGITS = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_ARROW = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "variant": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


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


@dataclass(frozen=True)
class Rules:
    """What a topic's settings say about its values.

    Args:
        infer: Whether fields without a column are wanted; else they don't matter.
        timestamp_unit: Of numbers in columns of times, one of `UNITS`; None if such numbers are misfits.
        exact_times: Whether digits of a time beyond microseconds make it a misfit; else they are cut and counted.
        max_columns: How many columns the table may have. Of more new fields than that, no more are told apart.
    """

    infer: bool = False
    timestamp_unit: str | None = None
    exact_times: bool = False
    max_columns: int = 1000


@dataclass
class Notes:
    """What was seen and is in no column. What belongs to a record that fails is taken back.

    Args:
        found: Fields without a column: the path of the struct that they are in, by columns' names, name and value.
        cut: Paths of columns whose time lost digits.
    """

    found: list[tuple[Path, str, Any]] = field(default_factory=list)
    cut: list[Path] = field(default_factory=list)

    def mark(self) -> tuple[int, int]:
        """Return where the notes are."""
        return len(self.found), len(self.cut)

    def back(self, mark: tuple[int, int]) -> None:
        """Take back what was noted since."""
        del self.found[mark[0] :]
        del self.cut[mark[1] :]


def arrow_type(kind: Any) -> Any:
    """Return the Arrow type of a kind; a variant is its JSON text."""
    if kind[0] == "struct":
        return pa.struct([pa.field(each[0], arrow_type(each[1])) for each in kind[1]])
    if kind[0] == "list":
        return pa.list_(arrow_type(kind[1]))
    if kind[0] == "map":
        return pa.map_(pa.string(), arrow_type(kind[1]))
    return pa.decimal128(kind[1], kind[2]) if kind[0] == "decimal" else _ARROW[kind[0]]


class Converter:
    """Turns JSON objects into rows.

    Args:
        columns: Those of the rows.
        rules: The topic's.

    Attributes:
        notes: What was seen and is in no column, until somebody takes it away.
    """

    def __init__(self, columns: Sequence[Column], rules: Rules) -> None:
        self._columns = tuple(columns)
        self._rules = rules
        self.notes = Notes()
        self._takers = self._by_source(self._columns, ())
        self._required = [(index, each[0]) for index, each in enumerate(self._columns) if each[3]]

    def row(self, value: dict[str, Any]) -> list[Any]:
        """Return the values of the columns for an object, ready for Arrow.

        Raises:
            MisfitError: With the types of the fields that don't fit, and `message`.
            NotJsonError: If a field that is read is there twice.
        """
        row: list[Any] = [None] * len(self._columns)
        wrong = self._fill(value, row, self._takers, ())
        if wrong:
            raise MisfitError(["struct", wrong], True)
        return row

    def missing(self, row: Sequence[Any]) -> list[str]:
        """Return the names of the columns that must not be null and are."""
        return [name for index, name in self._required if row[index] is None]

    def message(self, value: dict[str, Any], wrong: dict[str, Kind]) -> str:
        """Return which columns got what, for an object whose fields don't fit."""
        said = []
        for name in sorted(wrong, key=lambda name: self._takers[name][0][0]):
            kinds = (self._columns[index] for index, _ in self._takers[name])
            columns = " or ".join(f"{column[0]} ({column[4]})" for column in kinds)
            said.append(f"Column {columns} got {shown(dumps(value[name]))}.")
        return " ".join(said)

    def _by_source(self, columns: Sequence[Column], path: Path) -> dict[str, list[tuple[int, Convert]]]:
        takers: dict[str, list[tuple[int, Convert]]] = {}
        for index, (name, kind, sources, _, _) in enumerate(columns):
            convert = self._convert(kind, (*path, name))
            for source in sources:
                takers.setdefault(source, []).append((index, convert))
        return takers

    def _fill(
        self, value: dict[str, Any], row: list[Any], takers: dict[str, list[tuple[int, Convert]]], path: Path
    ) -> dict[str, Kind]:
        """Put an object's fields into a row; return the types of those that don't fit."""
        wrong: dict[str, Kind] = {}
        infer = self._rules.infer
        if isinstance(value, Twice) and (bad := value.names if infer else value.names & takers.keys()):
            raise twice(bad)
        for name, each in value.items():
            mine = takers.get(name)
            if mine is None:
                if infer and each is not None:
                    refuse_twice(each)
                    self.notes.found.append((path, name, each))
            elif each is not None:
                try:
                    index, made = self._taken(each, mine)
                except MisfitError as error:
                    wrong[name] = error.kind
                    continue
                if row[index] is None:
                    row[index] = made
                elif row[index] != made:
                    # Two fields feed the column since it was renamed, and say different things.
                    wrong[name] = kind_of(each)
        return wrong

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
            return _decimal(kind[1], kind[2])
        if name in _WHOLE:
            return _whole(_WHOLE[name])
        if name in ("timestamp", "timestamp_ntz"):
            return self._time(name == "timestamp", path)
        return _SIMPLE[name]

    def _struct(self, columns: Sequence[Column], path: Path) -> Convert:
        takers = self._by_source(columns, path)
        names = [each[0] for each in columns]

        def convert(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise MisfitError(kind_of(value))
            row: list[Any] = [None] * len(names)
            wrong = self._fill(value, row, takers, path)
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

    def _time(self, zoned: bool, path: Path) -> Convert:
        unit = None if self._rules.timestamp_unit is None else Decimal(str(UNITS[self._rules.timestamp_unit]))
        exact, cut = self._rules.exact_times, self.notes.cut

        def convert(value: Any) -> int:
            if type(value) is str:
                micros, lost = _instant(value, zoned)
            elif unit is not None and isinstance(value, int | Real) and not isinstance(value, bool):
                micros, lost = _since_epoch(value, unit)
            else:
                raise MisfitError(kind_of(value))
            if not FIRST_MICROS <= micros <= LAST_MICROS or (lost and exact):
                raise MisfitError("text" if isinstance(value, str) else kind_of(value))
            if lost:
                cut.append(path)
            return micros

        return convert


def _instant(text: str, zoned: bool) -> tuple[int, bool]:
    """Return a time in microseconds since 1970, and whether it had more digits than that."""
    match = TIME.fullmatch(text)
    if match is None or match["clock"] is None or (match["zone"] and not zoned):
        raise MisfitError("text")
    hour, minute, second = (int(part) for part in match["clock"].split(":"))
    if hour > 23 or minute > 59 or second > 59:
        raise MisfitError("text")
    seconds = (_days(match["date"]) * 24 + hour) * 3600 + minute * 60 + second - _offset(match["zone"] or "Z")
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


def _days(text: str) -> int:
    try:
        return date(int(text[:4]), int(text[5:7]), int(text[8:])).toordinal() - _EPOCH
    except ValueError:
        raise MisfitError("text") from None


def _since_epoch(value: int | Real, unit: Decimal) -> tuple[int, bool]:
    number = Decimal(value)
    if number.adjusted() > 30:
        raise MisfitError(kind_of(value))
    micros = _ALL_DIGITS.multiply(number, unit)
    whole = int(micros.to_integral_value(rounding="ROUND_FLOOR"))
    return whole, whole != micros


def _date(value: Any) -> int:
    if type(value) is not str or len(value) != 10 or (match := TIME.fullmatch(value)) is None:
        raise MisfitError(kind_of(value))
    return _days(match["date"])


def _whole(bits: int) -> Convert:
    low, high = -(2**bits), 2**bits

    def convert(value: Any) -> int:
        if type(value) is int and low <= value < high:
            return value
        if type(value) is Real and value == MINUS_ZERO:
            return 0
        raise MisfitError(kind_of(value))

    return convert


def _double(value: Any) -> float:
    kind = type(value)
    if kind is Real or (kind is int and not -_DOUBLE <= value <= _DOUBLE):
        text = str(value)
        if is_double(text):
            return float(text)
    elif kind is int:
        return float(value)
    raise MisfitError(kind_of(value))


def _float(value: Any) -> float:
    if type(value) in (int, Real):
        with np.errstate(over="ignore", under="ignore"):
            near = np.float32(str(value))
        if same_number(str(near), str(value)):
            return float(near)
    raise MisfitError(kind_of(value))


def _decimal(precision: int, scale: int) -> Convert:
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


def _variant(value: Any) -> str:
    refuse_twice(value)
    return dumps(value)


def refuse_twice(value: Any) -> None:
    """Refuse a value that has an object with a field that is there twice.

    Raises:
        NotJsonError: If it has.
    """
    if isinstance(value, dict):
        if isinstance(value, Twice):
            raise twice(value.names)
        for each in value.values():
            refuse_twice(each)
    elif isinstance(value, list):
        for each in value:
            refuse_twice(each)


_SIMPLE: dict[str, Convert] = {
    "boolean": _boolean,
    "float": _float,
    "double": _double,
    "string": _string,
    "binary": _binary,
    "date": _date,
    "variant": _variant,
}
