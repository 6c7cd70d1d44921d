"""What a run tells: how long records waited, and what its reports add up to."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity, Watermarks
from kafka_lake.ingest.report import Figures, PartitionReport, Reached, RunReport, RunSoFar, waited
from kafka_lake.orchestration.reporting import _of_routes
from kafka_lake.orchestration.table_metadata import figures_metadata
from kafka_lake.runtime.commit import CHECKS, ColumnNote, Commit, Finding, PublishedNote, Waited
from kafka_lake.spec.topic_table import TopicTable

ME = TopicIdentity("c", "t", "pizzas")
ages = st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)).map(lambda pair: Waited(max(pair), min(pair)))


def staged(oldest_ms: int | None, newest_ms: int | None) -> Any:
    return SimpleNamespace(oldest_ms=oldest_ms, newest_ms=newest_ms)


def commit(at: Waited | None) -> Commit:
    return Commit(1, (), Position(ME, {}), 0, 0, 0, 0, 0, 0, {}, (), waited=at)


def report(*commits: Commit) -> RunReport:
    return RunReport("lake.pizzas", "run", {"pizzas": Reached(Watermarks(ME, {}, {}), None)}, commits, 1.0)


def test_ages_count_from_the_records_time_to_the_publication():
    assert waited(staged(90_000, 99_500), 100.0) == Waited(10.0, 0.5)


def test_records_without_a_time_have_no_age():
    assert waited(staged(None, None), 100.0) is None


def test_a_record_from_the_future_is_new():
    assert waited(staged(99_000, 105_000), 100.0) == Waited(1.0, 0.0)


@pytest.mark.slow
@given(st.lists(st.none() | ages))
def test_a_run_tells_of_the_record_that_waited_longest_and_of_the_one_that_waited_least(every):
    found = report(*map(commit, every)).waited()
    timed = [wait for wait in every if wait]
    if not timed:
        assert found is None
    else:
        assert found == Waited(max(w.oldest for w in timed), min(w.newest for w in timed))


def reported(check: str, number: int, notes: tuple[ColumnNote, ...] = (), problem: str = "") -> Finding:
    return Finding(check, (problem,) if problem else (), {"n": number, "text": str(number)}, notes)


ADDED = ColumnNote("later", "added", "", "boolean")
LEFT_OUT = ColumnNote("new", "not added", "", "int", "evolution is ignore_new")


def found(snapshot: int, at: float, *findings: Finding) -> Commit:
    return replace(commit(None), snapshot=snapshot, published_at=at, records=2, size=10, findings=findings)


@pytest.mark.parametrize("reports", [1, 2, 3])
def test_what_one_report_told_the_later_ones_tell_as_well(reports: int) -> None:
    commits = [
        found(7, 0.0, reported("schema_evolution", 1, (ADDED, LEFT_OUT)), reported("data_loss", 1, problem="lost")),
        found(8, 60.0, reported("schema_evolution", 2, (LEFT_OUT,)), reported("data_loss", 2)),
        found(9, 120.0, reported("schema_evolution", 3), reported("data_loss", 3)),
    ]
    parts = {1: [commits], 2: [commits[:1], commits[1:]], 3: [[item] for item in commits]}[reports]
    so_far = RunSoFar()
    for part in parts:
        so_far = so_far.plus(report(*part))
    evolution = next(f for f in so_far.findings if f.check == "schema_evolution")
    assert evolution.changes == (
        PublishedNote("later", "added", "", "boolean", "", "1970-01-01T00:00:00+00:00", "7"),
        PublishedNote("new", "not added", "", "int", "evolution is ignore_new", "1970-01-01T00:00:00+00:00", "7"),
    ), "what every commit says is told once, with the first one's time and snapshot"
    assert evolution.facts == {"n": 6, "text": "3"}
    loss = next(f for f in so_far.findings if f.check == "data_loss")
    assert (loss.passed, loss.problems) == (False, ("lost",))
    assert [f.check for f in so_far.findings] == list(CHECKS)
    assert (so_far.figures.commits, so_far.figures.records, so_far.figures.size) == (3, 6, 30)
    assert so_far.figures.seconds == reports


def test_records_that_were_decoded_singly_are_shown():
    both = Figures(decoded_singly=2).plus(Figures(decoded_singly=3))
    assert figures_metadata(both)["records_decoded_singly"] == 5
    assert "records_decoded_singly" not in figures_metadata(Figures())


def test_figures_of_a_part_without_records_leave_the_ages_as_they_are() -> None:
    old, none = Figures(waited=Waited(9.0, 1.0)), Figures()
    assert old.plus(none).waited == none.plus(old).waited == Waited(9.0, 1.0)
    assert old.plus(Figures(waited=Waited(5.0, 0.5))).waited == Waited(9.0, 0.5)


def test_report_of_two_topics_tells_each_partition_apart() -> None:
    other = TopicIdentity("c", "u", "drinks")
    first = replace(commit(None), ranges=(OffsetRange(0, 5, 9),), rows_by_partition={0: 4}, rows=4)
    second = replace(first, after=Position(other, {0: 3}), ranges=(OffsetRange(0, 1, 3),), rows_by_partition={0: 2})
    whole = RunReport("lake.both", "run")
    for its, end in ((first, 10), (second, 3)):
        identity, (consumed,) = its.after.identity, its.ranges
        reached = Reached(Watermarks(identity, {0: 0}, {0: end}), Position(identity, {0: consumed.end}))
        whole = whole.plus(RunReport("lake.both", "run", {its.topic: reached}, [its], 1.0))
    assert whole.partitions() == [
        PartitionReport("pizzas", 0, start=5, end=9, rows=4, lag=1),
        PartitionReport("drinks", 0, start=1, end=3, rows=2, lag=0),
    ]
    assert (whole.lags(), whole.seconds) == ({"pizzas": 1, "drinks": 0}, 2.0)


def test_the_page_of_a_topics_own_table_tells_what_others_got_in_a_narrow_table() -> None:
    orders = replace(commit(None), rows=1_200, dead_letters=3)
    clicks = replace(commit(None), rows=5, dead_letters=1)
    others = {("lake", "orders"): report(orders), ("lake", "events_click"): report(clicks)}
    known = TopicTable("events", table="orders")
    page = _of_routes(replace(report(commit(None)), others=others), (known,))["routes"].value
    assert page.splitlines() == [
        "| table | rows | dead letters |",
        "| --- | --- | --- |",
        "| `lake.orders` | 1,200 | 3 |",
        "| `lake.events_click` | 5 | 1 |",
        "",
        "No asset yet: `lake.events_click`. Run `kafka-lake topics refresh`.",
    ]
