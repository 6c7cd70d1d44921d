"""Where a snapshot of the source begins and ends, whatever is cut where; and when the rows go that it lacks."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.errors import KafkaLakeError
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.upsert.cutoff import AppliedCutoff, Cutoff
from kafka_lake.writers.upsert.source_snapshots import (
    NO_SNAPSHOT,
    SnapshotMarker,
    SnapshotState,
    check_snapshot_deletes,
    due_snapshot,
    follow_snapshots,
    with_dead_letters,
)
from kafka_lake.writers.upsert.source_snapshots import (
    UNKNOWN_SNAPSHOT as UNKNOWN,
)
from kafka_lake.writers.upsert.source_snapshots import (
    CompleteSnapshot as Complete,
)
from kafka_lake.writers.upsert.source_snapshots import (
    OpenSnapshot as Open,
)
from kafka_lake.writers.upsert.source_snapshots import (
    SnapshotProgress as Progress,
)


def at(offset: int, position: int = 10) -> Cutoff:
    return Cutoff((position, 0), "id", 0, offset, is_snapshot=True)


def walked(records: str, before: Open = NO_SNAPSHOT, start: int = 0) -> Progress:
    """Go through a batch: f and l begin and end a snapshot, r is another record; L ends one at another position."""
    kinds = {"f": "first", "l": "last_in_data_collection", "L": "last"}
    marks = [
        SnapshotMarker(kinds[record], at(offset, 20 if record == "L" else 10))
        for offset, record in enumerate(records, start)
        if record in kinds
    ]
    return follow_snapshots(before, marks)


@pytest.mark.parametrize(
    ("records", "before", "reading", "ended", "left"),
    [
        ("rrr", NO_SNAPSHOT, NO_SNAPSHOT, None, ()),
        ("rrfrrl", NO_SNAPSHOT, NO_SNAPSHOT, at(2), ()),
        ("rfrr", NO_SNAPSHOT, Open(at(1)), None, ()),
        ("rrl", Open(at(77)), NO_SNAPSHOT, at(77), ()),
        ("rr", Open(at(77)), Open(at(77)), None, ()),
        ("", Open(at(77)), Open(at(77)), None, ()),
        # A snapshot that broke off is taken from its beginning once more.
        ("frrfrl", NO_SNAPSHOT, NO_SNAPSHOT, at(3), ()),
        ("frl", Open(at(77)), NO_SNAPSHOT, at(0), ()),
        # Two of them.
        ("flfrl", NO_SNAPSHOT, NO_SNAPSHOT, at(2), ()),
        ("flfr", NO_SNAPSHOT, Open(at(2)), at(0), ()),
        # A table of one row has the end alone, also after a snapshot that broke off.
        ("rlr", NO_SNAPSHOT, NO_SNAPSHOT, at(1), ()),
        ("frrL", NO_SNAPSHOT, NO_SNAPSHOT, at(3, 20), ()),
        # Its beginning isn't known.
        ("rrl", UNKNOWN, NO_SNAPSHOT, None, (2,)),
        ("rfl", UNKNOWN, NO_SNAPSHOT, at(1), ()),
    ],
)
def test_what_a_batch_says_of_snapshots(
    records: str, before: Open, reading: Open, ended: Cutoff | None, left: tuple[int, ...]
) -> None:
    assert walked(records, before) == Progress(reading, None if ended is None else Complete(ended), left)


def test_newest_snapshot_that_has_ended_is_known_with_its_dead_letters() -> None:
    found = walked("flfrlflfr")
    assert found.complete == Complete(at(5))
    assert with_dead_letters(found, 1).complete == Complete(at(5), dead_letters=1)


@given(
    st.lists(st.sampled_from(["r", "l", "fl", "frl", "rrl", "frr", "f", "frL"]), max_size=8).map("".join),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_batches_may_be_cut_anywhere(records: str, cuts: list[int]) -> None:
    whole = walked(records)
    reading, last, left = NO_SNAPSHOT, None, list[int]()
    for start, end in pairwise([0, *sorted(cut for cut in cuts if cut < len(records)), len(records)]):
        found = walked(records[start:end], reading, start)
        reading, last = found.reading, found.complete or last
        left += found.partial
    assert (reading, last, tuple(left)) == (whole.reading, whole.complete, whole.partial)


@pytest.mark.parametrize(
    ("found", "counted"),
    [
        (Progress(Open(at(1), dead_letters=1)), Progress(Open(at(1), dead_letters=3))),
        (
            Progress(NO_SNAPSHOT, Complete(at(1), 1)),
            Progress(UNKNOWN, Complete(at(1), 3)),
        ),
        # They may be the first rows of a snapshot.
        (Progress(NO_SNAPSHOT), Progress(UNKNOWN)),
    ],
)
def test_each_dead_letter_may_be_of_a_snapshot(found: Progress, counted: Progress) -> None:
    assert with_dead_letters(found, 2) == counted
    assert with_dead_letters(found, 0) == found


NEW, OLD = Complete(at(5)), Complete(at(1), until=9)


@pytest.mark.parametrize(
    ("ended", "waiting", "position", "now", "waits"),
    [
        (NEW, None, 20, NEW, None),
        (NEW, None, 19, None, Complete(at(5), until=20)),
        (NEW, OLD, 20, NEW, None),
        (NEW, OLD, 19, None, Complete(at(5), until=20)),
        (None, OLD, 8, None, OLD),
        (None, OLD, 9, OLD, None),
        (None, None, 9, None, None),
    ],
)
def test_rows_go_once_the_topic_is_read_up_to_where_it_ended(
    ended: Complete | None,
    waiting: Complete | None,
    position: int,
    now: Complete | None,
    waits: Complete | None,
) -> None:
    assert due_snapshot(ended, waiting, position, end=20) == (now, waits)


@pytest.mark.parametrize("reading", [NO_SNAPSHOT, UNKNOWN, Open(at(5), dead_letters=3)])
@pytest.mark.parametrize("waiting", [None, Complete(at(3), dead_letters=1, until=8)])
def test_it_is_remembered_as_it_is(reading: Open, waiting: Complete | None) -> None:
    known = SnapshotState(reading, waiting)
    assert SnapshotState.from_json(known.to_json()) == known


def spec(limit: Any) -> TopicTable:
    return TopicTable("t", "n", "t", write="upsert", envelope="debezium", snapshot="replace", max_removed=limit)


@pytest.mark.parametrize(
    ("limit", "rows", "older", "refused"),
    [
        ("10%", 100, 10, False),
        ("10%", 100, 11, True),
        ("10%", 9, 1, True),
        ("10%", 0, 0, False),
        ("0%", 9, 0, False),
        (3, 4, 3, False),
        (3, 1000, 4, True),
        (None, 4, 4, False),
    ],
)
def test_no_more_rows_go_than_the_limit(limit: Any, rows: int, older: int, refused: bool) -> None:
    if not refused:
        check_snapshot_deletes(spec(limit), Complete(at(7)), rows, older)
        return
    with pytest.raises(KafkaLakeError, match=rf"offset 7 lacks {older} of {rows} rows, and the limit .*: {limit}"):
        check_snapshot_deletes(spec(limit), Complete(at(7)), rows, older)


def test_no_rows_go_if_a_record_was_a_dead_letter() -> None:
    with pytest.raises(KafkaLakeError, match="lacks 1 of 100 rows, and 2 records of its commits are dead letters"):
        check_snapshot_deletes(spec(None), Complete(at(7), dead_letters=2), 100, 1)
    check_snapshot_deletes(spec(None), Complete(at(7), dead_letters=2), 100, 0)


def test_the_audit_and_the_figures_tell_it_from_a_truncate() -> None:
    found = AppliedCutoff(at(1), is_new=True, changes=2, rows=3, left=1)
    assert found.problems == ("1 rows are older than the snapshot",)
    assert found.facts == {"rows_not_in_snapshot": 3, "changes_before_snapshot": 2}


def test_what_has_the_position_of_the_snapshot_is_of_it() -> None:
    keys: Any = SimpleNamespace(kafka_order=lambda alias: ("", "", ""), has_envelope=True, topic_id="id")
    assert at(1, 77).is_older(keys, "t") == "coalesce(t._change.`order` < CAST(array(77, 0) AS ARRAY<BIGINT>), false)"
