"""Which of two truncates counts, and how one is remembered; what is older than it, Spark decides."""

import pytest

from kafka_lake.writers.upsert.keys import Keys
from kafka_lake.writers.upsert.truncates import Emptied, Truncate, newer_of

KEYS = Keys(metadata="_kafka", columns=("id",), order_by=(), has_envelope=True, topic_id="today")


def at(*order: int, topic: str | None = "today", partition: int = 0, offset: int = 7) -> Truncate:
    return Truncate(order, topic, partition, offset)


@pytest.mark.parametrize("known", [at(1, 2), at(), at(1, topic=None), at(2**63 - 1, partition=3)])
def test_it_is_remembered_as_it_is(known: Truncate) -> None:
    assert Truncate.from_json(known.to_json()) == known


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
def test_the_newer_one_counts_by_the_order_of_changes(new: Truncate, known: Truncate, newer: str) -> None:
    expected = Emptied(new, is_new=True) if newer == "new" else Emptied(known, is_new=False)
    assert newer_of(new, known, KEYS) == expected


def test_one_alone_counts() -> None:
    assert newer_of(None, None, KEYS) is None
    assert newer_of(at(1), None, KEYS) == Emptied(at(1), is_new=True)
    assert newer_of(None, at(1), KEYS) == Emptied(at(1), is_new=False)


def test_the_audit_tells_what_is_wrong() -> None:
    assert Emptied(at(1), is_new=True, changes=2, rows=3).problems == ()
    said = Emptied(at(1), is_new=True, left=2, lost=1).problems
    assert said == ("2 rows are older than the truncate", "1 rows that are newer than the truncate are gone")
