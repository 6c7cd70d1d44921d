"""Rows that look up rows which come later: each is there once, with the row that it waited for, or too late without.

A model recomputes by hand, run by run, what the tables must hold and which records wait; PyIceberg reads both.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation

from kafka_lake.common.errors import TableError
from kafka_lake.derive import by_offset, kept_back
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import Engine
from kafka_lake.derive.record import record_of
from kafka_lake.derive.report import DeriveReport
from kafka_lake.derive.run import derive
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.jobs.replay import Extent
from kafka_lake.ingest.observer import Observer
from kafka_lake.ingest.retry import RetryPolicy
from kafka_lake.ingest.run import ingest, replay
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.maintenance.compact import compact
from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake_tests.conftest import NAMESPACE, Topic
from kafka_lake_tests.integration.test_exactly_once import Killed, at
from kafka_lake_tests.lanes import exhaustive

pytestmark = pytest.mark.integration

Place = tuple[int, int]
LOOKBACK, BEGIN = 100, 1_700_000_000
Row = tuple[int, str | None]


@dataclass
class Model:
    """A derived table as it must be: the rows of records by their offsets, and the records that wait."""

    is_inner: bool
    rows: dict[Place, Row] = field(default_factory=dict)
    waiting: set[Place] = field(default_factory=set)
    seen: int = 0


@dataclass
class World:
    """Orders that look up stores, which may come later, and a clock."""

    orders: Topic
    stores: Topic
    connections: Callable[[], Connections]
    monkeypatch: pytest.MonkeyPatch
    chance: random.Random
    now: float = BEGIN
    sent: list[tuple[Place, int, str, float]] = field(default_factory=list)
    cities: dict[str, str] = field(default_factory=dict)
    runs: int = 0

    def table(self, name: str, write: str, sql: str, source: Topic | DerivedTable, **more: Any) -> DerivedTable:
        return DerivedTable(
            table=f"{self.orders.table}_{name}", namespace=NAMESPACE, sources=(source.table,), write=write,
            sql=sql.format(o=source.table, s=self.stores.table), **more,
        )  # fmt: skip

    def waits(self, name: str, write: str, how: str, **more: Any) -> DerivedTable:
        sql = f"SELECT o.id, o.store, s.city FROM {{o}} o {how} {{s}} s ON o.store = s.store"
        stores = (self.stores.table,)
        return self.table(
            name, write, sql, self.orders, join=stores, **{"wait_for": stores, "lookback": f"{LOOKBACK}s", **more}
        )

    def order(self, store: str, age: float = 0.0) -> None:
        number, at_ = len(self.sent), self.now - age
        value = {"id": number, "store": store}
        sent = self.orders.send(value, self.chance.randrange(2), timestamp_ms=int(at_ * 1000))
        self.sent.append((sent.place, number, store, at_))

    def store(self, store: str) -> None:
        self.cities[store] = f"city of {store}"
        self.stores.send({"store": store, "city": self.cities[store]})
        ingest(self.stores.spec("store string, city string"), self.connections(), self.run_id())

    def read_orders(self) -> None:
        ingest(self.orders.spec("id bigint, store string"), self.connections(), self.run_id())

    def run_id(self) -> str:
        self.runs += 1
        return f"w-{self.runs}"

    def derive(self, spec: DerivedTable, observer: Observer | None = None, **more: Any) -> DeriveReport:
        made = self.connections()
        engine = Engine(made.catalog, made.spark, self.run_id(), observer or Observer(), RetryPolicy(attempts=1))
        return derive(spec, Engine(**{**vars(engine), "clock": lambda: self.now}), **more)

    def killed(self, spec: DerivedTable) -> None:
        def die() -> None:
            self.monkeypatch.setattr(StagingBranch, "discard", lambda self: None)
            raise Killed("staged")

        try:
            self.derive(spec, Observer(step_done=at("staged", die)))
        except Killed:
            pass
        else:
            return
        finally:
            self.monkeypatch.undo()

    def run(self, spec: DerivedTable, model: Model, again: set[Place] = frozenset()) -> None:  # type: ignore[assignment]
        """Derive a table, and compare it and its report with the model."""
        report = self.derive(spec)
        new = {place for place, *_ in self.sent[model.seen :]}
        unmatched, before = 0, set(model.waiting)
        for place, number, store, at_ in self.sent:
            if place not in new | before | again:
                continue
            model.rows.pop(place, None)
            model.waiting.discard(place)
            if store in self.cities:
                model.rows[place] = number, self.cities[store]
            elif at_ > self.now - LOOKBACK:
                model.waiting.add(place)
            else:
                unmatched += 1
                model.rows |= {} if model.is_inner else {place: (number, None)}
        if spec.write == "upsert":
            # If records are derived again, keys are computed again as a whole, with what can be looked up by now.
            looked_at = new | before | again if again else set[Place]()
            touched = {store for place, _, store, _ in self.sent if place in looked_at}
            late = {place: self.cities.get(store) for place, _, store, _ in self.sent if store in touched}
            model.rows |= {place: (model.rows[place][0], late[place]) for place in late.keys() & model.rows.keys()}
        model.seen = len(self.sent)
        assert not report.full or report.snapshot
        assert report.waiting == len(model.waiting)
        if report.snapshot is not None:
            assert report.released == len(before - model.waiting)
            assert report.unmatched == unmatched
        assert self.recorded(spec) == model.waiting
        found = [
            (row["_kafka"]["partition"], row["_kafka"]["offset"], row["id"], row["city"]) for row in self.rows(spec)
        ]
        expected = {(*place, *row) for place, row in model.rows.items()}
        if spec.write == "upsert":
            stores = {number: store for _, number, store, _ in self.sent}
            newest: dict[str, tuple[int, tuple[Any, ...]]] = {}
            for place, row in model.rows.items():
                store = stores[row[0]]
                newest[store] = max(newest.get(store, (-1, ())), (row[0], (*place, *row)))
            expected = {row for _, row in newest.values()}
        assert Counter(found) == Counter(expected)

    def recorded(self, spec: DerivedTable) -> set[Place]:
        table = self.connections().catalog.table(spec.identifier)
        assert table is not None
        record = record_of(table)
        assert record is not None
        return {(each.partition, offset) for each in record.waiting.ranges for offset in range(each.start, each.end)}

    def rows(self, spec: DerivedTable) -> list[dict[str, Any]]:
        table = self.connections().catalog.table(spec.identifier)
        assert table is not None
        found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
        return found


@pytest.mark.parametrize("rounds", [3, *(exhaustive(rounds) for rounds in (12, 13, 14, 15))])
@pytest.mark.timeout(1800)
def test_each_row_is_there_once_with_what_it_waited_for_or_without_it_when_it_is_too_late(
    rounds: int,
    new_topic: Callable[..., Topic],
    connections: Callable[[], Connections],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(rounds)
    world = World(new_topic(2), new_topic(1), connections, monkeypatch, chance)
    # Its own runs compact it, too.
    kept = world.waits("kept", "append", "LEFT JOIN", maintenance=Maintenance(compact_every=3))
    inner = world.waits("inner", "append", "JOIN")
    newest = world.waits("newest", "upsert", "LEFT JOIN", key={"store": "store"}, order_by=("id",))
    below = world.table(
        "below", "aggregate", "SELECT store, count(city) AS n FROM {o} GROUP BY store", kept, key={"store": "store"}
    )
    chosen = (kept, inner, newest) if rounds > 3 else (kept,)
    tables = {spec.table: (spec, Model(spec is inner)) for spec in chosen}
    world.store("s0")
    for number in range(rounds):
        stores = [f"s{each}" for each in range(3 + number)]
        for _ in range(6):
            world.order(chance.choice(stores), chance.choice([0.0, 0.0, 30.0, LOOKBACK + 5.0]))
        world.read_orders()
        if missing := [each for each in stores if each not in world.cities and chance.random() < 0.4]:
            world.store(missing[0])
        replayed = set[Place]()
        if number % 3 == 2:
            replay(world.orders.spec("id bigint, store string"), connections(), world.run_id(), Extent("0:1", "0:6"))
            replayed = {place for place, *_ in world.sent if place[0] == 0 and 1 <= place[1] < 6}
        if number % 4 == 1:
            compact(connections().spark(), connections().catalog, chance.choice([world.orders.spec(), kept]).identifier)
        for spec, model in tables.values():
            # As if there were more of them than conditions may be.
            monkeypatch.setattr(by_offset, "_MOST_CONDITIONS", chance.choice([1, 64]))
            if chance.random() < 0.3 and number:
                world.killed(spec)
            world.run(spec, model, replayed)
        world.now += chance.choice([1, 40, 80])
        world.derive(below)
        found = {row["store"]: row["n"] for row in world.rows(below)}
        there = Counter(row["store"] for row in world.rows(kept) if row["city"] is not None)
        assert found == {row["store"]: there[row["store"]] for row in world.rows(kept)}
    world.now += 2 * LOOKBACK
    for spec, model in tables.values():
        world.run(spec, model)
        assert not model.waiting
        assert world.derive(spec).snapshot is None
    table = connections().catalog.table(kept.identifier)
    assert table is not None
    operations = [each.summary.operation for each in table.metadata.snapshots if each.summary is not None]
    assert Operation.REPLACE in operations
    # Without the setting nothing waits any more; a rebuild asks anew.
    world.order("none yet")
    world.read_orders()
    world.run(kept, tables[kept.table][1])
    assert len(world.recorded(kept)) == 1
    report = world.derive(DerivedTable(**{**vars(kept), "wait_for": (), "lookback": None}))
    assert (report.released, world.recorded(kept), len(world.rows(kept))) == (1, set(), len(world.sent))
    report = world.derive(kept, rebuild=True)
    assert (report.waiting, len(world.rows(kept))) == (1, len(world.sent) - 1)
    monkeypatch.setattr(kept_back, "MOST_RANGES", 0)
    with pytest.raises(TableError, match=r"more than 0 places of the topic would wait for .*shorter lookback"):
        world.derive(kept, rebuild=True)
