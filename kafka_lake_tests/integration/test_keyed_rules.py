"""Rules of keyed tables on real servers, beside a plain model: a refused change counts as if it had not come."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kafka_lake.ingest.run import ingest, replay, replay_dead_letters
from kafka_lake.runtime.commit import CheckFailedError
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.rule import Range, RowCount, RuleEntry
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_exactly_once import killed_at  # noqa: F401
from kafka_lake_tests.integration.test_keyed import debezium

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]
Order = tuple[int, int, int]
GONE = -1


@dataclass(frozen=True)
class Told:
    """A change as a record tells it; a value of `GONE` deletes."""

    key: int
    order: Order
    value: int


@dataclass
class Model:
    """What a keyed table holds: the newest change of each key that no rule refused."""

    applied: dict[int, Told] = field(default_factory=dict)
    letters: set[tuple[int, int]] = field(default_factory=set)

    def commit(self, changes: list[Told], most: int) -> None:
        for change in changes:
            place = (change.order[1], change.order[2])
            if change.value > most:
                self.letters.add(place)
            else:
                self.letters.discard(place)
                self.applied[change.key] = max(self.applied.get(change.key, change), change, key=lambda c: c.order)

    def rows(self) -> dict[int, int]:
        return {key: change.value for key, change in self.applied.items() if change.value != GONE}


def at_most(value: int, **settings: Any) -> tuple[RuleEntry, ...]:
    return (RuleEntry(range=Range(column="v", max=value), name="most", **settings),)


def assert_like(model: Model, see: View) -> None:
    assert {row["id"]: row["v"] for row in see.rows()} == model.rows()
    letters = see.dead_letters()
    assert {(r["partition"], r["offset"]) for r in letters} == model.letters
    assert len(letters) == len(model.letters)
    see.assert_no_branches()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("seed", "ordered"), [(1, True), exhaustive(2, False), *(exhaustive(seed, True) for seed in (3, 4, 5))]
)
def test_random_changes_kills_and_replays_match_a_model(
    seed: int,
    ordered: bool,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic, chance, model = new_topic(3), random.Random(seed), Model()
    spec = topic.spec(
        "id bigint, at bigint, v bigint", write="upsert", key=("id",), order_by=("at",) if ordered else (),
        delete_when=f"v = {GONE}", rules=at_most(70), rules_fail_above=None,
    )  # fmt: skip
    every: list[Told] = []
    for batch in range(3):
        changes = []
        for _ in range(40):
            key = chance.randrange(12)
            value = GONE if chance.random() < 0.15 else chance.randrange(100)
            at, partition = (chance.randrange(40), chance.randrange(3)) if ordered else (0, key % 3)
            sent = topic.send({"id": key, "at": at, "v": value}, partition, key=b"%d" % key)
            changes.append(Told(key, (at, partition, sent.offset), value))
        every += changes
        if batch == 1:
            killed_at(spec, chance.choice(["table staged", "dead letters published", "audited"]))
        report = ingest(spec, connections(), f"run-{batch}")
        model.commit(changes, 70)
        assert_like(model, view(spec))
        finding = next(f for f in report.findings() if f.check == "rule_most")
        brings = [change for change in changes if change.value != GONE]
        assert finding.facts["evaluated"] == len(brings)
        assert finding.facts["passed"] + finding.facts["failed"] == len(brings)
        assert finding.facts["failed"] == sum(change.value > 70 for change in changes)
    # What was refused counts by the rules of today, if nothing newer has come.
    eased = replace(spec, rules=at_most(77))
    letters = [change for change in every if change.order[1:] in model.letters]
    killed_at(eased, "dead letters reconciled", doing=replay_dead_letters)
    done = replay_dead_letters(eased, connections(), "again")
    model.commit(letters, 77)
    assert_like(model, view(spec))
    assert done.remaining == len(model.letters)
    relaxed = replace(spec, rules=at_most(85))
    replay(relaxed, connections(), "again", ReplayRange())
    model.commit(every, 85)
    assert_like(model, view(spec))


@pytest.mark.parametrize("write", ["upsert", exhaustive("history")])
def test_upsert_rule_validates_change_and_may_fail_or_warn(
    write: Any, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("id bigint, v bigint, w string", write=write, key=("id",),
                      deletes="soft" if write == "upsert" else "apply", ignore_null_updates=("v",))  # fmt: skip
    topic.send({"id": 1, "v": 1, "w": "a"})
    topic.send({"id": 2, "v": 2, "w": "a"})
    ingest(spec, connections(), "run-1")
    rules = (*at_most(5), RuleEntry(not_null=("v", "w")), RuleEntry(row_count=RowCount(max=4)))
    # To a check, what isn't told is null.
    rules += (RuleEntry(check="kafka_lake_tests.decode.checks:reported", on_failure="warn"),)
    ruled = replace(spec, rules=rules, evolution="freeze")
    topic.send({"id": 1, "w": "not told to be null"})
    topic.send({"id": 2, "v": 9})
    topic.send(None, key=b'{"id": 7}')
    topic.send({"id": 3, "v": 9, "w": "a"})
    report = ingest(ruled, connections(), "run-2")
    reported = {f.check: f.facts for f in report.findings() if f.is_rule}
    assert [reported["rule_not_null_v"][name] for name in ("evaluated", "failed", "null")] == [3, 0, 1]
    assert reported["rule_row_count"]["rows"] == 1
    check = reported["rule_check_reported"]
    assert (check["rows"], check["failed: v is there"]) == (1, "is not met"), "the refused ones aren't asked"
    see = view(ruled)

    def current() -> dict[int, Any]:
        found = [row for row in see.rows() if write == "upsert" or row["valid_to"] is None]
        return {row["id"]: (row["v"], row["w"]) for row in found}

    assert current() == {1: (1, "not told to be null"), 2: (2, "a")}
    letters = {(r["offset"], r["error_class"]): r["error_message"] for r in see.dead_letters()}
    assert set(letters) == {(3, "rule:most"), (5, "rule:most")}
    assert letters[3, "rule:most"].startswith("Breaks 2 rules: most (v is at most 5); not_null_w")
    topic.send({"id": 2, "v": 99, "w": "a"})
    with pytest.raises(CheckFailedError, match="rule_most: 1 of 1 rows break it"):
        ingest(replace(ruled, rules=at_most(5, on_failure="fail")), connections(), "run-3")
    assert current() == {1: (1, "not told to be null"), 2: (2, "a")}
    report = ingest(replace(ruled, rules=at_most(5, on_failure="warn")), connections(), "run-4")
    assert [f.check for f in report.findings() if f.warns] == ["rule_most"]
    assert current() == {1: (1, "not told to be null"), 2: (99, "a")}
    assert len(see.dead_letters()) == 2


@pytest.mark.exhaustive
def test_refused_change_counts_as_if_it_had_not_come(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """However the records are cut into batches. Its replay is compared by the order of changes."""
    topic = new_topic(1)
    spec = topic.spec("id bigint, at bigint, v bigint", write="upsert", key=("id",), order_by=("at",),
                      delete_when=f"v = {GONE}", rules=at_most(5))  # fmt: skip
    by_batch = replace(spec, table=f"{topic.table}_by_batch")

    def send(*changes: tuple[int, int, int]) -> None:
        for key, at, value in changes:
            topic.send({"id": key, "at": at, "v": value}, key=b'{"id": %d}' % key)
        ingest(by_batch, connections(), f"run-{changes[0]}")

    send(*((key, 10, 1) for key in range(1, 6)))
    send(*((key, 20, 9) for key in range(1, 7)))
    topic.send(None, key=b'{"id": 5}')
    # Newer than the refused change; older, and newer than the row; a delete; the tombstone, which has no order.
    send((1, 30, 2), (2, 15, 3), (4, 25, GONE))
    ingest(spec, connections(), "run")
    for table in (by_batch, spec):
        see = view(table)
        assert {row["id"]: row["v"] for row in see.rows()} == {1: 2, 2: 3, 3: 1}
        assert [row["offset"] for row in see.dead_letters()] == list(range(5, 11))
        done = replay_dead_letters(replace(table, rules=at_most(8)), connections(), "again-1", "offset = 6")
        assert (done.moved, done.remaining) == (0, 1)
        assert {row["id"]: row["v"] for row in see.rows()} == {1: 2, 2: 3, 3: 1}
        done = replay_dead_letters(replace(table, rules=at_most(9)), connections(), "again-2")
        assert (done.moved, done.remaining, see.dead_letters()) == (6, 0, [])
        assert {row["id"]: row["v"] for row in see.rows()} == {1: 2, 2: 9, 3: 9, 6: 9}
        see.assert_no_branches()


@pytest.mark.exhaustive
def test_value_not_sent_after_refused_change_is_the_row_s(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, same = new_topic(1), "__debezium_unavailable_value"
    spec = topic.spec("id bigint, v bigint, big string", write="upsert", envelope="debezium", rules=at_most(5))

    def send(op: str, lsn: int, key: int, value: int, big: str) -> None:
        after = {"id": key, "v": value, "big": big}
        topic.send(debezium(op, lsn, after, lsn - 1), key=b'{"id": %d}' % key)

    send("c", 10, 1, 1, "old")
    send("u", 20, 1, 9, "new")
    send("u", 30, 1, 2, same)
    send("c", 40, 2, 9, "new")
    send("u", 50, 2, 3, same)
    ingest(spec, connections(), "run")
    see = view(spec)
    assert {row["id"]: (row["v"], row["big"]) for row in see.rows()} == {1: (2, "old")}
    assert {row["offset"]: row["error_class"] for row in see.dead_letters()} == {
        1: "rule:most", 3: "rule:most", 4: "value_not_sent",
    }  # fmt: skip
    # The first is older than its key's row, so that nothing of it counts any more.
    replay_dead_letters(replace(spec, rules=at_most(9)), connections(), "again")
    assert {row["id"]: (row["v"], row["big"]) for row in see.rows()} == {1: (2, "old"), 2: (3, "new")}
    assert see.dead_letters() == []


@pytest.mark.exhaustive
def test_refused_change_of_a_key_leaves_the_row_of_the_old_key(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("id bigint, v bigint", write="upsert", envelope="maxwell", key=("id",), rules=at_most(5))
    about = {"database": "shop", "table": "t", "ts": 1, "xid": 2, "commit": True}
    topic.send({**about, "type": "insert", "data": {"id": 3, "v": 1}})
    topic.send({**about, "type": "update", "data": {"id": 4, "v": 9}, "old": {"id": 3, "v": 1}})
    ingest(spec, connections(), "run")
    assert {row["id"]: row["v"] for row in view(spec).rows()} == {3: 1}
    replay_dead_letters(replace(spec, rules=at_most(9)), connections(), "again")
    assert {row["id"]: row["v"] for row in view(spec).rows()} == {4: 9}
