"""Where a snapshot of the source begins and ends, whatever is cut where: by examples, and against a model."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.ingest.keyed.source_snapshots import UNKNOWN, Between, Ended, Mark, Reading, Walk, walk
from kafka_lake.ingest.keyed.truncates import Truncate

NONE = Reading()


def at(offset: int) -> Truncate:
    return Truncate((10, 0), "id", 0, offset, is_read=True)


def walked(records: str, before: Reading = NONE, start: int = 0) -> Walk:
    """Go through a batch: f and l begin and end a snapshot, r is among its rows, s is streamed."""
    marks, between = [], [Between()]
    for offset, record in enumerate(records, start):
        if record in "fl":
            marks.append(Mark({"f": "first", "l": "last_in_data_collection"}[record], at(offset)))
            between.append(Between())
        elif record == "r":
            between[-1] = Between(between[-1].streamed, offset)
        elif between[-1].streamed is None:
            between[-1] = Between(offset, between[-1].read)
    return walk(before, marks, between)


@pytest.mark.parametrize(
    ("records", "before", "reading", "ended", "unknown_at"),
    [
        ("sss", NONE, NONE, None, None),
        ("ssfrrl", NONE, NONE, 2, None),
        ("ssfrrlss", NONE, NONE, 2, None),
        ("sfrr", NONE, Reading(at(1)), None, None),
        ("rrl", Reading(at(77)), NONE, 77, None),
        ("rr", Reading(at(77)), Reading(at(77)), None, None),
        ("", Reading(at(77)), Reading(at(77)), None, None),
        # A snapshot that broke off is taken from its beginning once more.
        ("frrfrl", NONE, NONE, 3, None),
        ("frl", Reading(at(77)), NONE, 0, None),
        # A table of one row: its end alone; or its beginning, if other tables follow.
        ("sls", NONE, NONE, 1, None),
        ("fs", NONE, NONE, 0, None),
        ("s", Reading(at(77)), NONE, 77, None),
        # Two of them.
        ("flfrl", NONE, NONE, 2, None),
        # Its beginning isn't known.
        ("rrl", UNKNOWN, NONE, None, 2),
        ("l", UNKNOWN, NONE, None, 0),
        ("rr", NONE, UNKNOWN, None, None),
        ("srrl", NONE, NONE, None, 3),
        ("sfl", UNKNOWN, NONE, 1, None),
        ("sl", UNKNOWN, NONE, 1, None),
        ("srr", Reading(at(77)), UNKNOWN, 77, None),
    ],
)
def test_what_a_batch_says_of_snapshots(
    records: str, before: Reading, reading: Reading, ended: int | None, unknown_at: int | None
) -> None:
    found = walked(records, before)
    assert found == Walk(reading, None if ended is None else Ended(at(ended), 0), unknown_at)


@given(
    st.lists(st.sampled_from(["s", "ss", "l", "fl", "frl", "rrl", "frr", "f"]), max_size=8).map("".join),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_batches_may_be_cut_anywhere(records: str, cuts: list[int]) -> None:
    whole = walked(records)
    reading, last = NONE, None
    for start, end in pairwise([0, *sorted(cut for cut in cuts if cut < len(records)), len(records)]):
        found = walked(records[start:end], reading, start)
        reading, last = found.reading, found.ended or last
    assert (reading, last) == (whole.reading, whole.ended)


@pytest.mark.parametrize("reading", [NONE, UNKNOWN, Reading(at(5), dead_letters=3)])
def test_it_is_remembered_as_it_is(reading: Reading) -> None:
    assert Reading.from_json(reading.to_json()) == reading
