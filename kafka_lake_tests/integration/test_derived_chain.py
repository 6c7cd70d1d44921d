"""Chaos over a chain: a topic, the tables of its routes, tables of those, a table of that; the ledger at each level."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.derived.engine import Engine
from kafka_lake.derived.run import derive
from kafka_lake.errors import TableError
from kafka_lake.ingest.run import ingest, replay, reset
from kafka_lake.maintenance.procedures import compact
from kafka_lake.runtime.context import Connections, Observer, RetryPolicy
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import NAMESPACE, Sent, Topic
from kafka_lake_tests.integration.test_exactly_once import Killed, at
from kafka_lake_tests.integration.test_routes import assert_all_once, killed_at, number_of, send_events, spec_of

__all__ = ["killed_at"]

pytestmark = pytest.mark.integration

Row = Mapping[str, Any]
Place = tuple[int, int]
INGEST_STEPS = ("planned", "audited", "table published", "dead letters published")
DERIVE_STEPS = ("planned", "staged")


def chain_of(topic: Topic) -> list[DerivedTable]:
    """Return tables of one route, of two of the same topic, and what is below the first."""

    def table(name: str, write: str, sql: str, *sources: str, **more: Any) -> DerivedTable:
        names = {source: f"{topic.table}_{source}" for source in (*sources, name)}
        return DerivedTable(
            table=names[name],
            namespace=NAMESPACE,
            sources=tuple(names[source] for source in sources),
            write=write,
            sql=sql.format(**names),
            **more,
        )

    both = "SELECT id, 'order' AS kind, _kafka FROM {orders} UNION ALL SELECT id, type, _kafka FROM {clicks}"
    return [
        table("even", "append", "SELECT id, type FROM {orders} WHERE id % 2 = 0", "orders"),
        table("both", "replace", both, "orders", "clicks"),
        table("newest", "upsert", "SELECT type, id FROM {clicks}", "clicks", key={"type": "type"}, order_by=("id",)),
        table(
            "tens", "aggregate", "SELECT id % 10 AS ten, count(*) AS n, sum(id) AS total FROM {even} GROUP BY ALL",
            "even", key={"ten": "id % 10"},
        ),
        table("all", "replace", "SELECT sum(n) AS n, sum(total) AS total FROM {tens}", "tens"),
    ]  # fmt: skip


@dataclass
class Chain:
    """A topic with routes, the tables below it, and what happens to them."""

    topic: Topic
    spec: TopicTable
    connections: Callable[[], Connections]
    chance: random.Random
    monkeypatch: pytest.MonkeyPatch
    runs: int = 0
    happened: list[str] = field(default_factory=list)

    @property
    def tables(self) -> list[DerivedTable]:
        return chain_of(self.topic)

    def engine(self, observer: Observer | None = None) -> Engine:
        made = self.connections()
        self.runs += 1
        return Engine(made.catalog, made.spark, f"chain-{self.runs}", observer or Observer(), RetryPolicy(attempts=1))

    def derived(self, spec: DerivedTable, observer: Observer | None = None) -> None:
        """Derive a table; what nobody can tell any more is computed again."""
        try:
            derive(spec, self.engine(observer))
        except TableError as error:
            if "kafka-lake rebuild" not in str(error):
                raise
            self.happened.append(f"{spec.table} rebuilt")
            derive(spec, self.engine(), rebuild=True)

    def killed(self, spec: DerivedTable, step: str) -> None:
        """Let a run die at a step, if it comes to it, and clean up nothing."""

        def die() -> None:
            self.monkeypatch.setattr(StagingBranch, "discard", lambda self: None)
            raise Killed(step)

        try:
            self.derived(spec, Observer(step_done=at(step, die)))
        except Killed:
            self.happened.append(f"{spec.table} killed when {step}")
        finally:
            self.monkeypatch.undo()

    def overtaken(self, spec: DerivedTable) -> None:
        """Let another run do the same while one has its rows staged."""
        self.derived(spec, Observer(step_done=at("staged", lambda: self.derived(spec))))

    def maintained(self) -> None:
        """Compact a table, or expire all snapshots of it but one."""
        every = [table.identifier for table in (*self.spec.tables, *self.tables)]
        identifier, made = self.chance.choice(every), self.connections()
        if made.catalog.table(identifier) is None:
            return
        self.happened.append(f"{identifier[1]} maintained")
        if self.chance.random() < 0.5:
            compact(made.spark(), made.catalog, identifier)
        else:
            call = made.catalog.call(
                "expire_snapshots", identifier, retain_last="1", older_than="TIMESTAMP '2100-01-01 00:00:00'"
            )
            made.spark().sql(call).collect()

    def rows(self, name: str) -> list[dict[str, Any]]:
        table = self.connections().catalog.table((NAMESPACE, f"{self.topic.table}_{name}"))
        assert table is not None, name
        found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
        return found

    def assert_as_the_ledger(self) -> None:
        """Compare each table with what a plain reading of all records gives."""
        rows = list(rows_of(self.topic.ledger))
        orders = {place: row["id"] for number, place, row in rows if number == 1}
        clicks = {place: row for number, place, row in rows if number == 2}
        even = {place: number for place, number in orders.items() if number % 2 == 0}
        reported = self.happened
        assert Counter(map(place_and_id, self.rows("even"))) == Counter(even.items()), reported
        both = Counter([*orders.items(), *((place, row["id"]) for place, row in clicks.items())])
        assert Counter(map(place_and_id, self.rows("both"))) == both, reported
        newest = {kind: max(row["id"] for row in clicks.values() if row["type"] == kind) for kind in kinds_of(clicks)}
        assert Counter((row["type"], row["id"]) for row in self.rows("newest")) == Counter(newest.items()), reported
        tens: dict[int, list[int]] = {}
        for number in even.values():
            tens.setdefault(number % 10, []).append(number)
        expected = {ten: (len(numbers), sum(numbers)) for ten, numbers in tens.items()}
        found = self.rows("tens")
        assert {row["ten"]: (row["n"], row["total"]) for row in found} == expected, reported
        assert len(found) == len(expected), reported
        (row,) = self.rows("all")
        assert (row["n"], row["total"]) == (len(even), sum(even.values())), reported


def rows_of(ledger: list[Sent]) -> Iterator[tuple[int, Place, Row]]:
    """Yield the rows of the tables of routes: number of the table, partition and offset, values."""
    for sent in ledger:
        try:
            row = json.loads(sent.value or b"")
        except ValueError:
            continue
        if isinstance(row["id"], int):
            yield number_of(sent), sent.place, row


def place_and_id(row: Row) -> tuple[Place, int]:
    return (row["_kafka"]["partition"], row["_kafka"]["offset"]), row["id"]


def kinds_of(rows: Mapping[Place, Row]) -> set[str]:
    return {row["type"] for row in rows.values()}


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_derived_chain_matches_ledger_after_random_faults(
    new_topic: Callable[..., Topic],
    connections: Callable[[], Connections],
    view: Any,
    killed_at: Callable[..., bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, chance = new_topic(2), random.Random(1)
    spec = spec_of(topic)
    chain = Chain(topic, spec, connections, chance, monkeypatch)
    send_events(topic, 30, chance)
    ingest(spec, connections(), "first")
    for item in chain.tables:
        chain.killed(item, "table created")
        chain.derived(item)
    chain.assert_as_the_ledger()
    for number in range(5):
        send_events(topic, 10, chance)
        steps = [*INGEST_STEPS, *(f"{item.identifier[0]}.{item.table}: table published" for item in spec.tables[1:])]
        chain.happened.append(f"ingest killed: {killed_at(spec, chance.choice(steps))}")
        for item in chain.tables:
            if chance.random() < 0.5:
                chain.killed(item, chance.choice(DERIVE_STEPS))
            elif chance.random() < 0.5:
                chain.overtaken(item)
            if chance.random() < 0.4:
                chain.maintained()
        if chance.random() < 0.5:
            chain.happened.append("replayed")
            replay(spec, connections(), f"replay-{number}", ReplayRange("0:2,1:1", "0:9,1:6"))
        elif chance.random() < 0.5:
            chain.happened.append("reset")
            reset(spec, connections(), f"reset-{number}", "0:5")
            if chance.random() < 0.5:
                chain.derived(chance.choice(chain.tables))
        ingest(spec, connections(), f"whole-{number}")
        for item in chain.tables:
            chain.derived(item)
        assert_all_once(spec, topic.ledger, view)
        chain.assert_as_the_ledger()
    assert all(derive(table, chain.engine()).snapshot is None for table in chain.tables), "nothing is new"
    assert any("killed when" in event for event in chain.happened)
