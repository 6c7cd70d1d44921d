"""The versions that a history shall have, computed from its changes alone, and those that its readers see.

Another model than `history_model`, which knows the rows that are no versions as well: here are only those that count.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_lake_tests.conftest import View


@dataclass(frozen=True)
class Told:
    """A change as its source made it.

    Args:
        order: Among the changes of its key.
        time: From when on it counts.
        row: What it tells; None for a delete that tells nothing.
        keeps: Columns that it doesn't tell.
        is_delete: Whether it takes the row away.
        place: Partition and offset, of a change that was sent.
    """

    order: tuple[Any, ...]
    time: Any
    row: Mapping[str, Any] | None
    keeps: frozenset[str] = frozenset()
    place: tuple[int, int] | None = None
    is_delete: bool = False


@dataclass
class Expected:
    """A version that a history shall have."""

    begins: Any
    ends: Any
    row: Mapping[str, Any]
    place: tuple[int, int] | None


def expected(changes: Sequence[Told], columns: Sequence[str], track: Sequence[str]) -> list[Expected]:
    """Return the versions of one key that count for some time, oldest first."""
    found: list[Expected] = []
    row: dict[str, Any] | None = None
    left: Mapping[str, Any] = {}
    now: Any = None
    for value in sorted(changes, key=lambda value: value.order):
        now = value.time if now is None else max(now, value.time)
        reported = {
            name: left.get(name) if name in value.keeps or not value.row else value.row.get(name) for name in columns
        }
        if value.is_delete:
            if row is not None:
                found[-1].ends = now
            row, left = None, {}
            continue
        before, row, left = row, reported, reported
        if before is not None and all(before[name] == row[name] for name in track):
            found[-1].row, found[-1].place = row, value.place
            continue
        if before is not None:
            found[-1].ends = now
        found.append(Expected(now, None, row, value.place))
    return [version for version in found if version.begins != version.ends]


def versions(view: View, key: str, columns: Sequence[str]) -> dict[Any, list[Expected]]:
    """Return the versions of each key that a reader sees, oldest first."""
    found = defaultdict(list)
    for row in sorted(view.rows(), key=lambda row: row["valid_from"]):
        if row["valid_to"] is None or row["valid_from"] < row["valid_to"]:
            place = row["_kafka"]["partition"], row["_kafka"]["offset"]
            version = Expected(row["valid_from"], row["valid_to"], {name: row[name] for name in columns}, place)
            found[row[key]].append(version)
    return dict(found)


def assert_versions(
    view: View,
    changes: Mapping[Any, Sequence[Told]],
    columns: Sequence[str],
    track: Sequence[str],
    without: Collection[tuple[int, int]] = (),
) -> None:
    """Assert that a history has the versions that its changes make.

    Args:
        view: Of the history.
        changes: By their keys.
        columns: Those of the rows, but for the key.
        track: Those whose changes make versions.
        without: Places of changes that were refused.
    """
    applied = {key: [item for item in reported if item.place not in without] for key, reported in changes.items()}
    wanted = {key: made for key, reported in applied.items() if (made := expected(reported, columns, track))}
    assert versions(view, "id", columns) == wanted
