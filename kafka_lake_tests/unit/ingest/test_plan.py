"""Plans tile the backlog exactly, never go back, and refuse what Kafka lost."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.common.offsets import (
    Loss,
    OffsetRange,
    Position,
    TopicIdentity,
    Watermarks,
    losses_from_json,
    losses_to_json,
)
from kafka_lake.common.records import LastRecord
from kafka_lake.common.text import start_timestamp_ms
from kafka_lake.errors import ConfigurationError, DataLossError, TopicReplacedError
from kafka_lake.ingest.jobs.append import Append
from kafka_lake.ingest.plan import (
    backlog,
    is_time,
    loss_remedy,
    offsets_of,
    old_brokers_warning,
    opening,
    plan,
    refuse_adopted,
    refuse_other_log,
    replacement,
    resetting,
    start_offsets,
    with_other_leader,
)
from kafka_lake.runtime.plan import Plan, chunk, part, position_only
from kafka_lake.spec.topic_table import TopicTable

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
        else:
            low[p] = 0
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
    for planned in taken:
        assert planned.start == whole[planned.partition].start
        assert planned.end <= whole[planned.partition].end


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
    due = {(r.partition, o) for r in backlog(position, now, {}).ranges for o in range(r.start, r.end)}
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
    whole = {r.partition: r for r in backlog(position, now, {}).ranges}
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


def test_a_first_position_has_the_logs_leader_epochs():
    now = Watermarks(ME, {0: 0, 1: 2}, {0: 9, 1: 7}, {0: 4, 1: 6})
    found = backlog(None, now, {0: 0, 1: 3})
    assert found.before == Position(ME, {0: 0, 1: 3}, {0: 4, 1: 6})
    assert plan(None, now, {0: 0, 1: 3}, 100).after == Position(ME, {0: 9, 1: 7}, {0: 4, 1: 6})


def test_a_new_partition_is_read_from_its_beginning():
    found = backlog(Position(ME, {0: 5}), Watermarks(ME, {0: 0, 1: 0}, {0: 9, 1: 7}), {})
    assert found.ranges == (OffsetRange(0, 5, 9), OffsetRange(1, 0, 7))


def test_what_a_new_partition_lost_before_anybody_looked_is_lost_all_the_same():
    position, now = Position(ME, {0: 5}), Watermarks(ME, {0: 0, 1: 3}, {0: 9, 1: 7})
    with pytest.raises(DataLossError, match="partition 1 lost offsets 0 to 2 to retention"):
        backlog(position, now, {})
    assert backlog(position, now, {}, accept_losses=True).ranges == (OffsetRange(0, 5, 9), OffsetRange(1, 3, 7))
    after = plan(position, now, {}, 10, partitions={0}).after
    assert after.offsets == {0: 9, 1: 0}
    with pytest.raises(DataLossError, match="partition 1 lost offsets 0 to 2 to retention"):
        backlog(after, now, {})


def test_retention_that_overtook_is_named():
    with pytest.raises(DataLossError, match=r"pizzas.*partition 1 lost offsets 5 to 7 to retention"):
        plan(Position(ME, {0: 5, 1: 5}), Watermarks(ME, {0: 5, 1: 8}, {0: 9, 1: 9}), {}, 10)


def test_a_position_at_the_low_watermark_lost_nothing():
    found = backlog(Position(ME, {0: 5}), Watermarks(ME, {0: 5}, {0: 5}), {})
    assert (found.ranges, found.losses) == ((OffsetRange(0, 5, 5),), ())


def test_an_end_before_the_position_is_named():
    with pytest.raises(DataLossError, match="partition 0 was truncated at 4, before the table's position 5"):
        plan(Position(ME, {0: 5}), Watermarks(ME, {0: 0}, {0: 4}), {}, 10)


def test_a_partition_that_waits_hides_no_loss_of_another():
    position = Position(ME, {0: 5, 1: 2}, {0: 3, 1: 3})
    now = Watermarks(ME, {0: 0, 1: 4, 2: 6}, {0: 9, 1: 9, 2: 9}, {0: 4, 1: 4, 2: 4})
    with pytest.raises(DataLossError, match="partition 1"):
        backlog(position, now, {}, partitions={1})
    found = backlog(position, now, {}, partitions={1}, accept_losses=True)
    assert found.losses == (Loss(1, 2, 4, "retention"),)
    waiting = {0: 5, 1: 4, 2: 0}
    assert found.before == Position(ME, waiting, {0: 3, 1: 4, 2: 4}), "a new one waits, and its loss is named later"


def test_a_log_that_was_cut_off_at_its_begin_is_gone_on_with_there():
    now = Watermarks(ME, {0: 0}, {0: 9}, {0: 4}, cut_off={0: 0})
    found = backlog(Position(ME, {0: 5}, {0: 3}), now, {}, accept_losses=True)
    assert found.before.offsets == {0: 0}
    assert found.ranges == (OffsetRange(0, 0, 9),)


def test_a_recreated_topic_is_gone_on_with_under_its_own_leader_epochs():
    recreated = Watermarks(TopicIdentity("cluster-1", "topic-2", "pizzas"), {0: 1}, {0: 3}, {0: 0})
    found = backlog(Position(ME, {0: 5}, {0: 7}), recreated, {}, accept_losses=True)
    assert found.before == Position(recreated.identity, {0: 1}, {0: 0})
    assert found.ranges == (OffsetRange(0, 1, 3),)


def test_a_log_that_was_cut_off_and_has_grown_again_is_named_and_gone_on_with_at_the_cut():
    position = Position(ME, {0: 5, 1: 5}, {0: 3, 1: 3})
    now = Watermarks(ME, {0: 0, 1: 0}, {0: 9, 1: 9}, {0: 4, 1: 4}, {0: 2})
    with pytest.raises(DataLossError, match="partition 0 was truncated at 2, before the table's position 5"):
        plan(position, now, {}, 100)
    todo = plan(position, now, {}, 100, accept_losses=True)
    assert todo.ranges == (OffsetRange(0, 2, 9), OffsetRange(1, 5, 9))
    assert todo.losses == (Loss(0, 2, 5, "truncated"),)
    assert todo.after == Position(ME, {0: 9, 1: 9}, {0: 4, 1: 4})


def test_last_records_stay_only_where_nothing_was_lost():
    last = {p: LastRecord(4, f"digest {p}") for p in range(4)}
    position = Position(ME, dict.fromkeys(range(4), 5), last=last)
    now = Watermarks(ME, {0: 0, 1: 6, 2: 0}, {0: 5, 1: 9, 2: 9}, replaced={2: 4})
    with pytest.raises(DataLossError, match=r"reset pizzas --to earliest --partitions 2` reads the current log"):
        backlog(position, now, {})
    found = backlog(position, now, {}, accept_losses=True)
    assert found.losses == (
        Loss(1, 5, 6, "retention"),
        Loss(2, 4, 5, "replaced"),
        Loss(3, 5, None, "partition gone"),
    )
    assert found.before.last == {0: last[0]}


def test_a_log_of_which_nothing_is_what_the_table_has_read_is_read_from_its_beginning():
    position = Position(ME, {0: 5}, {0: 3})
    now = Watermarks(ME, {0: 1}, {0: 9}, {0: 0}, {0: None})
    todo = plan(position, now, {}, 100, accept_losses=True)
    assert todo.ranges == (OffsetRange(0, 1, 9),)
    assert todo.losses == (Loss(0, 5, None, "topic recreated"),)


def test_partitions_with_another_leader_than_the_positions_are_to_be_looked_at():
    position = Position(ME, {0: 5, 1: 5, 2: 5, 3: 5, 4: 0}, {0: 3, 1: 3, 2: 3, 4: 9})
    now = Watermarks(
        ME, dict.fromkeys(range(5), 0) | {2: 6}, dict.fromkeys(range(5), 9), {0: 3, 1: 4, 2: 4, 3: 4, 4: 0}
    )
    assert with_other_leader(position, now) == [1, 4]
    assert with_other_leader(position, now, {0, 4}) == [4]
    assert with_other_leader(None, now) == []
    assert with_other_leader(position, replace(now, identity=TopicIdentity("c", "another", "pizzas"))) == []
    assert with_other_leader(position, replace(now, epochs={})) == []


def test_partitions_that_a_run_does_not_look_at_keep_their_epochs():
    position = Position(ME, {0: 5, 1: 5}, {0: 3, 1: 3})
    now = Watermarks(ME, {0: 0, 1: 0, 2: 0}, {0: 9, 1: 9, 2: 9}, {0: 4, 1: 4, 2: 4})
    assert plan(position, now, {}, 100, {0}).after == Position(ME, {0: 9, 1: 5, 2: 0}, {0: 4, 1: 3, 2: 4})


NO_ID, NO_EPOCHS = "no topic id (they are older than Kafka 2.8)", "no leader epochs (they are older than Kafka 2.1)"


@pytest.mark.parametrize(
    ("topic_id", "epochs", "lacks"),
    [
        ("topic-1", {0: 0}, None),
        ("topic-1", {}, NO_EPOCHS),
        ("", {0: 0}, NO_ID),
        ("", {}, f"{NO_ID} and {NO_EPOCHS}"),
    ],
)
def test_warning_about_old_brokers_names_what_they_lack(topic_id, epochs, lacks):
    warning = old_brokers_warning(Watermarks(replace(ME, topic_id=topic_id), {0: 0}, {0: 9}, epochs))
    assert (warning or "").partition(". ")[0] == (f"Topic pizzas: the brokers have {lacks}" if lacks else "")


def test_a_reset_takes_the_log_as_it_is_where_it_names_an_offset():
    position = Position(ME, {0: 5, 1: 5}, {0: 3, 1: 3})
    now = Watermarks(ME, {0: 0, 1: 0}, {0: 9, 1: 9}, {0: 4, 1: 4})
    assert resetting(position, now, {0: 5}).after == Position(ME, {0: 5, 1: 5}, {0: 4, 1: 3})
    # Under another leader the record before the target may be another one.
    last = {p: LastRecord(4, "digest") for p in (0, 1)}
    assert resetting(replace(position, last=last), now, {0: 5}).after.last == {1: last[1]}


def test_a_partition_that_is_gone_is_named():
    with pytest.raises(DataLossError, match="partition 2 is gone, the table's position in it was 7"):
        plan(Position(ME, {0: 5, 2: 7}), Watermarks(ME, {0: 0}, {0: 9}), {}, 10)


def test_all_losses_are_named_at_once():
    with pytest.raises(DataLossError, match=r"partition 0 lost offsets 1 to 1 .*partition 1 was truncated at 3"):
        plan(Position(ME, {0: 1, 1: 5}), Watermarks(ME, {0: 2, 1: 0}, {0: 9, 1: 3}), {}, 10)


def test_a_loss_stops_its_own_partition_only():
    position, now = Position(ME, {0: 1, 1: 5}), Watermarks(ME, {0: 2, 1: 0}, {0: 9, 1: 7})
    todo = plan(position, now, {}, 10, {1})
    assert todo.ranges == (OffsetRange(1, 5, 7),)
    assert todo.after.offsets == {0: 1, 1: 7}, "the other partition's position waits where it was"


def test_going_on_after_a_loss_skips_what_is_gone_and_nothing_else():
    position = Position(ME, {0: 1, 1: 5, 2: 9, 3: 4})
    now = Watermarks(ME, {0: 4, 1: 0, 2: 0}, {0: 9, 1: 7, 2: 6})
    todo = plan(position, now, {}, 100, accept_losses=True)
    assert todo.ranges == (OffsetRange(0, 4, 9), OffsetRange(1, 5, 7))
    assert todo.after.offsets == {0: 9, 1: 7, 2: 6}
    assert [str(loss) for loss in todo.losses] == [
        "partition 0 lost offsets 1 to 3 to retention",
        "partition 2 was truncated at 6, before the table's position 9",
        "partition 3 is gone, the table's position in it was 4",
    ]
    assert losses_from_json(losses_to_json(todo.losses)) == list(todo.losses)


def test_a_loss_with_nothing_left_to_read_still_moves_the_position():
    todo = plan(Position(ME, {0: 1, 1: 5}), Watermarks(ME, {0: 4, 1: 0}, {0: 4, 1: 5}), {}, 100, accept_losses=True)
    assert (todo.ranges, todo.after.offsets) == ((OffsetRange(0, 4, 4),), {0: 4, 1: 5})
    assert plan(todo.after, Watermarks(ME, {0: 4, 1: 0}, {0: 4, 1: 5}), {}, 100, accept_losses=True) is None


def test_continuing_with_a_recreated_topic_begins_at_its_start():
    recreated = TopicIdentity("cluster-1", "topic-2", "pizzas")
    todo = plan(Position(ME, {0: 5, 1: 2}), Watermarks(recreated, {0: 0}, {0: 3}), {}, 100, accept_losses=True)
    assert todo.ranges == (OffsetRange(0, 0, 3),)
    assert todo.after == Position(recreated, {0: 3})
    assert [(loss.partition, loss.start, loss.reason) for loss in todo.losses] == [
        (0, 5, "topic recreated"),
        (1, 2, "topic recreated"),
    ]


NOW = Watermarks(ME, {0: 2, 1: 0}, {0: 9, 1: 7})
AT = Position(ME, {0: 6, 1: 4})


def test_a_replacement_stays_before_the_position_and_never_moves_it():
    plans = replacement(AT, NOW, [OffsetRange(0, 3, 9), OffsetRange(1, 0, 2)], 100, False)
    assert [p.ranges for p in plans] == [(OffsetRange(0, 3, 6), OffsetRange(1, 0, 2))]
    assert [(p.after, p.kind, p.deletes) for p in plans] == [(AT, "replace", plans[0].ranges)]


@given(limits)
def test_a_long_replacement_is_cut_into_commits_that_tile_it(limit):
    plans = replacement(AT, NOW, [OffsetRange(0, 2, 9), OffsetRange(1, 0, 9)], limit, False)
    read = [(r.partition, o) for p in plans for r in p.ranges for o in range(r.start, r.end)]
    assert sorted(read) == [(0, o) for o in range(2, 6)] + [(1, o) for o in range(4)]
    assert all(p.records_at_most <= limit for p in plans)
    assert plans[-1].remaining == 0


def test_a_replacement_of_what_kafka_no_longer_has_is_refused_or_clipped():
    wanted = [OffsetRange(0, 0, 9), OffsetRange(1, 0, 9)]
    with pytest.raises(DataLossError, match=r"partition 0 offsets 0 to 1\.$|partition 0 offsets 0 to 1\. "):
        replacement(AT, NOW, wanted, 100, False)
    (kept,) = replacement(AT, NOW, wanted, 100, True)
    assert kept.deletes == (OffsetRange(0, 2, 6), OffsetRange(1, 0, 4))
    with pytest.raises(TopicReplacedError):
        replacement(AT, Watermarks(TopicIdentity("cluster-1", "topic-2", "pizzas"), {0: 0}, {0: 9}), wanted, 100, True)


def test_of_a_replacement_only_what_the_table_has_is_read_again():
    unknown = [OffsetRange(2, 0, 9), OffsetRange(0, 6, 9), OffsetRange(1, 4, 4)]
    assert replacement(AT, NOW, unknown, 100, False) == [], "not in the position, beyond it, and nothing"
    at = Position(ME, {**AT.offsets, 3: 5})
    (gone,) = replacement(at, NOW, [OffsetRange(3, 0, 9), OffsetRange(1, 3, 9)], 100, True)
    assert gone == Plan((OffsetRange(1, 3, 4),), at, 0, "replace", (OffsetRange(1, 3, 4),), True), "partition 3 is gone"
    low = Watermarks(ME, {0: 2, 1: 1}, NOW.end)
    with pytest.raises(DataLossError, match="partition 0 offsets 0 to 1; partition 1 offsets 0 to 0"):
        replacement(AT, low, [OffsetRange(0, 0, 9), OffsetRange(1, 0, 9)], 100, False)
    first, second = replacement(AT, NOW, [OffsetRange(0, 2, 6)], 3, False)
    assert first == Plan((OffsetRange(0, 2, 5),), AT, 1, "replace", (OffsetRange(0, 2, 5),))
    assert second == Plan((OffsetRange(0, 5, 6),), AT, 0, "replace", (OffsetRange(0, 5, 6),))


def test_part_of_a_plan_leaves_other_partitions_unread():
    ranges = (OffsetRange(0, 3, 9), OffsetRange(1, 5, 6), OffsetRange(2, 0, 4))
    whole = Plan(ranges, Position(ME, {0: 9, 1: 6, 2: 4, 3: 7}), 2)
    some = part(whole, (OffsetRange(0, 3, 5), OffsetRange(2, 0, 4)))
    assert some.after.offsets == {0: 5, 1: 5, 2: 4, 3: 7}
    assert (some.ranges, some.remaining, some.deletes) == ((OffsetRange(0, 3, 5), OffsetRange(2, 0, 4)), 7, ())


def test_latest_stays_where_a_run_found_it_first():
    """Until the first commit there is no position, and what comes meanwhile must not be skipped."""
    spec, said = TopicTable("pizzas", "pizza", "orders", start="latest"), []
    connections = SimpleNamespace(cluster=None)
    observer = SimpleNamespace(warn=said.append)
    job = Append(SimpleNamespace(spec=spec, connections=connections, observer=observer, begins={}))

    def planned(now):
        return job.plan(SimpleNamespace(now=now, validated=lambda *_: now), None)

    assert planned(Watermarks(ME, {0: 0}, {0: 5}, {0: 1})).after.offsets == {0: 5}
    assert "it starts at {0: 5}" in said[-1]
    assert planned(Watermarks(ME, {0: 0}, {0: 9}, {0: 1})).ranges == (OffsetRange(0, 5, 9),)
    assert planned(Watermarks(ME, {0: 7}, {0: 9}, {0: 1})).ranges == (OffsetRange(0, 7, 9),), "retention was faster"


def test_a_table_that_begins_at_the_latest_offset_is_opened_by_a_commit_without_rows():
    now = Watermarks(ME, {0: 2, 1: 0}, {0: 9, 1: 7}, {0: 3, 1: 4})
    latest = TopicTable("pizzas", "pizza", "orders", start="latest")
    at = Position(ME, {0: 9, 1: 7}, {0: 3, 1: 4})
    assert opening(latest, now, {0: 9, 1: 7}) == Plan((OffsetRange(0, 9, 9), OffsetRange(1, 7, 7)), at, 0)
    assert opening(SPEC, now, {0: 9, 1: 7}) is None, "earliest can be told again at any time"
    assert opening(latest, Watermarks(ME, {}, {}), {}) is None, "nobody knows the partitions"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("earliest", False), ("latest", False), ("17", False), ("0:17", False), ("0:17,1:4", False), ("2026-01-31", True)],
)
def test_what_is_a_time(text, expected):
    assert is_time(text) is expected


def test_a_reset_back_takes_rows_away_and_one_forward_records_what_it_skips():
    todo = resetting(AT, NOW, {0: 3, 1: 7})
    skipped = Loss(1, 4, 7, "skipped")
    assert str(skipped) == "partition 1 skipped offsets 4 to 6 by a reset"
    assert todo == Plan(
        (OffsetRange(0, 3, 3), OffsetRange(1, 7, 7)),
        Position(ME, {0: 3, 1: 7}),
        0,
        "reset",
        (OffsetRange(0, 3, 6),),
        losses=(skipped,),
    )
    stays = resetting(AT, NOW, {0: 6})
    assert (stays.deletes, stays.losses) == ((), ())
    assert resetting(AT, NOW, {1: 4}).after == AT
    assert resetting(None, NOW, {1: 4}).after.offsets == {0: 2, 1: 4}
    assert resetting(Position(ME, {1: 4}), NOW, {1: 7}).after.offsets == {1: 7}
    assert resetting(Position(ME, {1: 4}), NOW, {0: 2}).losses == (Loss(0, 0, 2, "skipped"),)


def test_a_reset_without_a_position_removes_rows_that_will_be_read_again() -> None:
    ends = NOW.end
    assert resetting(None, NOW, {1: 4}).deletes == ()
    assert resetting(None, NOW, {1: 4}, rows_name_records=True).deletes == (
        OffsetRange(0, 2, ends[0]), OffsetRange(1, 4, ends[1]),
    )  # fmt: skip
    assert resetting(None, NOW, dict(ends), rows_name_records=True).deletes == ()


@pytest.mark.parametrize("targets", [{0: 1}, {0: 10}, {2: 0}])
def test_a_reset_to_where_nothing_is_is_refused(targets):
    with pytest.raises(ConfigurationError, match=r"there is no offset .* the partitions hold 0: 2\.\.9, 1: 0\.\.7"):
        resetting(AT, NOW, targets)


def test_a_reset_keeps_the_last_records_before_offsets_that_stay() -> None:
    last = {p: LastRecord(offset, "digest") for p, offset in ((0, 5), (1, 3))}
    before = replace(AT, last=last)
    assert resetting(before, NOW, {0: 3}).after.last == {1: last[1]}
    assert resetting(before, NOW, {0: 6, 1: 4}).after.last == last
    other_log = replace(NOW, replaced={0: 5})
    assert resetting(before, other_log, {0: 6}).after.last == {1: last[1]}
    assert resetting(before, other_log, {1: 4}).after.last == last
    recreated = Watermarks(TopicIdentity("cluster-1", "topic-2", "pizzas"), {0: 0}, {0: 6})
    assert resetting(before, recreated, {0: 6}).after.last == {}


def test_records_before_an_adopted_position_are_refused() -> None:
    adopted = Position(ME, {0: 5, 1: 4})
    refuse_adopted(None, NOW, {0: 0})
    refuse_adopted(adopted, NOW, {0: 5, 1: 9, 2: 0})
    refuse_adopted(adopted, replace(NOW, identity=TopicIdentity("cluster-1", "topic-2", "pizzas")), {0: 0})
    with pytest.raises(ConfigurationError) as refused:
        refuse_adopted(adopted, NOW, {2: 0, 1: 3, 0: 4})
    assert str(refused.value) == (
        "Topic pizzas: the table was taken over from another writer, whose rows have no offsets: partition 0 offset 4, "
        "taken over at 5; partition 1 offset 3, taken over at 4. Older records would be in the table twice. Nothing "
        "was changed. Start at 0:5,1:4,2:0 or later. To read older records anyway, first delete the other writer's "
        "rows, and then the table property kafka-lake.adopted-position."
    )


def test_remedy_of_a_replaced_log_names_its_partitions() -> None:
    losses = [Loss(0, 2, 5, "retention"), Loss(1, 4, 6, "replaced"), Loss(3, 7, 9, "replaced")]
    remedy = loss_remedy("pizzas", losses)
    assert "`kafka-lake reset pizzas --to earliest --partitions 1,3`" in remedy
    assert "`kafka-lake reset pizzas --to 1:6,3:9`" in remedy
    assert "`kafka-lake reset pizzas --to … --partitions …`" in loss_remedy("pizzas", losses[:1])


def test_replay_of_a_replaced_log_is_refused_with_its_remedy() -> None:
    before = Position(ME, {0: 6, 1: 4, 9: 3}, last={0: LastRecord(5, "digest")})
    refuse_other_log(before, replace(NOW, low={0: 8, 1: 6}), {0, 1, 9})
    with pytest.raises(DataLossError, match=r"^Topic pizzas: the replay would .*reset pizzas --to earliest --part"):
        refuse_other_log(before, replace(NOW, replaced={0: 5}), {0, 1, 9})


def test_a_reset_to_a_recreated_topic_takes_its_identity():
    recreated = Watermarks(TopicIdentity("cluster-1", "topic-2", "pizzas"), {0: 0}, {0: 3})
    todo = resetting(AT, recreated, {0: 0})
    assert todo.after == Position(recreated.identity, {0: 0})
    assert todo.deletes == ()
    assert todo.losses == (Loss(0, 6, None, "topic recreated"), Loss(1, 4, None, "topic recreated"))


def test_a_reset_to_a_recreated_topic_takes_its_leader_epochs():
    before = Position(ME, {0: 6, 1: 4}, {0: 8, 1: 8})
    recreated = Watermarks(TopicIdentity("cluster-1", "topic-2", "pizzas"), {0: 0, 1: 0}, {0: 3, 1: 3}, {0: 0, 1: 0})
    assert resetting(before, recreated, {0: 2}).after == Position(recreated.identity, {0: 2, 1: 0}, {0: 0, 1: 0})


def test_a_position_only_commit_has_every_partition_and_reads_nothing():
    assert position_only(AT) == Plan((OffsetRange(0, 6, 6), OffsetRange(1, 4, 4)), AT, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", {0: 2, 1: 0}),
        ("latest", {0: 9, 1: 7}),
        ("4", {0: 4, 1: 4}),
        ("1:3", {1: 3}),
        ("0:5,1:3", {0: 5, 1: 3}),
        ("2026-01-01T00:00:00Z", {0: 5, 1: 7}),
    ],
)
def test_offsets_that_a_person_means(text, expected):
    assert offsets_of(text, "pizzas", Clock({0: 5, 1: None}), NOW) == expected


@pytest.mark.parametrize("text", ["yesterday", "-1", "0:", "0:1,"])
def test_offsets_that_nobody_understands(text):
    with pytest.raises(ConfigurationError, match=r"^--from or --to: "):
        offsets_of(text, "pizzas", Clock({}), NOW)


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (TopicIdentity("cluster-1", "topic-2", "pizzas"), "topic id"),
        (TopicIdentity("cluster-2", "topic-1", "pizzas"), "cluster id"),
        # Who knows no cluster id hasn't got another one: it is the topic's that differs.
        (TopicIdentity("", "topic-2", "pizzas"), "topic id"),
    ],
)
def test_another_topic_is_refused(now, what):
    with pytest.raises(TopicReplacedError, match=f"its {what} differs.*0: 5") as refused:
        plan(Position(ME, {0: 5}), Watermarks(now, {0: 0}, {0: 9}), {}, 10)
    assert ("correct cluster: in the topic's YAML" in refused.value.remedy) == (what == "cluster id")
    assert "on_data_loss: continue" in refused.value.remedy
    assert "kafka-lake reset pizzas --to" in refused.value.remedy


@pytest.mark.parametrize("accept_losses", [False, True])
def test_another_topics_table_is_refused_by_both_names_whatever_the_policy(accept_losses):
    pasta = Watermarks(TopicIdentity("cluster-1", "topic-2", "pasta"), {0: 0}, {0: 9})
    with pytest.raises(TopicReplacedError, match=r"table of topic pasta belongs to topic pizzas.*0: 5") as refused:
        plan(Position(ME, {0: 5}), pasta, {}, 10, accept_losses=accept_losses)
    assert "kafka-lake reset pasta" in refused.value.remedy


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


def test_table_of_a_value_reads_partitions_that_came_later_as_a_whole():
    now = Watermarks(ME, {0: 2, 1: 0}, {0: 9, 1: 8})
    latest = TopicTable("pizzas", "p", "o", start="latest")
    assert start_offsets(latest, None, now, begins={0: 5}) == {0: 5, 1: 0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01T00:00:00Z", 1767225600000),
        ("2026-01-01T00:00:00", 1767225600000),
        ("2026-01-01T01:00:00+01:00", 1767225600000),
        ("2026-01-01", 1767225600000),
    ],
)
def test_start_times(text, expected, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert start_timestamp_ms(text) == expected
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "Latest"])
def test_no_start_time(text):
    with pytest.raises(ConfigurationError, match=f"^start: '{text}' is neither.* ISO 8601"):
        start_timestamp_ms(text)


def test_replay_of_a_log_that_was_cut_off_or_replaced_is_refused():
    at = Position(ME, {0: 5, 1: 5, 2: 5, 3: 5, 4: 5, 5: 5})
    low, end = dict.fromkeys(range(6), 0), {**dict.fromkeys(range(6), 9), 2: 3, 3: 3}
    now = Watermarks(ME, {**low, 4: 7}, end, cut_off={0: 2, 5: None}, replaced={1: 4})
    said = r"0 was truncated at 2.*1 was replaced: its record at offset 4.*2 was truncated at 3.*5 lost all"
    with pytest.raises(DataLossError, match=said) as refused:
        refuse_other_log(at, now, {0, 1, 2, 4, 5})
    assert "partition 3" not in str(refused.value), "it isn't read again"
    assert "partition 4" not in str(refused.value), "retention took its records"
    refuse_other_log(at, Watermarks(ME, {**low, 4: 7}, end), {4})
    refuse_other_log(Position(replace(ME, topic_id="other"), {0: 5}), now, {0})
