"""From JSON objects to rows, each value unchanged or a misfit; what is in no column is noted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from kafka_lake.executors.json.columns import FIRST_MICROS, LAST_MICROS, UNITS, Column, Rules
from kafka_lake.executors.json.instants import instant_of
from kafka_lake.executors.json.misfit import ANOTHER_TYPE, MisfitError
from kafka_lake.executors.json.scalars import (
    CONVERTERS,
    NEAREST,
    WHOLE_BITS,
    Convert,
    Nearest,
    decimal_of,
    since_epoch,
    whole_of,
)
from kafka_lake.executors.json.text import Real, Twice, dumps, refuse_twice, shown, twice
from kafka_lake.executors.json.types import Kind, kind_of, merged

Path = tuple[str, ...]


@dataclass
class Notes:
    """What was seen and is in no column. What belongs to a record that fails is taken back.

    Args:
        found: Fields without a column: the path of the struct that they are in, by columns' names; name; and value,
            which is None where nothing is inferred.
        cut: Paths of columns whose time lost digits.
        spelled: Fields that fed a column although their name differs in case: the path of the column, and the name.
        rounded: Paths of columns whose number was rounded.
    """

    found: list[tuple[Path, str, Any]] = field(default_factory=list)
    cut: list[Path] = field(default_factory=list)
    spelled: list[tuple[Path, str]] = field(default_factory=list)
    rounded: list[Path] = field(default_factory=list)

    def mark(self) -> tuple[int, int, int, int]:
        """Return where the notes are."""
        return len(self.found), len(self.cut), len(self.spelled), len(self.rounded)

    def back(self, mark: tuple[int, int, int, int]) -> None:
        """Take back what was noted since."""
        found, cut, spelled, rounded = mark
        del self.found[found:]
        del self.cut[cut:]
        del self.spelled[spelled:]
        del self.rounded[rounded:]


@dataclass(frozen=True)
class Takers:
    """What takes the fields of an object.

    Args:
        columns: The columns' names, and what the columns are below.
        by_name: Name of a field → the columns that it feeds, by number, with what converts its values.
        in_any_case: Name in lower case → the one of those names that it is, if fields may differ from it in case.
    """

    columns: tuple[str, ...]
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
        """Return the values of the columns for an object, ready for Arrow.

        Raises:
            MisfitError: With the types of the fields that don't fit, and `message`.
            NotJsonError: If a field that is read is there twice.
        """
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
        return Takers(tuple(column[0] for column in columns), path, takers, alone)

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
            if given != name:
                self.notes.spelled.append(((*takers.path, takers.columns[index]), given))
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
