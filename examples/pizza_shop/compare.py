"""Compares rows with expected rows, by their keys."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Row = Mapping[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Args:
        wanted: Number of expected rows.
        found: Number of rows.
        missing: Keys without a row.
        unexpected: Keys that are not expected, or have several rows.
        different: Keys whose rows differ, and the columns that differ.
    """

    wanted: int
    found: int
    missing: tuple[Key, ...]
    unexpected: tuple[Key, ...]
    different: Mapping[Key, tuple[str, ...]]

    @property
    def differences(self) -> int:
        """The number of keys with a difference."""
        return len({*self.missing, *self.unexpected, *self.different})


def compare(key: Sequence[str], wanted: Iterable[Row], found: Iterable[Row]) -> Comparison:
    """Compare rows by their keys, in the columns of the expected rows.

    >>> compare(["id"], [{"id": 1, "n": 2}], [{"id": 1, "n": 3}, {"id": 4, "n": 5}]).different
    {(1,): ('n',)}
    """
    there = {_key(row, key): row for row in wanted}
    rows = list(found)
    times = Counter(_key(row, key) for row in rows)
    here = {_key(row, key): row for row in rows}
    different = {
        element: tuple(name for name, value in row.items() if plain(here[element].get(name)) != plain(value))
        for element, row in there.items()
        if element in here
    }
    return Comparison(
        wanted=len(there),
        found=len(rows),
        missing=tuple(row for row in there if row not in here),
        unexpected=tuple(element for element, count in times.items() if element not in there or count > 1),
        different={element: columns for element, columns in different.items() if columns},
    )


def plain(value: Any) -> Any:
    """Return a value for the comparison: timestamps in UTC."""
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def _key(row: Row, key: Sequence[str]) -> Key:
    return tuple(plain(row[name]) for name in key)
