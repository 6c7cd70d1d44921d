"""Positions as text, lag, ranges."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.common.offsets import (
    OffsetRange,
    Position,
    TopicIdentity,
    Watermarks,
    lag,
    least,
    positions_from_json,
    positions_to_json,
)

ME = TopicIdentity("c", "t", "pizzas")

positions = st.builds(
    Position,
    st.builds(TopicIdentity, st.text(), st.text(), st.text()),
    st.dictionaries(st.integers(0, 10_000), st.integers(0, 2**63 - 1)),
    st.dictionaries(st.integers(0, 10_000), st.integers(0, 2**31 - 1)),
)


@given(positions)
def test_a_position_survives_its_text(position):
    assert Position.from_json(position.to_json()) == position


@given(positions)
def test_equal_positions_have_equal_text(position):
    shuffled = Position(
        position.identity, dict(reversed(position.offsets.items())), dict(reversed(position.epochs.items()))
    )
    assert shuffled.to_json() == position.to_json()


def test_positions_of_one_and_of_several_topics_have_one_format():
    text = '{"pizzas":{"cluster_id":"c","topic_id":"t","offsets":{"0":5}}}'
    one, other = Position(ME, {0: 5}), Position(TopicIdentity("c", "u", "drinks"), {0: 7}, {0: 2})
    assert Position.from_json(text) == one
    assert one.to_json() == positions_to_json([one]) == text
    both = positions_to_json([one, other])
    assert both == positions_to_json([other, one])
    assert positions_from_json(both) == {"pizzas": one, "drinks": other}
    assert json.loads(both) == {**json.loads(text), **json.loads(other.to_json())}
    with pytest.raises(ValueError):
        Position.from_json(both)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "7",
        "{}",
        '{"cluster_id":"c","topic_id":"t","offsets":{"0":5}}',
        '{"pizzas":[]}',
        '{"pizzas":{"cluster_id":"c","topic_id":"t"}}',
        '{"pizzas":{"cluster_id":"c","offsets":{}}}',
        '{"pizzas":{"cluster_id":"c","topic_id":"t","offsets":[1]}}',
        '{"pizzas":{"cluster_id":"c","topic_id":"t","offsets":{"0":null}}}',
        '{"pizzas":{"cluster_id":"c","topic_id":"t","offsets":{},"epochs":[1]}}',
        '{"pizzas":{"cluster_id":"c","topic_id":"t","offsets":{"zero":1}}}',
        '{"pizzas":{"cluster_id":"c","topic_id":"t","offsets":{"0":1}}',
    ],
)
def test_a_malformed_position_is_refused(text):
    with pytest.raises(ValueError):
        Position.from_json(text)


def test_advanced_moves_the_consumed_partitions_alone():
    before = Position(ME, {0: 1, 1: 2})
    assert before.advanced((OffsetRange(1, 2, 9), OffsetRange(2, 0, 4))).offsets == {0: 1, 1: 9, 2: 4}
    assert Position(ME, {0: 1}, {0: 7}).advanced((OffsetRange(0, 1, 2),)).epochs == {0: 7}
    assert before.offsets == {0: 1, 1: 2}


def test_all_tables_have_nothing_of_a_partition_that_one_lacks() -> None:
    one, other, older = (Position(TopicIdentity("c", "t", "x"), its) for its in ({0: 5, 1: 9}, {0: 7}, {0: 6, 1: 2}))
    assert least([one, older]) == Position(one.identity, {0: 5, 1: 2})
    for both in ([one, other], [other, one]):
        assert least(both) == Position(one.identity, {0: 5})
    assert least([one, Position(TopicIdentity("c", "t2", "x"), {0: 1})]) is None


def test_lag():
    now = Watermarks(ME, {0: 2, 1: 0, 10: 3}, {0: 9, 1: 4, 10: 3})
    assert lag(None, now) == {0: 7, 1: 4, 10: 0}
    assert lag(Position(ME, {0: 5, 1: 9}), now) == {0: 4, 1: 0, 10: 0}
    assert list(lag(None, now)) == [0, 1, 10]


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (4, 3), (-2, -1)])
def test_no_offset_range(start, end):
    with pytest.raises(ValueError, match="partition 7"):
        OffsetRange(7, start, end)


def test_range_length():
    assert [len(OffsetRange(0, 3, 3)), len(OffsetRange(0, 3, 8))] == [0, 5]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (ME, True),
        (TopicIdentity("", "", "pizzas"), True),
        (TopicIdentity("c", "", "pizzas"), True),
        (TopicIdentity("d", "t", "pizzas"), False),
        (TopicIdentity("c", "u", "pizzas"), False),
        (TopicIdentity("c", "t", "pasta"), False),
    ],
)
def test_identity(other, same):
    assert ME.same_as(other) is same
    assert other.same_as(ME) is same
