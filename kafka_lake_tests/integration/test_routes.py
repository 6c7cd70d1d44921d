"""One topic into several tables: each record in the table of its route, once, whatever happens to the runs."""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kafka_lake.common.errors import ConfigurationError, TableError
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.gate import GateFailedError
from kafka_lake.ingest.jobs.replay import Extent
from kafka_lake.ingest.observer import Observer
from kafka_lake.ingest.route import When
from kafka_lake.ingest.rule import RuleEntry
from kafka_lake.ingest.run import ingest, replay, reset
from kafka_lake.ingest.topic_table import Route, TopicTable
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.positions import read_state
from kafka_lake_tests.conftest import NAMESPACE, Sent, Topic, View

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

NAMES = ("orders", "clicks", "audits")
KINDS = ("order", "click", "view", "refund")


class Killed(BaseException):
    """Stands for the end of a process: nothing is cleaned up after it."""


def spec_of(topic: Topic, **settings: Any) -> TopicTable:
    def to(name: str, **its: Any) -> TopicTable:
        return TopicTable(topic.name, NAMESPACE, f"{topic.table}_{name}", **its)

    routes = (
        Route(When(field="type", values=("order",)), to("orders", schema="type string, id bigint not null")),
        Route(When(field="type", values=("click", "view")), to("clicks")),
        Route(When(header="audit", values=("yes",)), to("audits", schema="id bigint")),
    )
    return TopicTable(topic.name, NAMESPACE, topic.table, **{"schema": "type string, id bigint", "routes": routes, **settings})


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
    return 3 if ("audit", b"yes") in sent.headers else 0


def assert_all_once(spec: TopicTable, ledger: Sequence[Sent], view: NewView) -> None:
    """Assert that each record with a value is once in its table, or once in that table's dead letters."""
    for number, each in enumerate(spec.tables):
        its = [sent for sent in ledger if number_of(sent) == number and sent.value is not None]
        table = view(each)
        table.assert_no_branches()
        assert table.catalog.table(each.identifier) is not None or not its
        rows = table.rows() if table.catalog.table(each.identifier) else []
        held = {(r["_kafka"]["partition"], r["_kafka"]["offset"]): r.get("id") for r in rows}
        dead = Counter((r["partition"], r["offset"]) for r in table.dead_letters())
        assert len(held) == len(rows), each.table
        assert Counter(held.keys()) + dead == Counter(sent.place for sent in its), each.table
        for sent in its:
            if sent.place in held:
                assert held[sent.place] == json.loads(sent.value or b"")["id"]
    ends = {p: max(s.offset + 1 for s in ledger if s.partition == p) for p in {s.partition for s in ledger}}
    assert {p: o for p, o in view(spec).position().items() if o} == ends


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


def test_each_record_is_in_the_table_of_its_route_once_whatever_kills_the_runs(
    new_topic: NewTopic, connections: NewConnections, view: NewView, killed_at: Callable[..., bool]
) -> None:
    topic, chance = new_topic(2), random.Random(18)
    spec = spec_of(topic)
    send_events(topic, 40, chance)
    ingest(spec, connections(), "first")
    assert_all_once(spec, topic.ledger, view)
    published = ("primary published", "dead letters published", "audited")
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
