"""Tables from tables: whatever happens to the upstream table, a derived one is what its query gives for it."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster import ResourceDefinition

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import ancestors, head_of
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.derived.engine import DeriveReport, Engine
from kafka_lake.derived.run import derive
from kafka_lake.errors import TableError
from kafka_lake.ingest.run import ingest, replay, replay_dead_letters
from kafka_lake.maintenance.procedures import compact
from kafka_lake.orchestration.assets import Presentation
from kafka_lake.orchestration.derived_assets import build_derived_asset
from kafka_lake.orchestration.keys import op_name
from kafka_lake.orchestration.resources import CatalogResource, SparkResource
from kafka_lake.runtime.context import Connections, Observer, RetryPolicy
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.rule import Range, RowCount, RuleEntry
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import NAMESPACE, Topic
from kafka_lake_tests.integration.test_exactly_once import Killed, at

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
STRICT = "id bigint, store string, total double not null, at timestamp"
LOOSE = STRICT.replace(" not null", "")
WITH_MORE = LOOSE + ", more string"
RAISED = "kafka_lake_tests.integration.transforms:raised"
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class World:
    """A topic, tables derived from it, and what both must hold."""

    topic: Topic
    connections: NewConnections
    spec: TopicTable
    random: random.Random
    sent: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    raised: set[tuple[int, int]] = field(default_factory=set)
    runs: int = 0

    def send(self, count: int) -> None:
        """Send orders, some of them late, some without a store, some that are dead letters for now."""
        for _ in range(count):
            number = len(self.sent)
            at_ = START + timedelta(minutes=self.random.choice([number * 7, 5, 65]))
            store = self.random.choice(["s0", "s1", "S1", None])
            total = self.random.choice([None, 0.5, float(number)])
            partition = self.random.randrange(2)
            value = {"id": number, "store": store, "total": total, "at": at_.isoformat()}
            sent = self.topic.send(value, partition)
            self.sent[sent.place] = {"id": number, "store": store, "total": total, "at": at_}

    def rows(self) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
        for place, row in self.sent.items():
            if row["total"] is None and "not null" in str(self.spec.schema):
                continue
            total = row["total"]
            yield place, {**row, "total": total + 1000 if place in self.raised and total is not None else total}

    def engine(self, observer: Observer | None = None) -> Engine:
        made = self.connections()
        self.runs += 1
        return Engine(made.catalog, made.spark, f"d-{self.runs}", observer or Observer(), RetryPolicy(attempts=1))

    def derive(self, spec: DerivedTable, **more: Any) -> DeriveReport:
        return derive(spec, self.engine(), **more)

    def table(self, spec: DerivedTable | TopicTable) -> list[dict[str, Any]]:
        table = self.connections().catalog.table(spec.identifier)
        assert table is not None
        found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
        return found

    def snapshots(self, spec: DerivedTable | TopicTable) -> int:
        table = self.connections().catalog.table(spec.identifier)
        assert table is not None
        return len(list(ancestors(table, head_of(table))))

    def branches(self, spec: DerivedTable) -> set[str]:
        table = self.connections().catalog.table(spec.identifier)
        assert table is not None
        return set(table.metadata.refs)


@pytest.fixture
def world(new_topic: NewTopic, connections: NewConnections) -> World:
    topic = new_topic(2)
    return World(topic, connections, topic.spec(STRICT), random.Random(7))


def orders(world: World, kind: str, write: str, sql: str, **more: Any) -> DerivedTable:
    source = more.pop("source", world.topic.table)
    return DerivedTable(
        table=f"{world.topic.table}_{kind}",
        namespace=NAMESPACE,
        sources=(source,),
        write=write,
        sql=sql.format(source=source),
        **more,
    )


def big(world: World) -> DerivedTable:
    return orders(world, "big", "append", "SELECT id, store, total, at FROM {source} WHERE id % 4 <> 3")


def hourly(world: World, source: str, hour: str = "date_trunc('hour', at)") -> DerivedTable:
    return orders(
        world, "hourly" + source[-4:], "aggregate",
        f"SELECT {hour} AS hour, store, sum(total) AS revenue, count(*) AS orders FROM {{source}} GROUP BY ALL",
        key={"hour": hour, "store": "store"}, source=source,
    )  # fmt: skip


def newest(world: World) -> DerivedTable:
    sql = "SELECT * EXCEPT (at) FROM {source}"
    return orders(world, "newest", "upsert", sql, key={"store": "store"}, order_by=("total",))


def check(world: World, specs: Sequence[DerivedTable]) -> None:
    """Compare derived tables with what a plain computation of all records gives."""
    every = dict(world.rows())
    kept = {place: row for place, row in every.items() if row["id"] % 4 != 3}
    for spec in specs:
        rows = world.table(spec)
        if spec.write == "append":
            assert Counter((r["_kafka"]["partition"], r["_kafka"]["offset"]) for r in rows) == Counter(kept.keys())
            found = {(r["_kafka"]["partition"], r["_kafka"]["offset"]): r for r in rows}
            assert {p: {name: r[name] for name in ("id", "store", "total", "at")} for p, r in found.items()} == kept
        elif spec.write == "aggregate":
            expected = hours_of((kept if spec.sources == (big(world).table,) else every).values())
            assert len(rows) == len(expected)
            assert {(r["hour"], r["store"]): (r["revenue"], r["orders"]) for r in rows} == expected
        else:
            best = best_of(every)
            assert len(rows) == len(best)
            assert {r["store"]: (r["id"], r["total"]) for r in rows} == best


def hours_of(rows: Iterable[dict[str, Any]]) -> dict[tuple[datetime, Any], tuple[float | None, int]]:
    hours: dict[tuple[datetime, Any], list[Any]] = {}
    for row in rows:
        hours.setdefault((row["at"].replace(minute=0, second=0, microsecond=0), row["store"]), []).append(row["total"])
    there = {key: [total for total in totals if total is not None] for key, totals in hours.items()}
    return {key: (sum(there[key]) if there[key] else None, len(totals)) for key, totals in hours.items()}


def best_of(rows: dict[tuple[int, int], dict[str, Any]]) -> dict[Any, tuple[int, Any]]:
    """Return the newest row of each store: by its total, nulls first, then by offset and partition."""
    found: dict[Any, tuple[Any, tuple[int, Any]]] = {}
    for (partition, offset), row in rows.items():
        order = (row["total"] is not None, row["total"] or 0, offset, partition)
        if row["store"] not in found or order > found[row["store"]][0]:
            found[row["store"]] = order, (row["id"], row["total"])
    return {store: best for store, (_, best) in found.items()}


def tables(world: World) -> list[DerivedTable]:
    return [big(world), hourly(world, big(world).table), hourly(world, world.topic.table), newest(world)]


def expire(world: World, name: tuple[str, str]) -> None:
    made = world.connections()
    now = f"TIMESTAMP '{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d %H:%M:%S}'"
    made.spark().sql(made.catalog.call("expire_snapshots", name, older_than=now, retain_last="1")).collect()


def killed(world: World, spec: DerivedTable, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run die at a step, and clean up nothing."""

    def die() -> None:
        monkeypatch.setattr(StagingBranch, "discard", lambda self: None)
        raise Killed(step)

    with pytest.raises(Killed, match=step):
        derive(spec, world.engine(Observer(step_done=at(step, die))))
    monkeypatch.undo()


def overtaken(world: World, spec: DerivedTable) -> None:
    """Let a run be overtaken by another one: one of them publishes."""
    before, found = world.snapshots(spec), list[DeriveReport]()
    overtaking = at("planned", lambda: found.append(world.derive(spec)))
    late = derive(spec, world.engine(Observer(step_done=overtaking)))
    assert (found[0].snapshot is not None, late.snapshot) == (True, None), "the later one finds nothing to do"
    assert world.snapshots(spec) == before + 1
    assert world.branches(spec) == {"main"}, "what dead runs left is gone"


@pytest.mark.exhaustive
def test_derived_chain_is_right_after_races_kills_and_replay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [big(world), hourly(world, big(world).table, "window(at, '1 hour').start"), newest(world)]
    world.send(12)
    ingest(world.spec, world.connections(), "run-1")
    for spec in specs:
        world.derive(spec)
    world.send(6)
    ingest(world.spec, world.connections(), "run-2")
    killed(world, specs[0], "staged", monkeypatch)
    overtaken(world, specs[0])
    # A column comes with the rows that were dead letters; what they were before has none of that name.
    world.spec = replace(world.spec, schema=WITH_MORE)
    assert replay_dead_letters(world.spec, world.connections(), "letters").moved > 2
    reports = [world.derive(spec) for spec in specs]
    assert reports[0].rederived > 0
    assert [report.full for report in reports] == [""] * 3
    check(world, specs)
    assert [world.derive(spec).snapshot for spec in specs] == [None] * 3


@pytest.mark.exhaustive
def test_derived_tables_match_plain_computation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = tables(world)
    world.send(12)
    ingest(world.spec, world.connections(), "run-1")
    killed(world, big(world), "table created", monkeypatch)
    for spec in specs:
        world.derive(spec)
    check(world, specs)

    # New and late rows; runs die at each step, and a run is overtaken by another one.
    world.send(6)
    ingest(world.spec, world.connections(), "run-2")
    for spec in specs:
        killed(world, spec, "staged", monkeypatch)
        overtaken(world, spec)
    check(world, specs)

    # Compaction and expiry of the snapshots that were read, then rows come.
    made = world.connections()
    compact(made.spark(), made.catalog, world.spec.identifier)
    assert [world.derive(spec).snapshot for spec in specs] == [None] * 4, "compaction is no news"
    world.send(4)
    ingest(world.spec, world.connections(), "run-3")
    expire(world, world.spec.identifier)
    reports = [world.derive(spec) for spec in specs]
    assert [report.full for report in reports] == [""] * 4, "rows were added alone: the totals tell"
    check(world, specs)

    # Dead letters become rows at offsets that were read before.
    world.spec = replace(world.spec, schema=LOOSE)
    moved = replay_dead_letters(world.spec, world.connections(), "letters")
    assert moved.moved > 2
    world.send(3)
    ingest(world.spec, world.connections(), "run-4")
    reports = [world.derive(spec) for spec in specs]
    assert reports[0].rederived > 0
    assert [report.full for report in reports] == [""] * 4
    check(world, specs)

    # A part of the topic is read again by another transform.
    changed = replace(world.spec, transform=RAISED)
    replay(changed, world.connections(), "again", ReplayRange("0:2,1:3", "0:6,1:5"))
    world.raised = {(p, o) for p, o in world.sent if (p == 0 and 2 <= o < 6) or (p == 1 and 3 <= o < 5)}
    reports = [world.derive(spec) for spec in specs]
    assert [report.full for report in reports] == [""] * 4
    check(world, specs)
    assert [world.derive(spec).snapshot for spec in specs] == [None] * 4

    # Once more, and the snapshots that tell are gone: only all rows can tell.
    replay(world.spec, world.connections(), "back", ReplayRange("0:2,1:3", "0:6,1:5"))
    world.raised = set()
    expire(world, world.spec.identifier)
    with pytest.raises(TableError, match=r"rows of it were replaced, moved or reset.*kafka-lake rebuild"):
        world.derive(big(world))
    reports = [world.derive(spec.model_copy(update={"on_change": "rebuild"})) for spec in specs]
    assert all(report.full for report in reports)
    check(world, specs)


DEDUPLICATED = "SELECT id, store, at FROM {source}"
SESSIONS = (
    "SELECT store, session_window.start AS began, session_window.end AS ended, count(*) AS clicks FROM {source} "
    "GROUP BY store, session_window(at, '30 minutes')"
)
FEATURES = (
    "SELECT store, day, sum(total) OVER (PARTITION BY store ORDER BY day RANGE BETWEEN INTERVAL 29 DAYS PRECEDING AND "
    "CURRENT ROW) AS total_last_30_days FROM (SELECT store, to_date(at) AS day, sum(total) AS total FROM {source} "
    "GROUP BY ALL)"
)
EVENTS = [
    # Store, minutes after the start, total; nulls and values that aren't equal to themselves among the keys.
    [("a", 0, 1.0), ("a", 20, 2.0), ("b", 5, 3.0), (None, 7, 4.0), ("a", 75, 5.0), ("a", 45 * 24 * 60, 6.0)],
    [("a", 47, 7.0), (None, 30, 8.0), ("a", 20 * 24 * 60, 9.0), ("c", 0, None), ("b", 300, 1.5)],
]


def test_newest_row_of_a_key_is_of_the_recreated_topic(world: World) -> None:
    world.spec = world.topic.spec(LOOSE, on_data_loss="continue")
    once = orders(world, "once", "upsert", DEDUPLICATED, key={"store": "store"}, on_change="rebuild")

    def newest_of(*ids: int) -> list[int]:
        for number in ids:
            world.topic.send({"id": number, "store": "a"})
        ingest(world.spec, world.connections(), f"run-{ids[0]}")
        world.derive(once)
        return [row["id"] for row in world.table(once)]

    assert newest_of(1, 2, 3) == [3]
    world.topic.delete()
    world.topic.create(2)
    assert newest_of(4) == [4]
    assert newest_of(5) == [5]


@pytest.mark.exhaustive
def test_example_queries_match_plain_computation(world: World) -> None:
    world.spec = world.topic.spec(LOOSE)
    once = orders(world, "once", "upsert", DEDUPLICATED, key={"id": "id"})
    sessions = orders(world, "sessions", "aggregate", SESSIONS, key={"store": "store"})
    # Rows of an aggregate tell no record.
    rules = (RuleEntry(unique=("store", "day")), RuleEntry(not_null=("store", "total_last_30_days"), on_failure="warn"))
    features = orders(world, "features", "aggregate", FEATURES, key={"store": "store"}, rules=rules)
    sent: list[tuple[Any, datetime, Any]] = []
    for number, events in enumerate(EVENTS):
        for store, minutes, total in events:
            moment = START + timedelta(minutes=minutes)
            # Twice by its producer.
            for _ in range(2):
                world.topic.send({"id": len(sent) // 2, "store": store, "total": total, "at": moment.isoformat()})
                sent.append((store, moment, total))
        ingest(world.spec, world.connections(), f"run-{number}")
        reports = [world.derive(spec) for spec in (once, sessions, features)]
        assert [bool(report.full) for report in reports] == [not number] * 3
        found = {finding.check: (finding.passed, finding.facts["failed"]) for finding in reports[2].findings}
        assert found == {
            "rule_unique_store_day": (True, 0), "rule_not_null_store": (False, 1),
            "rule_not_null_total_last_30_days": (not number, number),
        }  # fmt: skip
    found = {row["id"]: (row["store"], row["at"], row["_kafka"]["offset"]) for row in world.table(once)}
    assert found == {n: (*sent[2 * n][:2], 2 * n + 1) for n in range(len(sent) // 2)}
    assert len(world.table(once)) == len(found)
    clicks = [(row["store"], row["began"], row["ended"], row["clicks"]) for row in world.table(sessions)]
    assert Counter(clicks) == Counter(sessions_of(sent))
    days = [(row["store"], row["day"], row["total_last_30_days"]) for row in world.table(features)]
    assert Counter(days) == Counter(totals_of_30_days(sent))


def sessions_of(sent: Sequence[tuple[Any, datetime, Any]]) -> Iterator[tuple[Any, datetime, datetime, int]]:
    gap = timedelta(minutes=30)
    for store in {row[0] for row in sent}:
        began, last, count = None, None, 0
        for moment in sorted(at_ for name, at_, _ in sent if name == store):
            if began is not None and last is not None and moment >= last + gap:
                yield store, began, last + gap, count
                began, count = None, 0
            began, last, count = began or moment, moment, count + 1
        assert began is not None
        assert last is not None
        yield store, began, last + gap, count


def totals_of_30_days(sent: Sequence[tuple[Any, datetime, Any]]) -> Iterator[tuple[Any, date, float | None]]:
    for store, day in {(store, at_.date()) for store, at_, _ in sent}:
        within = [t for s, at_, t in sent if s == store and timedelta(0) <= day - at_.date() <= timedelta(days=29)]
        there = [total for total in within if total is not None]
        yield store, day, sum(there) if there else None


@pytest.mark.exhaustive
def test_files_without_new_rows_or_touched_keys_are_not_read(world: World) -> None:
    world.spec = world.topic.spec(LOOSE)
    everything = orders(world, "every", "append", "SELECT * FROM {source}", verify=0)
    hours = orders(
        world, "hours", "aggregate", "SELECT date_trunc('hour', at) AS hour, count(*) AS n FROM {source} GROUP BY 1",
        key={"hour": "date_trunc('hour', at)"}, verify=0,
    )  # fmt: skip
    days = orders(
        world, "days", "aggregate", "SELECT to_date(at) AS day, count(*) AS n FROM {source} GROUP BY 1",
        key={"day": "to_date(at)"}, verify=0,
    )  # fmt: skip
    for number, day in enumerate((0, 10, 5)):
        for _ in range(2):
            world.topic.send({"id": number, "at": (START + timedelta(days=day)).isoformat()})
        ingest(world.spec, world.connections(), f"run-{number}")
        read = [world.derive(spec).upstream[world.topic.table] for spec in (everything, hours, days)]
        assert [(item.rows, item.new) for item in read] == [(2 * number + 2, 2)] * 3
        if not number:
            upstream = world.connections().catalog.table(world.spec.identifier)
            assert upstream is not None
            for task in upstream.scan().plan_files():
                # Whoever reads it from now on fails.
                upstream.io.delete(task.file.file_path)
    expected = {START + timedelta(days=day): 2 for day in (0, 5, 10)}
    assert {row["hour"]: row["n"] for row in world.table(hours)} == expected
    assert {row["day"]: row["n"] for row in world.table(days)} == {at_.date(): n for at_, n in expected.items()}
    assert len(world.table(everything)) == 6


@pytest.mark.exhaustive
def test_derived_run_reports_reads_and_refuses_changed_query(
    world: World, catalog_resource: CatalogResource, spark_resource: SparkResource
) -> None:
    world.spec = world.topic.spec(LOOSE)
    world.send(3)
    ingest(world.spec, world.connections(), "run-1")
    rules = (RuleEntry(row_count=RowCount(min=1)), RuleEntry(range=Range(column="Id", max=1), on_failure="warn"))
    rules += (RuleEntry(check="kafka_lake_tests.decode.checks:few", on_failure="warn"),)
    spec = orders(world, "dagster", "append", "SELECT id AS Id FROM {source} -- all", rules=rules)
    resources = {"catalog": catalog_resource, "spark": ResourceDefinition.hardcoded_resource(spark_resource)}

    def materialized(spec: DerivedTable, **config: Any) -> dg.ExecuteInProcessResult:
        asset = build_derived_asset(spec, Presentation("it"))
        run_config = {"ops": {op_name(spec): {"config": config}}}
        return dg.materialize([asset], resources=resources, run_config=run_config, raise_on_error=False)

    first = materialized(spec)
    evaluations = {evaluation.check_name: evaluation for evaluation in first.get_asset_check_evaluations()}
    warned = evaluations["rule_range_Id"]
    assert (warned.passed, warned.severity, warned.metadata["failed"].value) == (False, dg.AssetCheckSeverity.WARN, 1)
    assert evaluations["rule_row_count"].passed
    check = evaluations["rule_check_few"]
    assert (check.passed, check.severity, check.metadata["checks_failed"].value) == (
        False,
        dg.AssetCheckSeverity.WARN,
        1,
    )
    (event,) = first.get_asset_materialization_events()
    reported = {name: value.value for name, value in event.materialization.metadata.items()}
    assert (reported["dagster/row_count"], reported["rows_added"], reported["everything_computed"]) == (
        3,
        3,
        "the table is new",
    )
    assert (reported[f"upstream_{world.topic.table}_rows"], reported["verified"]) == (3, 1)
    other = spec.model_copy(update={"sql": str(spec.sql).replace("id AS Id", "id + 1 AS id, store")})
    result = materialized(other)
    assert not result.success
    assert "on_change: forward" in str(result.all_node_events)
    assert sorted(row["Id"] for row in world.table(spec)) == [0, 1, 2], "main is unchanged"
    assert materialized(other, rebuild=True).success
    rows = world.table(spec)
    assert sorted(row["Id"] for row in rows) == [1, 2, 3]
    assert {row["store"] for row in rows} == {row["store"] for row in world.sent.values()}, "a new column"
    rules_that_fail = (RuleEntry(expression="id < 3"), RuleEntry(unique=("store",), on_failure="warn"))
    other = other.model_copy(update={"rules": rules_that_fail})
    evaluations = materialized(other).get_asset_check_evaluations()
    assert {evaluation.check_name: evaluation.passed for evaluation in evaluations} == {
        "audit": True, "rule_expression_id_3": True, "rule_unique_store": True,
    }, "no row has come"  # fmt: skip
    for _ in range(3):
        world.topic.send({"id": 1, "store": "s9", "at": START.isoformat()})
    ingest(world.spec, world.connections(), "more")
    assert materialized(other.model_copy(update={"rules": ()})).success
    other = other.model_copy(update={"rules": rules_that_fail})
    result = materialized(other, rebuild=True)
    assert not result.success
    failed = {evaluation.check_name for evaluation in result.get_asset_check_evaluations() if not evaluation.passed}
    assert "rule_expression_id_3" in failed
    assert "1 of 6 rows break it (id < 3), the first in partition" in str(result.all_node_events)
    assert sorted(row["Id"] for row in world.table(spec)) == [1, 2, 2, 2, 2, 3], "main is unchanged"
