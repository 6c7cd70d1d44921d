"""Which due topics share a run."""

import json
import re
from dataclasses import replace

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.common.offsets import Position, TopicIdentity, Watermarks
from kafka_lake.orchestration.checks import FRESHNESS
from kafka_lake.orchestration.keys import SHARED_TAG, TOPIC_TAG, member_tag, pool_name, table_key
from kafka_lake.orchestration.runs import SETTINGS_TAG, WORK_TAG, settings_fingerprint
from kafka_lake.orchestration.sensors.requests import (
    FAR_BEHIND,
    Due,
    Pace,
    Sharing,
    Table,
    fingerprint,
    groups,
    request,
    run_checks,
    work_of,
)
from kafka_lake.runtime.commit import CHECKS
from kafka_lake.spec.topic_table import TopicTable

SPEC = TopicTable("pizzas", "pizza", "orders")
SHARING = Sharing(places=3)


def due(count: int, offsets: int = 10) -> list[Due]:
    return [Due(f"t{number:02}", offsets) for number in range(count)]


def test_few_due_topics_share_one_run():
    assert groups(due(4), 0, 3) == [["t00", "t01", "t02", "t03"]]


def test_many_due_topics_fill_all_places_but_one():
    found = groups(due(50), 0, 3)
    assert [len(group) for group in found] == [25, 25]
    assert sorted(name for group in found for name in group) == [topic.name for topic in due(50)]


@pytest.mark.parametrize(("in_flight", "runs"), [(1, 1), (2, 1), (3, 0), (4, 0)])
def test_runs_in_flight_leave_fewer_places(in_flight, runs):
    assert len(groups(due(50), in_flight, 3)) == runs


def test_one_place_serves_all_topics():
    assert groups(due(5), 0, 1) == [["t00", "t01", "t02", "t03", "t04"]]


def test_pending_records_are_dealt_evenly():
    found = groups([*due(8), Due("large", 900_000), Due("larger", 1_000_000)], 0, 3)
    assert [len(group) for group in found] == [5, 5]
    assert [{"large", "larger"} & set(group) for group in found] == [{"large"}, {"larger"}]


def test_topics_beyond_the_limit_of_a_run_wait():
    assert len(groups(due(20, FAR_BEHIND), 2, 3)[0]) == 5


def test_topic_far_behind_shares_no_run():
    assert Due("t", FAR_BEHIND).shares
    assert not Due("t", FAR_BEHIND + 1).shares
    assert not Due("t", 1, alone=True).shares
    assert not Due("t", 1, failed=True).shares


@given(st.lists(st.integers(0, FAR_BEHIND), max_size=60), st.integers(0, 9), st.integers(1, 9))
def test_no_topic_is_in_two_runs_and_no_run_is_empty(pending, in_flight, places):
    topics = [Due(f"t{number}", offsets) for number, offsets in enumerate(pending)]
    found = groups(topics, in_flight, places)
    names = [name for group in found for name in group]
    assert len(names) == len(set(names))
    assert all(found)
    assert in_flight + len(found) <= max(places, in_flight)
    offsets = {topic.name: topic.offsets for topic in topics}
    assert all(sum(offsets[name] for name in group) <= 5 * FAR_BEHIND for group in found)
    assert bool(found) == (bool(topics) and in_flight < places)


@pytest.mark.parametrize(
    ("spec", "sharing", "pools", "alone"),
    [
        (SPEC, SHARING, ("table_of_another",), False),
        (SPEC, replace(SHARING, continuous=frozenset([table_key(SPEC)])), (), True),
        (replace(SPEC, transform="shop:loud"), SHARING, (), True),
        (replace(SPEC, topics=("pizzas", "pasta")), SHARING, (), True),
        (SPEC, SHARING, (pool_name(SPEC),), True),
    ],
)
def test_topic_that_could_hold_others_up_has_its_own_run(spec, sharing, pools, alone):
    assert sharing.runs_alone(spec, pools) is alone


ME = TopicIdentity("c", "t", "pizzas")
NOW = Watermarks(ME, {0: 0, 1: 0, 2: 0}, {0: 5, 1: 5, 2: 5})
OTHER = replace(SPEC, topic="pasta", table="pasta")


def test_work_is_identified_by_topic_position_and_end():
    at, later = Position(ME, NOW.low), Position(ME, {**NOW.low, 0: 2})
    works = [work_of(SPEC, position, NOW, ()) for position in (None, at, later)]
    works.append(work_of(SPEC, None, replace(NOW, end={**NOW.end, 1: 6}), ()))
    prints = {*(work.fingerprint for work in works), fingerprint(works[:1]), fingerprint(works[:2])}
    prints.add(fingerprint([work_of(OTHER, None, NOW, ())]))
    assert len(prints) == 7
    assert all(re.fullmatch("[0-9a-f]{16}", found) for found in (*prints, settings_fingerprint(SPEC)))


def test_run_of_two_topics_names_both():
    small = Watermarks(replace(ME, topic="pasta"), {0: 0}, {0: 5})
    tables = [Table([work_of(spec, None, now, ())], ()) for spec, now in ((SPEC, NOW), (OTHER, small))]
    made = request(tables, Pace(5.0, 60.0), "0123", attempt=2, shared=True)
    assert made.run_key == "2 topics:0123#2"
    assert made.asset_selection == [table_key(SPEC), table_key(OTHER)]
    assert made.asset_check_keys == [*run_checks(SPEC), *run_checks(OTHER)]
    config = {"catch_up_for": 60.0, "poll_every": 5.0, "topics": 2}
    assert made.run_config == {"ops": {"pizza__orders": {"config": config}, "pizza__pasta": {"config": config}}}
    settings = {"pizzas": settings_fingerprint(SPEC), "pasta": settings_fingerprint(OTHER)}
    assert json.loads(made.tags[SETTINGS_TAG]) == settings
    assert made.tags == {
        TOPIC_TAG: "pizzas [0…2], pasta [0]",
        member_tag("pizzas"): "pizzas",
        member_tag("pasta"): "pasta",
        SHARED_TAG: "",
        WORK_TAG: "0123",
        SETTINGS_TAG: made.tags[SETTINGS_TAG],
    }


def test_run_of_one_topic_has_its_range_of_partitions():
    table = Table([work_of(SPEC, None, NOW, ["1", "7"])], ["1", "7"])
    made = request([table], Pace(5.0), "0123", attempt=0, shared=False)
    assert made.run_key == "pizzas:0123#0"
    assert made.tags["dagster/asset_partition_range_start"] == "1", "Dagster has it before the new one"
    assert made.tags["dagster/asset_partition_range_end"] == "2"
    assert made.run_config == {"ops": {"pizza__orders": {"config": {"catch_up_for": 0.0, "poll_every": 5.0}}}}
    assert SHARED_TAG not in made.tags


@pytest.mark.parametrize(("max_age", "more"), [(None, []), ("1 h", [FRESHNESS])])
def test_run_evaluates_freshness_of_tables_with_a_limit(max_age, more):
    spec = replace(SPEC, max_age=max_age)
    assert run_checks(spec) == [dg.AssetCheckKey(table_key(SPEC), name) for name in (*CHECKS, *more)]
