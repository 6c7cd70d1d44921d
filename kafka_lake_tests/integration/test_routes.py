"""One topic into several tables: each record in the table of its route, once, whatever happens to the runs."""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest, replay, reset
from kafka_lake.ingest.topic_runner import LeftBehindError
from kafka_lake.runtime.commit import CheckFailedError
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.rule import RuleEntry
from kafka_lake.spec.topic_table import Route, TopicTable, When
from kafka_lake_tests.conftest import NAMESPACE, Sent, Topic, View
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

NAMES = ("orders", "clicks", "audits")
KINDS = ("order", "click", "view", "refund", "audit")


class Killed(BaseException):
    """Stands for the end of a process: nothing is cleaned up after it."""


def spec_of(topic: Topic, **settings: Any) -> TopicTable:
    def to(name: str, **its: Any) -> TopicTable:
        return TopicTable(topic.name, NAMESPACE, f"{topic.table}_{name}", **its)

    routes = (
        Route(When(field="type", values=("order",)), to("orders", schema="type string, id bigint not null")),
        Route(When(field="type", values=("click", "view")), to("clicks")),
        Route(When(field="type", values=("audit",)), to("audits", schema="id bigint")),
    )
    return TopicTable(
        topic.name,
        NAMESPACE,
        topic.table,
        **{"schema": "type string, id bigint", "routes": routes, **settings},
    )


def send_events(topic: Topic, count: int, chance: random.Random, partitions: int = 2) -> None:
    """Produce events of each kind, some broken, some without a value, some with a header."""
    for _ in range(count):
        number = len(topic.ledger)
        partition, headers = chance.randrange(partitions), [("audit", b"yes")] if chance.random() < 0.2 else []
        value: object = {"type": chance.choice(KINDS), "id": number}
        if (drawn := chance.random()) < 0.1:
            value = b'{"broken %d' % number
        elif drawn < 0.2:
            value = {"type": chance.choice(("order", "refund")), "id": "no number"}
        elif drawn < 0.25:
            value = None
        topic.send(value, partition, headers=headers)


def number_of(sent: Sent) -> int:
    """Return the number of the table that a record is for, by a reading of the routes that is not the code's."""
    try:
        kind = json.loads(sent.value or b"")["type"]
    except ValueError:
        kind = None
    if kind == "order":
        return 1
    if kind in ("click", "view"):
        return 2
    return 3 if kind == "audit" else 0


def assert_all_once(spec: TopicTable, ledger: Sequence[Sent], view: NewView) -> None:
    """Assert that each record with a value is once in its table, or once in that table's dead letters."""
    ends = {p: max(s.offset + 1 for s in ledger if s.partition == p) for p in {s.partition for s in ledger}}
    for number, table_spec in enumerate(spec.tables):
        its = [sent for sent in ledger if number_of(sent) == number and sent.value is not None]
        table = view(table_spec)
        table.assert_no_branches()
        rows = table.rows()
        held = {(r["_kafka"]["partition"], r["_kafka"]["offset"]): r.get("id") for r in rows}
        dead = Counter((r["partition"], r["offset"]) for r in table.dead_letters())
        assert len(held) == len(rows), table_spec.table
        assert Counter(held.keys()) + dead == Counter(sent.place for sent in its), table_spec.table
        for sent in its:
            if sent.place in held:
                assert held[sent.place] == json.loads(sent.value or b"")["id"]
        assert {p: o for p, o in table.position().items() if o} == ends, table_spec.table


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch, connections: NewConnections) -> Callable[..., bool]:
    def run(spec: TopicTable, step: str, doing: Callable[..., Any] = ingest, *arguments: Any) -> bool:
        """Return whether the run came as far as that step, and so was killed."""

        def die(done: str) -> None:
            if done == step:
                # A dead process discards and drops nothing.
                monkeypatch.setattr(StagingBranch, "discard", lambda self: None)
                monkeypatch.setattr(StagingBranch, "drop", lambda self: None)
                raise Killed(step)

        try:
            doing(spec, connections(), "killed", *arguments, observer=Observer(step_done=die))
        except Killed:
            return True
        finally:
            monkeypatch.undo()
        return False

    return run


@pytest.mark.exhaustive
def test_routed_records_come_once_after_kills_at_each_step(
    new_topic: NewTopic, connections: NewConnections, view: NewView, killed_at: Callable[..., bool]
) -> None:
    topic, chance = new_topic(2), random.Random(18)
    spec = spec_of(topic)
    send_events(topic, 40, chance)
    ingest(spec, connections(), "first")
    assert_all_once(spec, topic.ledger, view)
    published = ("table published", "dead letters published", "audited")
    steps = [f"{NAMESPACE}.{topic.table}_{name}: {step}" for name in NAMES for step in published[:2]]
    steps = [*steps[:-1], f"{NAMESPACE}.{topic.table}_clicks: audited", *published]
    chance.shuffle(steps)
    killed = 0
    for step in steps:
        send_events(topic, 12, chance)
        killed += killed_at(spec, step)
    assert killed >= 6
    ingest(spec, connections(), "last")
    assert_all_once(spec, topic.ledger, view)


@pytest.mark.exhaustive
def test_of_two_racing_runs_each_record_comes_once(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, chance = new_topic(2), random.Random(7)
    spec = spec_of(topic)
    send_events(topic, 20, chance)
    ingest(spec, connections(), "first")
    for step in ("audited", f"{NAMESPACE}.{topic.table}_clicks: table published", "planned"):
        send_events(topic, 12, chance)
        others: list[Any] = []

        def overtake(done: str, step: str = step, others: list[Any] = others) -> None:
            if done == step and not others:
                send_events(topic, 4, chance)
                others.append(threading.Thread(target=lambda: ingest(spec, connections(), "overtaker")))
                others[0].start()
                others[0].join(120)

        ingest(spec, connections(), "overtaken", observer=Observer(step_done=overtake))
        assert others
        assert_all_once(spec, topic.ledger, view)


@pytest.mark.exhaustive
def test_a_race_for_the_first_records_of_a_table(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, chance = new_topic(2), random.Random(11)
    spec = spec_of(topic)
    send_events(topic, 20, chance)
    others: list[str] = []

    def overtake(done: str) -> None:
        if done == f"{NAMESPACE}.{topic.table}_orders: table created" and not others:
            others.append(done)
            ingest(spec, connections(), "overtaker")

    ingest(spec, connections(), "overtaken", observer=Observer(step_done=overtake))
    assert others
    assert_all_once(spec, topic.ledger, view)


@pytest.mark.exhaustive
def test_each_table_is_reset_by_itself_and_swallows_nothing(
    new_topic: NewTopic, connections: NewConnections, view: NewView, killed_at: Callable[..., bool]
) -> None:
    topic, chance = new_topic(1), random.Random(3)
    spec = spec_of(topic)
    send_events(topic, 20, chance, 1)
    ingest(spec, connections(), "first")
    send_events(topic, 20, chance, 1)

    def reset_all(to: str) -> None:
        for table in spec.tables:
            reset(table, connections(), f"to {to}", to)

    # What is skipped is in no table.
    reset_all("0:40")
    send_events(topic, 20, chance, 1)
    ingest(spec, connections(), "beyond")
    assert_all_once(spec, [sent for sent in topic.ledger if not 20 <= sent.offset < 40], view)
    reset_all("0:10")
    assert all(r["_kafka"]["offset"] < 10 for table in spec.tables for r in view(table).rows())
    ingest(spec, connections(), "again")
    assert_all_once(spec, topic.ledger, view)
    # One table that is set back reads again what it has lost; the others have theirs.
    reset(spec.tables[1], connections(), "one", "0:5")
    ingest(spec, connections(), "last")
    assert_all_once(spec, topic.ledger, view)


def test_a_table_added_later_has_the_topic_from_its_beginning(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, chance = new_topic(2), random.Random(5)
    spec = spec_of(topic)
    before = spec_of(topic, routes=spec.routes[:1])
    send_events(topic, 30, chance)
    ingest(before, connections(), "first")
    clicks = view(spec.tables[2])
    assert clicks.catalog.table(clicks.spec.identifier) is None
    moved = sum(row["type"] in ("click", "view") for row in view(spec).rows())
    assert moved
    ingest(spec, connections(), "with clicks")
    assert len(clicks.rows()) == sum(number_of(sent) == 2 and sent.value is not None for sent in topic.ledger)
    assert sum(row["type"] in ("click", "view") for row in view(spec).rows()) == moved, "its position is beyond them"
    # What the other table had of them before goes with a replay.
    replay(spec, connections(), "replay", ReplayRange())
    assert_all_once(spec, topic.ledger, view)


def test_refusing_table_keeps_position_while_rest_continues(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = spec_of(topic)
    (orders, *others) = spec.routes
    rules = (RuleEntry(expression="id < 100", name="small", on_failure="fail"),)
    strict = replace(orders.to, rules=rules)
    spec = spec_of(topic, routes=(Route(orders.when, strict), *others))
    for number in (1, 2):
        for kind in ("order", "click", "refund"):
            topic.send({"type": kind, "id": number})
    ingest(spec, connections(), "first")
    topic.send({"type": "click", "id": 3})
    topic.send({"type": "order", "id": 1000})
    warned: list[str] = []
    for run in range(2):
        topic.send({"type": "refund", "id": 4 + run})
        with pytest.raises(LeftBehindError, match=f"table {NAMESPACE}.{strict.table}: rule_small") as left:
            ingest(spec, connections(), f"refused-{run}", observer=Observer(warn=warned.append))
        name = f"{NAMESPACE}.{strict.table}"
        assert list(left.value.errors) == [name]
        assert isinstance(left.value.errors[name], CheckFailedError)
        assert left.value.report.total("rows") == 1
    assert any(f"Table {NAMESPACE}.{strict.table} stops" in message for message in warned)
    assert [sorted(view(table).ids()) for table in spec.tables[:3]] == [[1, 2, 4, 5], [1, 2], [1, 2, 3]]
    behind, ahead = view(strict).position()[0], view(spec).position()[0]
    assert (behind, ahead) == (6, len(topic.ledger))
    # Mended, it catches up: nothing is missing, and nothing comes to the others twice.
    ingest(spec_of(topic), connections(), "mended")
    assert_all_once(spec_of(topic), topic.ledger, view)


def test_odd_values_are_routed_as_documented(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic(1)

    def to(name: str, **its: Any) -> TopicTable:
        return TopicTable(topic.name, NAMESPACE, f"{topic.table}_{name}", **{"schema": "n int", **its})

    routes = (
        Route(When(field="type", values=("1", "true", "größe")), to("plain")),
        Route(When(field="source.table", values=("t",)), to("nested")),
        Route(When(header="kind", values=("h",)), to("header")),
        Route(When(sql="length(value) > 1000"), to("long")),
        Route(
            When(field="op", values=("u", "d")),
            to("keyed", write="upsert", key=("n",), delete_when="op = 'd'", schema="n int, op string"),
        ),
    )
    sent = [
        (b'{"n":0,"type":1}', "plain"),
        (b'{"n":1,"type":"1"}', "plain"),
        (b'{"n":2,"type":1.0}', ""),
        (b'{"n":3,"type":true}', "plain"),
        ('{"n":4,"type":"größe"}'.encode(), "plain"),
        (b'{"n":5,"type":"gr\\u00f6\\u00dfe"}', "plain"),
        (b'{"n":6,"type":null}', ""),
        (b'{"n":7,"type":{"a":1}}', ""),
        (b'{"n":8,"type":["1"]}', ""),
        (b'{"n":9,"source":{"table":"t"}}', "nested"),
        (b'{"n":10,"source.table":"t"}', ""),
        (b'{"n":11,"Type":"1"}', ""),
        (b'{"n":12,"type":" 1"}', ""),
        (b'{"n":13,"x":"' + b"x" * 1000 + b'"}', "long"),
        (b'[{"type":"1"}]', ""),
        (b'"1"', ""),
        (b"", ""),
        (b"\xff\xfe", ""),
        (b'{"n":14,"op":"u"}', "keyed"),
        (b'{"n":15,"op":"u"}', "keyed"),
        (b'{"n":14,"op":"d"}', "keyed"),
    ]
    for value, _ in sent:
        topic.send(value)
    for headers, table in (
        ([("kind", b"h")], "header"),
        ([("kind", b"x"), ("kind", b"h")], "header"),
        ([("kind", b"h"), ("kind", b"x")], ""),
        ([("kind", None)], ""),
        ([("Kind", b"h")], ""),
    ):
        topic.send({"n": len(sent)}, headers=headers)
        sent.append((b"{}", table))
    own = [topic.send({"n": len(sent) + more}, headers=[("own", b"yes")]).offset for more in range(2)]
    spec = topic.spec("n int", where=When(header="own", values=("yes",)), routes=routes)
    done = ingest(spec, connections(), "all")
    assert sorted(row["_kafka"]["offset"] for row in view(spec).rows()) == own
    for route in routes[:-1]:
        expected = [n for n, (_, name) in enumerate(sent) if name and route.to.table.endswith(f"_{name}")]
        assert sorted(row["_kafka"]["offset"] for row in view(route.to).rows()) == expected, route.to.table
    assert [(row["n"], row["op"]) for row in view(routes[-1].to).rows()] == [(15, "u")]
    letters = view(spec).dead_letters()
    assert sorted(row["offset"] for row in letters) == [n for n, (_, name) in enumerate(sent) if not name]
    assert {row["error_class"] for row in letters} == {"unmatched"}
    assert sum(done.of(item.identifier).total("records") for item in spec.tables) == len(sent) + len(own)
    # Others are counted, and in no table.
    topic.send({"n": 99})
    done = ingest(replace(spec, unmatched="ignore"), connections(), "ignored")
    assert (done.total("ignored"), done.total("records"), done.total("dead_letters")) == (1, 0, 0)
    offset = topic.send({"n": 100}).offset
    topic.send({"n": 101, "type": "1"})
    with pytest.raises(LeftBehindError, match=f"no table takes the record at partition 0, offset {offset}"):
        ingest(replace(spec, unmatched="fail"), connections(), "failed")
    assert 101 in {row["n"] for row in view(routes[0].to).rows()}
    assert view(spec).position() == {0: offset}
    wrong = topic.spec("n int", routes=(Route(When(sql="no_such_column = 1"), to("wrong")),))
    topic.send({"n": 100})
    with pytest.raises(KafkaLakeError, match=r"no_such_column.*isn't a condition on a record"):
        ingest(wrong, connections(), "wrong")


@pytest.mark.parametrize("more", [False, exhaustive(True)])
def test_a_record_is_in_each_table_that_takes_it(
    more: bool, new_topic: NewTopic, connections: NewConnections, view: NewView, killed_at: Callable[..., bool]
) -> None:
    topic, chance = new_topic(2), random.Random(9)
    takes: dict[str, tuple[When, Callable[[Sent], bool]]] = {
        "orders": (When(field="type", values=("order",)), lambda sent: number_of(sent) == 1),
        "even": (When(sql="offset % 2 = 0"), lambda sent: sent.offset % 2 == 0),
        "audits": (When(header="audit", values=("yes",)), lambda sent: ("audit", b"yes") in sent.headers),
        "third": (When(sql="offset % 3 = 0"), lambda sent: sent.offset % 3 == 0),
    }

    def spec_for(*names: str, **settings: Any) -> TopicTable:
        columns = "type string, id bigint"
        to = {name: TopicTable(topic.name, NAMESPACE, f"{topic.table}_{name}", schema=columns) for name in names}
        routes = tuple(Route(takes[name][0], to[name]) for name in names)
        return topic.spec(columns, routes=routes, **settings)

    def assert_in_each(spec: TopicTable, *names: str, others: bool = True) -> None:
        known = [sent for sent in topic.ledger if sent.value is not None]
        expected = {name: [sent for sent in known if takes[name][1](sent)] for name in names}
        left = [sent for sent in known if not any(takes[name][1](sent) for name in names)] if others else []
        for table_spec, its in zip(spec.tables, (left, *expected.values()), strict=True):
            rows, letters = view(table_spec).rows(), view(table_spec).dead_letters()
            found = [(r["_kafka"]["partition"], r["_kafka"]["offset"]) for r in rows]
            found += [(r["partition"], r["offset"]) for r in letters]
            assert sorted(found) == sorted(sent.place for sent in its), table_spec.table

    names = ("orders", "even", "audits")
    spec = spec_for(*names)
    send_events(topic, 30, chance)
    done = ingest(spec, connections(), "first")
    assert_in_each(spec, *names)
    assert sum(done.of(table.identifier).total("records") for table in spec.tables) > 30
    if not more:
        return
    # Killed when one table has its records, and the others don't.
    send_events(topic, 12, chance)
    assert killed_at(spec, f"{NAMESPACE}.{topic.table}_even: table published")
    send_events(topic, 6, chance)
    ingest(spec, connections(), "last")
    assert_in_each(spec, *names)
    # Another route, and one less: a replay moves rows and dead letters, and leaves those that others have besides.
    changed = spec_for("orders", "third", "audits")
    ingest(changed, connections(), "third")
    replay(changed, connections(), "replay", ReplayRange())
    assert_in_each(changed, "orders", "third", "audits")
    # What a route takes is not ignored, however often it is taken.
    send_events(topic, 6, chance)
    own = When(sql="false")
    done = ingest(spec_for("even", where=own, unmatched="ignore"), connections(), "ignored")
    assert done.total("ignored") == sum(sent.offset % 2 for sent in topic.ledger[-6:])


@pytest.mark.exhaustive
def test_a_table_that_was_set_back_or_dropped_reads_again(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    orders = TopicTable(topic.name, NAMESPACE, f"{topic.table}_orders", schema="id bigint")
    spec = topic.spec("id bigint", routes=(Route(When(field="type", values=("order",)), orders),))
    for number in range(2):
        topic.send({"type": "order", "id": number})
        topic.send({"type": "refund", "id": number})
        ingest(spec, connections(), f"run-{number}")
    side = view(orders)
    (first, *_) = [snapshot.snapshot_id for snapshot in side.table.metadata.snapshots if snapshot.parent_snapshot_id]
    connections().spark().sql(side.call("rollback_to_snapshot", snapshot_id=str(first)))
    assert side.ids() == [0]
    topic.send({"type": "order", "id": 2})
    ingest(spec, connections(), "after a rollback")
    assert (side.ids(), view(spec).ids()) == ([0, 1, 2], [0, 1])
    side.catalog.pyiceberg.drop_table(orders.identifier)
    ingest(spec, connections(), "after a drop")
    assert (side.ids(), view(spec).ids()) == ([0, 1, 2], [0, 1])

    # A record that can't be routed is a dead letter of the table without a condition.
    topic.send({"type": "order", "id": 3}, key=b"5")
    big = TopicTable(topic.name, NAMESPACE, f"{topic.table}_big", schema="id bigint")
    raises = Route(When(sql="cast(concat(string(key), 'x') as int) > 0"), big)
    ingest(topic.spec("id bigint", routes=(raises, *spec.routes)), connections(), "raises")
    assert side.ids() == [0, 1, 2]
    # One table may have a condition, too.
    refunds = TopicTable(topic.name, NAMESPACE, f"{topic.table}_refunds", schema="id bigint", unmatched="ignore")
    done = ingest(replace(refunds, where=When(field="type", values=("refund",))), connections(), "one table")
    assert (view(refunds).ids(), done.total("ignored")) == ([0, 1], 4)
    (letter,) = view(spec).dead_letters()
    assert (letter["offset"], letter["error_class"]) == (5, "undecodable")


@pytest.mark.exhaustive
def test_a_table_without_records_is_not_read_for_again(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = spec_of(topic, max_records_per_commit=3)
    for number in range(8):
        topic.send({"type": "order", "id": number})
    done = ingest(spec, connections(), "first")
    clicks = spec.tables[2]
    assert view(clicks).position() == {0: 8}
    # Three commits have orders. The other tables begin with the first, and keep how far they are at the end.
    assert [len(done.of(table.identifier).commits) for table in spec.tables] == [2, 3, 2, 2]
    assert done.of(clicks.identifier).total("records") == 0
    before = view(clicks).fingerprint()
    ingest(spec, connections(), "nothing new")
    assert view(clicks).fingerprint() == before
    # Its first record brings the columns, which may be frozen from then on.
    topic.send({"type": "click", "id": 8})
    frozen = tuple(replace(route, to=replace(route.to, evolution="freeze")) for route in spec.routes)
    ingest(replace(spec, routes=frozen), connections(), "frozen")
    assert [(row["type"], row["id"]) for row in view(clicks).rows()] == [("click", 8)]
