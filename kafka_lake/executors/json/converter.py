"""From JSON objects to rows, each value unchanged or a misfit; what is in no column is noted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from kafka_lake.executors.json.columns import FIRST_MICROS, LAST_MICROS, UNITS, Column, Rules
from kafka_lake.executors.json.instants import instant_of
from kafka_lake.executors.json.misfit import MisfitError
from kafka_lake.executors.json.scalars import (
    CONVERTERS,
    WHOLE_BITS,
    Convert,
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
            return decimal_of(kind[1], kind[2])
        if name in WHOLE_BITS:
            return whole_of(WHOLE_BITS[name])
        if name in ("timestamp", "timestamp_ntz"):
            return self._time(name == "timestamp", path)
        return CONVERTERS[name]

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
