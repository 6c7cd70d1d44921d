"""Plans tile the backlog exactly, never go back, and refuse what Kafka lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.errors import ConfigurationError, DataLossError, TopicReplacedError
from kafka_lake.ingest.plan import backlog, chunk, plan, start_offsets, start_timestamp_ms
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.offsets import OffsetRange, Position, TopicIdentity, Watermarks

ME = TopicIdentity("cluster-1", "topic-1", "pizzas")
SPEC = TopicTable("pizzas", "pizza", "orders")

lengths = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 60)), min_size=1, max_size=8)
limits = st.integers(1, 200)


def ranges_of(drawn):
    return tuple(OffsetRange(p, start, start + length) for p, (start, length) in enumerate(drawn))


@st.composite
def situations(draw):
    """A position and watermarks that continue it, some partitions new."""
    now, before = {}, {}
    low = {}
    for p in range(draw(st.integers(1, 6))):
        low[p] = draw(st.integers(0, 50))
        at = low[p] + draw(st.integers(0, 50))
        now[p] = at + draw(st.integers(0, 50))
        if draw(st.booleans()):
            before[p] = at
    return Position(ME, before), Watermarks(ME, low, now)


@given(lengths, limits)
def test_a_chunk_is_a_bounded_prefix_of_each_range(drawn, limit):
    ranges = ranges_of(drawn)
    whole = {r.partition: r for r in ranges}
    taken = chunk(ranges, limit)
    assert sum(len(r) for r in taken) == min(limit, sum(len(r) for r in ranges))
    assert all(len(r) for r in taken)
    assert list(taken) == sorted(taken)
    assert len({r.partition for r in taken}) == len(taken)
    for each in taken:
        assert each.start == whole[each.partition].start
        assert each.end <= whole[each.partition].end


@given(lengths, limits)
def test_a_chunk_is_fair(drawn, limit):
    """No partition waits with more taken from another than from itself, but for rounding."""
    ranges = ranges_of(drawn)
    taken = {r.partition: len(r) for r in chunk(ranges, limit)}
    for r in ranges:
        if len(r) > taken.get(r.partition, 0):
            assert taken.get(r.partition, 0) >= max(taken.values(), default=0) - 1


@given(situations(), limits)
def test_plans_tile_the_backlog_exactly(situation, limit):
    position, now = situation
    due = {(r.partition, o) for r in backlog(position, now, {}) for o in range(r.start, r.end)}
    seen: list[tuple[int, int]] = []
    while (todo := plan(position, now, {}, limit)) is not None:
        assert 0 < todo.records_at_most <= limit
        assert set(todo.after.offsets) == set(now.end), "every partition has its offset in the position"
        assert all(todo.after.offsets[p] >= o for p, o in position.offsets.items()), "never goes back"
        seen += [(r.partition, o) for r in todo.ranges for o in range(r.start, r.end)]
        assert todo.remaining == len(due) - len(seen)
        position = todo.after
    assert len(seen) == len(set(seen))
    assert set(seen) == due


@given(situations(), limits, st.sets(st.integers(0, 6)))
def test_a_subset_touches_only_its_partitions(situation, limit, subset):
    position, now = situation
    todo = plan(position, now, {}, limit, subset)
    whole = {r.partition: r for r in backlog(position, now, {})}
    if todo is None:
        assert not any(len(whole[p]) for p in subset & set(whole))
        return
    assert {r.partition for r in todo.ranges} <= subset
    assert set(todo.after.offsets) == set(now.end)
    for p in set(whole) - subset:
        assert todo.after.offsets[p] == whole[p].start


@given(situations(), limits)
def test_a_first_run_starts_where_it_is_told(situation, limit):
    _, now = situation
    starts = start_offsets(SPEC, None, now)
    assert starts == now.low
    todo = plan(None, now, starts, limit)
    assert (todo is None) == (now.low == now.end)
    if todo:
        assert all(r.start == now.low[r.partition] for r in todo.ranges)
        assert todo.after.identity == ME


def test_a_new_partition_starts_at_its_low_watermark():
    found = backlog(Position(ME, {0: 5}), Watermarks(ME, {0: 0, 1: 3}, {0: 9, 1: 7}), {})
    assert found == (OffsetRange(0, 5, 9), OffsetRange(1, 3, 7))


def test_retention_that_overtook_is_named():
    with pytest.raises(DataLossError, match=r"pizzas.*partition 1 lost offsets 5 to 7 to retention"):
        plan(Position(ME, {0: 5, 1: 5}), Watermarks(ME, {0: 5, 1: 8}, {0: 9, 1: 9}), {}, 10)


def test_a_position_at_the_low_watermark_lost_nothing():
    assert backlog(Position(ME, {0: 5}), Watermarks(ME, {0: 5}, {0: 5}), {}) == (OffsetRange(0, 5, 5),)


def test_an_end_before_the_position_is_named():
    with pytest.raises(DataLossError, match="partition 0 ends at 4, before the table's position 5"):
        plan(Position(ME, {0: 5}), Watermarks(ME, {0: 0}, {0: 4}), {}, 10)


def test_a_partition_that_is_gone_is_named():
    with pytest.raises(DataLossError, match="partition 2 is gone, the table's position in it was 7"):
        plan(Position(ME, {0: 5, 2: 7}), Watermarks(ME, {0: 0}, {0: 9}), {}, 10)


def test_all_losses_are_named_at_once_even_outside_the_subset():
    with pytest.raises(DataLossError, match=r"partition 0 lost offsets 1 to 1 .*partition 1 ends at 3"):
        plan(Position(ME, {0: 1, 1: 5}), Watermarks(ME, {0: 2, 1: 0}, {0: 9, 1: 3}), {}, 10, {0})


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (TopicIdentity("cluster-1", "topic-2", "pizzas"), "topic id"),
        (TopicIdentity("cluster-2", "topic-1", "pizzas"), "cluster id"),
        (TopicIdentity("cluster-1", "topic-1", "pasta"), "name"),
        # Who knows no cluster id hasn't got another one: it is the topic's that differs.
        (TopicIdentity("", "topic-2", "pizzas"), "topic id"),
    ],
)
def test_another_topic_is_refused(now, what):
    with pytest.raises(TopicReplacedError, match=f"its {what} differs.*0: 5"):
        plan(Position(ME, {0: 5}), Watermarks(now, {0: 0}, {0: 9}), {}, 10)


def test_an_id_that_one_side_lacks_is_not_compared():
    assert plan(Position(ME, {0: 5}), Watermarks(TopicIdentity("", "", "pizzas"), {0: 0}, {0: 9}), {}, 10)


class Clock:
    """Stands for the cluster: the first offset at or after one moment."""

    def __init__(self, found):
        self.found = found

    def offsets_at(self, topic, partitions, timestamp_ms):
        assert (topic, timestamp_ms) == ("pizzas", 1767225600000)
        return {p: self.found[p] for p in partitions}


def test_starts():
    now = Watermarks(ME, {0: 2, 1: 4, 2: 5}, {0: 9, 1: 8, 2: 7})
    at = TopicTable("pizzas", "pizza", "orders", start="2026-01-01T00:00:00Z")
    assert start_offsets(TopicTable("pizzas", "p", "o", start="latest"), None, now) == {0: 9, 1: 8, 2: 7}
    assert start_offsets(at, Clock({0: 3, 1: None, 2: 1}), now) == {0: 3, 1: 8, 2: 5}
    assert start_offsets(at, Clock({0: 99, 1: 4, 2: 7}), now) == {0: 9, 1: 4, 2: 7}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01T00:00:00Z", 1767225600000),
        ("2026-01-01T00:00:00", 1767225600000),
        ("2026-01-01T01:00:00+01:00", 1767225600000),
        ("2026-01-01", 1767225600000),
    ],
)
def test_start_times(text, expected):
    assert start_timestamp_ms(text) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "Latest"])
def test_no_start_time(text):
    with pytest.raises(ConfigurationError, match="ISO 8601"):
        start_timestamp_ms(text)
