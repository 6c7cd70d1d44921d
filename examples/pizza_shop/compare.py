"""Compares the rows of a database with those of a table: no row more, none less, and each value the same."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Row = Mapping[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Comparison:
    """What a database and a table have of the same rows.

    Args:
        wanted: How many rows the database has.
        found: How many the table has.
        missing: Keys that the table lacks.
        unexpected: Keys that the database doesn't have, or that the table has more than once.
        different: Keys whose rows differ, and the columns that do.
    """

    wanted: int
    found: int
    missing: tuple[Key, ...]
    unexpected: tuple[Key, ...]
    different: Mapping[Key, tuple[str, ...]]

    @property
    def differences(self) -> int:
        """How many keys aren't the same in both."""
        return len({*self.missing, *self.unexpected, *self.different})


def compare(key: Sequence[str], wanted: Iterable[Row], found: Iterable[Row]) -> Comparison:
    """Compare rows by their keys, in the columns that the database has.

    >>> compare(["id"], [{"id": 1, "n": 2}], [{"id": 1, "n": 3}, {"id": 4, "n": 5}]).different
    {(1,): ('n',)}
    """
    there = {_key(row, key): row for row in wanted}
    rows = list(found)
    times = Counter(_key(row, key) for row in rows)
    here = {_key(row, key): row for row in rows}
    different = {
        each: tuple(name for name, value in row.items() if plain(here[each].get(name)) != plain(value))
        for each, row in there.items()
        if each in here
    }
    return Comparison(
        wanted=len(there),
        found=len(rows),
        missing=tuple(each for each in there if each not in here),
        unexpected=tuple(each for each, count in times.items() if each not in there or count > 1),
        different={each: columns for each, columns in different.items() if columns},
    )


def plain(value: Any) -> Any:
    """Return a value in a form that is the same on both sides: times in UTC."""
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def _key(row: Row, key: Sequence[str]) -> Key:
    return tuple(plain(row[name]) for name in key)
