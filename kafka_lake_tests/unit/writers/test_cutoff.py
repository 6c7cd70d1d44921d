"""Which of two truncates counts, and how one is remembered; what is older than it, Spark decides."""

import pytest

from kafka_lake.writers.upsert.cutoff import AppliedCutoff, Cutoff, newer_cutoff
from kafka_lake.writers.upsert.keys import Keys

KEYS = Keys(columns=("id",), order_by=(), has_envelope=True, topic_id="today")


def at(*order: int, topic: str | None = "today", partition: int = 0, offset: int = 7) -> Cutoff:
    return Cutoff(order, topic, partition, offset)


@pytest.mark.parametrize("known", [at(1, 2), at(), at(1, topic=None), at(2**63 - 1, partition=3)])
def test_it_is_remembered_as_it_is(known: Cutoff) -> None:
    assert Cutoff.from_json(known.to_json()) == known


@pytest.mark.parametrize(
    ("new", "known", "newer"),
    [
        (at(9, 1, partition=1, offset=0), at(8, 2), "new"),
        (at(8, 1), at(8, 2), "known"),
        (at(8, 2), at(8, 2), "known"),
        (at(8, 2, offset=8), at(8, 2), "new"),
        (at(8, 2, topic="today"), at(8, 2, topic="before", offset=99), "new"),
        (at(offset=8), at(offset=7), "new"),
        (at(offset=8), at(topic="before", offset=99), "new"),
        (at(offset=6), at(offset=7), "known"),
    ],
)
def test_the_newer_one_counts_by_the_order_of_changes(new: Cutoff, known: Cutoff, newer: str) -> None:
    expected = AppliedCutoff(new, is_new=True) if newer == "new" else AppliedCutoff(known, is_new=False)
    assert newer_cutoff(new, known, KEYS) == expected


def test_one_alone_counts() -> None:
    assert newer_cutoff(None, None, KEYS) is None
    assert newer_cutoff(at(1), None, KEYS) == AppliedCutoff(at(1), is_new=True)
    assert newer_cutoff(None, at(1), KEYS) == AppliedCutoff(at(1), is_new=False)


def test_the_audit_tells_what_is_wrong() -> None:
    assert AppliedCutoff(at(1), is_new=True, changes=2, rows=3).problems == ()
    said = AppliedCutoff(at(1), is_new=True, left=2, lost=1).problems
    assert said == ("2 rows are older than the truncate", "1 rows that are newer than the truncate are gone")
