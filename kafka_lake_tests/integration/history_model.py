"""What a history is, in plain Python: all events of a key sorted at once, whatever came when."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True)
class Event:
    """A record, as a change of a row.

    Args:
        key: Of the row.
        partition: Kafka partition.
        offset: Its offset.
        order: What tells its order; None of a delete that tells none.
        time: From when on it counts; None of a delete that has no order.
        stamp: Kafka's time, where the order is one of times.
        values: Columns that it tells, without those that it leaves as they are.
        keeps: Names of those.
        is_delete: Whether it takes the row away.
    """

    key: Any
    partition: int
    offset: int
    order: Any
    time: Any
    values: dict[str, Any] = field(hash=False, default_factory=dict)
    keeps: frozenset[str] = frozenset()
    is_delete: bool = False
    stamp: Any = None

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset


@dataclass
class Row:
    """A row of the history."""

    valid_from: Any
    valid_to: Any
    values: dict[str, Any]
    is_delete: bool
    own: Any = None


def history(events: Iterable[Event], track: Sequence[str] = ()) -> dict[tuple[Any, int, int], Row]:
    """Return the rows of a history by key and place."""
    by_key: dict[Any, dict[tuple[int, int], Event]] = defaultdict(dict)
    for event in events:
        by_key[event.key][event.place] = event
    rows: dict[tuple[Any, int, int], Row] = {}
    for key, of_key in by_key.items():
        rows |= {(key, *place): row for place, row in _of_key(list(of_key.values()), track).items()}
    return rows


def assert_tiles(rows: Mapping[tuple[Any, int, int], Row]) -> None:
    """Assert that a key's versions follow each other, with a gap only where the key was deleted."""
    by_key: dict[Any, list[Row]] = defaultdict(list)
    for (key, *_), row in rows.items():
        by_key[key].append(row)
    for of_key in by_key.values():
        seen = [row for row in of_key if row.valid_to is None or row.valid_from < row.valid_to]
        seen.sort(key=lambda row: row.valid_from)
        assert [row.valid_to is None for row in seen[:-1]] == [False] * len(seen[:-1])
        deleted = {row.valid_from for row in of_key if row.is_delete}
        for row, following in zip_longest(seen, seen[1:]):
            begins = following.valid_from if following else None
            assert row.valid_to == begins or row.valid_to in deleted
            assert begins is None or row.valid_to <= begins


def _of_key(events: list[Event], track: Sequence[str]) -> dict[tuple[int, int], Row]:
    placed = []
    for event in events:
        order, time = event.order, event.time
        if event.is_delete and order is None:
            before = [e for e in events if e.partition == event.partition and e.offset < event.offset]
            reported = [e for e in before if e.order is not None]
            last = max(reported, key=lambda e: (e.order, e.offset), default=None)
            if last is not None and last.is_delete:
                continue
            if last is not None:
                order, time = last.order, event.time if event.time is not None else last.time
        placed.append((order, *event.place, time, event))
    # With nothing before it in its partition, a delete without an order is older than all the rest.
    placed.sort(key=lambda element: ((0,) if element[0] is None else (1, element[0]), *element[1:3]))
    times: list[Any] = []
    for order, _, _, time, _ in placed:
        before = [moment for moment in times if moment is not None]
        times.append(None if order is None else max([*before, time]))
    for number, (_, _, _, _, element) in enumerate(placed):
        following = [time for time in times[number + 1 : number + 2] if time is not None]
        if element.order is None and element.stamp is not None:
            times[number] = max([min([element.stamp, *following]), *([] if times[number] is None else [times[number]])])
        elif times[number] is None:
            times[number] = following[0] if following else 0
    rows: dict[tuple[int, int], Row] = {}
    known: dict[str, Any] = {}
    began: Any = None
    open_: Row | None = None
    for now, (_, _, _, _, element) in zip(times, placed, strict=True):
        values = {name: known.get(name) if name in element.keeps else value for name, value in
                  {**dict.fromkeys(element.keeps), **element.values}.items()}  # fmt: skip
        row = rows[element.place] = Row(now, now, values, element.is_delete, now)
        if element.is_delete:
            if open_ is not None:
                open_.valid_to = now
            open_ = None
            known = {}
            continue
        known = {**known, **values}
        if open_ is None:
            began = now
        elif all(values[name] == open_.values[name] for name in track or values):
            # The run goes on: its last event is the version.
            open_.valid_from = open_.valid_to = open_.own
        else:
            open_.valid_to = began = now
        row.valid_from, row.valid_to, open_ = began, None, row
    return rows
