"""How long records waited before readers could see them."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.ingest.report import Commit, RunReport, Waited, waited
from kafka_lake.kafka.offsets import Position, TopicIdentity, Watermarks

ME = TopicIdentity("c", "t", "pizzas")
ages = st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)).map(lambda pair: Waited(max(pair), min(pair)))


def staged(oldest_ms: int | None, newest_ms: int | None) -> Any:
    return SimpleNamespace(oldest_ms=oldest_ms, newest_ms=newest_ms)


def commit(at: Waited | None) -> Commit:
    return Commit(1, (), Position(ME, {}), 0, 0, 0, 0, 0, 0, {}, (), waited=at)


def report(*commits: Commit) -> RunReport:
    return RunReport("pizzas", "lake.pizzas", "run", Watermarks(ME, {}, {}), None, commits, 1.0)


def test_ages_count_from_the_records_time_to_the_publication():
    assert waited(staged(90_000, 99_500), 100.0) == Waited(10.0, 0.5)


def test_records_without_a_time_have_no_age():
    assert waited(staged(None, None), 100.0) is None


def test_a_record_from_the_future_is_new():
    assert waited(staged(99_000, 105_000), 100.0) == Waited(1.0, 0.0)


@given(st.lists(st.none() | ages))
def test_a_run_tells_of_the_record_that_waited_longest_and_of_the_one_that_waited_least(every):
    found = report(*map(commit, every)).waited()
    timed = [each for each in every if each]
    if not timed:
        assert found is None
    else:
        assert found == Waited(max(w.oldest for w in timed), min(w.newest for w in timed))
