"""What is due, and which snapshots may go: decided from metadata alone."""

from itertools import accumulate, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Operation

from kafka_lake.catalog.positions import ADOPTED_AT, CREATED, POSITION
from kafka_lake.config.topic import Topic
from kafka_lake.maintenance.policy import (
    COMPACTED,
    MOST_SNAPSHOTS,
    Limits,
    applies_to,
    commits_since_compaction,
    expirable,
    limits_of,
    needs_of,
)
from kafka_lake.spec.maintenance import Maintenance

DAY = 86_400_000
OURS = (Operation.APPEND, {POSITION: "{}"})
COMPACTION = (Operation.REPLACE, {"deleted-data-files": "9"})


def table_of(*history: tuple[Operation, dict[str, str]], times: list[int] | None = None, **properties: str) -> Any:
    """Return a table with a snapshot for each commit, the oldest first: what it did, and its summary."""
    times = times or list(accumulate(repeat(DAY, len(history))))
    snapshots = [
        SimpleNamespace(
            snapshot_id=n,
            parent_snapshot_id=n - 1 or None,
            timestamp_ms=at,
            sequence_number=n,
            summary=SimpleNamespace(operation=did, additional_properties=summary),
        )
        for n, ((did, summary), at) in enumerate(zip(history, times, strict=True), 1)
    ]
    main = SimpleNamespace(
        snapshot_id=len(history), max_snapshot_age_ms=None, min_snapshots_to_keep=None, snapshot_ref_type="branch"
    )
    refs = {"main": main} if history else {}
    metadata = SimpleNamespace(refs=refs, snapshots=snapshots, properties=properties)
    current = snapshots[-1] if snapshots else None
    return SimpleNamespace(metadata=metadata, properties=properties, current_snapshot=lambda: current)


def test_what_is_old_goes_but_for_so_many_of_the_newest() -> None:
    table = table_of(*[OURS] * 10)
    assert expirable(table, Limits(7 * DAY, 1, 100)).times == tuple(n * DAY for n in range(1, 7))
    assert expirable(table, Limits(7 * DAY, 6, 100)).times == tuple(n * DAY for n in range(1, 5))
    assert expirable(table, Limits(0, 1, 3)).times == tuple(n * DAY for n in range(1, 8))
    assert expirable(table_of(), Limits(7 * DAY, 1, 1)).times == ()


def test_the_newest_snapshot_with_a_position_stays_and_all_after_it() -> None:
    table = table_of(OURS, OURS, OURS, *[COMPACTION] * 5)
    found = expirable(table, Limits(100 * DAY, 1, 1))
    assert (found.times, found.kept) == ((DAY, 2 * DAY), 6)
    # Where none has one, the position is in the rows, or it is another's table: nothing is known to be safe.
    assert expirable(table_of(*[COMPACTION] * 5), Limits(100 * DAY, 1, 1)).times == ()


def test_a_snapshot_of_the_position_s_own_millisecond_stays_since_others_may_commit_meanwhile() -> None:
    # By then the position is not among so many of the newest: what is left is its time.
    table = table_of(OURS, OURS, OURS, times=[4, 5, 5])
    assert expirable(table, Limits(100, 1, 1)).times == (4,)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=12),
    st.integers(0, 60),
    st.integers(1, 12),
    st.integers(1, 12),
)
def test_by_iceberg_s_own_rule_the_position_is_never_lost(
    history: list[tuple[bool, int]], older_than: int, keep: int, most: int
) -> None:
    """Clocks of writers differ, so that times may go backwards. Iceberg: core/…/RemoveSnapshots.java."""
    table = table_of(*[OURS if ours else COMPACTION for ours, _ in history], times=[at for _, at in history])
    found = expirable(table, Limits(older_than, keep, most))
    assert list(found.times) == sorted(found.times)
    for end in range(1, len(found.times) + 1):
        limit, kept = found.times[:end][-1] + 1, []
        for snapshot in reversed(table.metadata.snapshots):
            if len(kept) >= found.kept and snapshot.timestamp_ms < limit:
                break
            kept.append(snapshot)
        assert any(POSITION in item.summary.additional_properties for item in kept)
        assert len(kept) >= min(keep, len(history))


@pytest.mark.parametrize(
    ("history", "totals", "reason"),
    [
        ([OURS] * 99, {}, ""),
        ([OURS] * 100, {}, "100 commits since the last compaction"),
        ([OURS] * 100 + [COMPACTION] + [OURS] * 99, {}, ""),
        ([OURS] * 100 + [COMPACTION] + [OURS] * 100, {}, "100 commits since the last compaction"),
        ([OURS] * 10, {"total-records": "100", "total-position-deletes": "20"}, "20% of the rows"),
        ([OURS] * 9, {"total-records": "100", "total-position-deletes": "90"}, ""),
        ([OURS] * 50, {"total-records": "100", "total-position-deletes": "19"}, ""),
    ],
)
def test_a_compaction_is_due(history: list[Any], totals: dict[str, str], reason: str) -> None:
    *before, (did, summary) = history
    table = table_of(*before, (did, {**summary, **totals}), times=[5] * len(history))
    needs = needs_of(table, Maintenance(), 10)
    assert needs.compaction.startswith(reason)
    assert bool(needs.compaction) == bool(reason)
    assert needs_of(table, Maintenance(compact_every=None), 10).compaction == ""


def test_an_expiry_is_due_for_many_snapshots_or_for_very_old_ones() -> None:
    policy = Maintenance(expire_after="10d", keep_snapshots=1)
    table = table_of(*[OURS] * 5)
    assert needs_of(table, policy, 11 * DAY).expiring == 0
    assert (needs_of(table, policy, 12 * DAY).expiring, needs_of(table, policy, 12 * DAY).expiry) == (1, "")
    assert needs_of(table, policy, 13 * DAY).expiry == "2 old snapshots"
    many = table_of(*[OURS] * 2100, times=[DAY + n for n in range(2100)])
    assert needs_of(many, Maintenance(), 2 * DAY).expiry == "100 old snapshots"
    fewer = table_of(*[OURS] * 2099, times=[DAY + n for n in range(2099)])
    assert needs_of(fewer, Maintenance(), 2 * DAY).expiry == ""
    assert needs_of(many, Maintenance(expire_after=None), 900 * DAY).expiry == ""


def test_what_the_table_s_owner_has_set_counts_where_it_keeps_more() -> None:
    policy, now = Maintenance(expire_after="10d", keep_snapshots=2), 100 * DAY
    assert limits_of(table_of(OURS), policy, now) == Limits(90 * DAY, 2, MOST_SNAPSHOTS)
    age, keep = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
    assert limits_of(table_of(OURS, **{age: str(30 * DAY)}), policy, now) == Limits(70 * DAY, 2, None)
    assert limits_of(table_of(OURS, **{age: str(DAY), keep: "9"}), policy, now) == Limits(90 * DAY, 9, None)
    assert limits_of(table_of(OURS, **{"gc.enabled": "false"}), policy, now) is None
    with_rules = table_of(OURS)
    with_rules.metadata.refs["main"].min_snapshots_to_keep = 1
    assert limits_of(with_rules, policy, now) is None


def test_what_a_tag_points_to_is_not_waited_for() -> None:
    table = table_of(*[OURS] * 4)
    table.metadata.refs["audit"] = SimpleNamespace(snapshot_id=1, snapshot_ref_type="tag")
    assert expirable(table, Limits(100 * DAY, 1, 100)).times == (2 * DAY, 3 * DAY)
    # Of a branch, Iceberg keeps as many as of main.
    table.metadata.refs["what-if"] = SimpleNamespace(snapshot_id=3, snapshot_ref_type="branch")
    assert expirable(table, Limits(100 * DAY, 1, 100)).times == (2 * DAY,)
    assert expirable(table, Limits(100 * DAY, 2, 100)).times == ()


def test_commits_are_counted_though_their_snapshots_have_expired() -> None:
    never = table_of(*[OURS] * 9)
    assert commits_since_compaction(never) == 9
    del never.metadata.snapshots[:7]
    assert commits_since_compaction(never) == 9, "by sequence numbers"
    never.metadata.snapshots[0].parent_snapshot_id = None
    assert commits_since_compaction(never) == 9, "as after an expiry by PyIceberg"
    found_nothing = table_of(*[OURS] * 9, **{COMPACTED: "7"})
    assert commits_since_compaction(found_nothing) == 2
    by_others = table_of(*[OURS] * 5, COMPACTION, OURS, (Operation.REPLACE, {"manifests-replaced": "3"}), OURS)
    assert commits_since_compaction(by_others) == 3, "manifests are no data files"
    rolled_back = table_of(*[OURS] * 3, **{COMPACTED: "7"})
    assert commits_since_compaction(rolled_back) == 3


@pytest.mark.parametrize(
    ("snapshots", "totals", "said"),
    [
        (10, {}, ""),
        (5001, {}, "5,001 snapshots make commits slow"),
        (10, {"total-delete-files": "501"}, "501 delete files make reading slow"),
        (501, {"total-data-files": "501", "total-files-size": "501"}, "501 small files make reading slow"),
        (501, {"total-data-files": "501", "total-files-size": str(501 << 24)}, ""),
    ],
)
def test_what_is_long_overdue_is_a_warning(snapshots: int, totals: dict[str, str], said: str) -> None:
    table = table_of(*[OURS] * (snapshots - 1), (Operation.APPEND, {**OURS[1], **totals}), times=[1] * snapshots)
    overdue = needs_of(table, Maintenance(), 2).overdue
    assert overdue.startswith(said)
    assert bool(overdue) == bool(said)


def test_by_default_it_is_for_tables_that_are_ours() -> None:
    ours, theirs = table_of(**{CREATED: "{}"}), table_of()
    taken_over = table_of(**{CREATED: "{}", ADOPTED_AT: "{}"})
    assert [applies_to(Maintenance(), table) for table in (ours, theirs, taken_over)] == [True, False, False]
    assert applies_to(Maintenance(enabled=True), theirs)
    assert not applies_to(Maintenance(enabled=False), ours)


def test_yaml_sets_it() -> None:
    given = {"compact_every": 50, "expire_after": "30d", "keep_snapshots": 7}
    found = Topic.model_validate({"topic": "t", "table": {"maintenance": given}}).topic_table().maintenance
    assert found == Maintenance(compact_every=50, expire_after="30d", keep_snapshots=7)
    assert Topic.model_validate({"topic": "t"}).topic_table().maintenance == Maintenance()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"expire_after": "5 days"}, "not a duration"),
        ({"compact_every": 1}, "greater than or equal to 2"),
        ({"compact": True}, "compact"),
        ({"keep_snapshots": 0}, "greater than or equal to 1"),
    ],
)
def test_yaml_that_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Topic.model_validate({"topic": "t", "table": {"maintenance": given}})
