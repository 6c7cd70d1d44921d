"""One day of a derived table is computed again: it is what the query gives, and all other rows are as they were."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest
from dagster import ResourceDefinition

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.derived.derived_table import DerivedTable, TimePartitions, Window
from kafka_lake.derived.run import derive
from kafka_lake.errors import AuditFailedError
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.assets import Presentation, build_topic_assets
from kafka_lake.orchestration.derived_assets import build_derived_asset, time_partitions_of, up_to_date_tags
from kafka_lake.orchestration.keys import table_key, work_name
from kafka_lake.orchestration.partitions import register_partitions
from kafka_lake.orchestration.resources import CatalogResource, SparkResource
from kafka_lake.runtime.context import Connections, RetryPolicy
from kafka_lake_tests.conftest import NAMESPACE, Topic
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_derived import START, World, orders, world
from kafka_lake_tests.integration.test_exactly_once import Killed

__all__ = ["world"]
pytestmark = pytest.mark.integration
DAY = timedelta(days=1)
KINDS = {"timestamp": "at", "date": "CAST(at AS DATE)"}


def send(world: World, number: int, day: int) -> None:
    world.topic.send({"id": number, "store": f"s{number % 2}", "total": float(number), "at": moment(day).isoformat()})


def moment(day: int) -> datetime:
    return START + day * DAY + timedelta(hours=23)


def by_day(world: World, spec: DerivedTable, column: str) -> dict[int, list[Any]]:
    """Return a table's rows, without Kafka's column, by the day that they are of."""
    found: dict[int, list[Any]] = {}
    for row in world.table(spec):
        row.pop("_kafka", None)
        at = row[column]
        at = at.replace(tzinfo=UTC) if isinstance(at, datetime) else datetime(at.year, at.month, at.day, tzinfo=UTC)
        found.setdefault((at - START).days, []).append(tuple(v for k, v in sorted(row.items()) if k != column))
    return {day: sorted(rows) for day, rows in sorted(found.items())}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_a_day_is_computed_again_and_no_other_row_changes(
    kind: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, catalog = world.connections().spark(), world.connections().catalog
    factors = f"{world.topic.table}_factors"
    dimension = catalog.spark_name((NAMESPACE, factors))
    spark.sql(f"CREATE TABLE {dimension} AS SELECT * FROM VALUES ('s0', 1D), ('s1', 1D) AS f (store, factor)").collect()
    cut = f"daily(day, {START:%Y-%m-%d})"
    columns = f"id, o.store, total * factor AS total, {KINDS[kind]} AS day"
    query = f"SELECT {columns} FROM {{source}} o JOIN {factors} USING (store)"
    rows = orders(world, "rows", "append", query, join=(factors,), partitions=cut)
    sums = orders(
        world, "sums", "aggregate",
        "SELECT date_trunc('day', at) AS day, store, sum(total) AS total FROM {source} GROUP BY ALL",
        key={"day": "date_trunc('day', at)", "store": "store"}, partitions=cut,
    )  # fmt: skip
    below = orders(world, "below", "append", "SELECT id, total, day FROM {source}", source=rows.table)
    for number in range(8):
        send(world, number, number % 4)
    ingest(world.spec, world.connections(), "r-1")
    for spec in (rows, sums, below):
        world.derive(spec)
    assert by_day(world, sums, "day") == {d: [(f"s{d % 2}", float(d + d + 4))] for d in range(4)}
    assert world.derive(rows).snapshot is None

    # Factors are others now, somebody has damaged sums, and records have come of which the tables have nothing yet.
    spark.sql(f"UPDATE {dimension} SET factor = 10 WHERE store = 's1'").collect()
    spark.sql(f"UPDATE {catalog.spark_name(sums.identifier)} SET total = -1 WHERE store = 's1'").collect()
    send(world, 8, 1)
    send(world, 9, 5)
    ingest(world.spec, world.connections(), "r-2")
    window = Window(TimePartitions.of(cut), START + DAY, START + 2 * DAY)

    # A kill leaves main with whole commits, and the next run does it all.
    with monkeypatch.context() as patched:
        publish, calls = StagingBranch.publish, list[int]()

        def killed(branch: StagingBranch, *arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise Killed
            return publish(branch, *arguments)

        patched.setattr(StagingBranch, "publish", killed)
        with pytest.raises(Killed):
            world.derive(rows, window=window)
    assert by_day(world, rows, "day")[1] == [(1, "s1", 1.0), (5, "s1", 5.0), (8, "s0", 8.0)], (
        "it was brought up to date"
    )

    done = world.derive(rows, window=window)
    assert (done.kind, done.rows, done.partitions) == ("replace", 3, ("2026-01-02",))
    expected = {
        0: [(0, "s0", 0.0), (4, "s0", 4.0)],
        1: [(1, "s1", 10.0), (5, "s1", 50.0), (8, "s0", 8.0)],
        2: [(2, "s0", 2.0), (6, "s0", 6.0)],
        3: [(3, "s1", 3.0), (7, "s1", 7.0)],
        5: [(9, "s1", 90.0)],
    }
    assert by_day(world, rows, "day") == expected
    assert world.branches(rows) == {"main"}
    world.derive(sums, window=window)
    assert by_day(world, sums, "day")[1] == [("s0", 8.0), ("s1", 6.0)]
    assert by_day(world, sums, "day")[3] == [("s1", -1.0)]
    # Nothing comes twice, neither here nor in what is made of it.
    assert (world.derive(rows).snapshot, world.derive(sums).snapshot) == (None, None)
    world.derive(below)
    assert by_day(world, below, "day") == {d: [(i, t) for i, _, t in each] for d, each in expected.items()}
    send(world, 10, 1)
    ingest(world.spec, world.connections(), "r-3")
    for spec in (rows, sums, below):
        world.derive(spec)
    assert by_day(world, rows, "day")[1] == [*expected[1][:2], (8, "s0", 8.0), (10, "s0", 10.0)]
    assert by_day(world, sums, "day")[1] == [("s0", 18.0), ("s1", 6.0)]
    assert sorted(row["id"] for row in world.table(below)) == list(range(11))


@pytest.mark.exhaustive
def test_dagster_shows_the_days_and_materializes_one_or_a_range(
    new_topic: Callable[..., Topic],
    connections: Callable[[], Connections],
    catalog_resource: CatalogResource,
    spark_resource: SparkResource,
    world: World,
) -> None:
    spec = orders(world, "days", "append", "SELECT id, at FROM {source}", partitions=f"daily(at, {START:%Y-%m-%d})")
    for number in range(3):
        send(world, number, number)
    ingest(world.spec, world.connections(), "r-1")
    asset = build_derived_asset(spec, Presentation(NAMESPACE, [], "", {}))
    upstream = build_topic_assets(world.spec, Presentation(NAMESPACE, [], "", {}))
    key, source = dg.AssetKey([NAMESPACE, spec.table]), table_key(world.spec)
    resources = {
        "kafka": ResourceDefinition.none_resource(),
        "registry": ResourceDefinition.none_resource(),
        "catalog": ResourceDefinition.hardcoded_resource(catalog_resource),
        "spark": ResourceDefinition.hardcoded_resource(spark_resource),
    }
    known = time_partitions_of(spec)
    assert known is not None

    def days(instance: dg.DagsterInstance) -> list[str]:
        return sorted(instance.get_materialized_partitions(dg.AssetKey([NAMESPACE, spec.table])))

    def materialize(instance: dg.DagsterInstance, **more: Any) -> dg.ExecuteInProcessResult:
        assets = [asset, *(each for each in upstream if isinstance(each, dg.AssetsDefinition))]
        return dg.materialize(assets, selection=[key], resources=resources, instance=instance, **more)

    with dg.DagsterInstance.ephemeral() as instance:
        # As the topic's run leaves it: Dagster asks for the partitions of what an asset is made of.
        register_partitions(instance, work_name(world.spec), [0])
        instance.report_runless_asset_event(dg.AssetMaterialization(source, partition="0"))
        assert materialize(instance, tags=up_to_date_tags(spec)).success
        assert instance.get_latest_materialization_event(key) is not None
        assert days(instance) == ["2026-01-01", "2026-01-02", "2026-01-03"]
        name = world.connections().catalog.spark_name(spec.identifier)
        world.connections().spark().sql(f"DELETE FROM {name}").collect()
        assert materialize(instance, partition_key="2026-01-02").success
        assert [row["id"] for row in world.table(spec)] == [1]
        # Records have come meanwhile: of another day, and of one that isn't there yet.
        send(world, 3, 7)
        world.topic.send({"id": 4, "total": 1.0, "at": "2500-01-01T00:00:00Z"})
        ingest(world.spec, world.connections(), "r-2")
        ranged = {
            "dagster/asset_partition_range_start": "2026-01-01",
            "dagster/asset_partition_range_end": "2026-01-02",
        }
        assert materialize(instance, tags=ranged).success
        assert sorted(row["id"] for row in world.table(spec)) == [0, 1, 3, 4]
        assert days(instance) == ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-08"]
    # A column that tells no time is refused, and the table is as it was.
    with pytest.raises(Exception, match="partitions: id has type bigint"):
        world.derive(spec.model_copy(update={"partitions": f"daily(id, {START:%Y-%m-%d})"}), rebuild=True)
    assert sorted(row["id"] for row in world.table(spec)) == [0, 1, 3, 4]


@pytest.mark.parametrize("day", [0, exhaustive(1)])
def test_row_moved_to_another_day_is_derived_once(day: int, world: World) -> None:
    spark, catalog = world.connections().spark(), world.connections().catalog
    opened = f"{world.topic.table}_opened"
    dimension = catalog.spark_name((NAMESPACE, opened))
    first, second = (f"TIMESTAMP '{START + each * DAY:%Y-%m-%d} 12:00:00 UTC'" for each in (0, 1))
    spark.sql(f"CREATE TABLE {dimension} AS SELECT 's0' AS store, {first} AS day").collect()
    cut = f"daily(day, {START:%Y-%m-%d})"
    query = f"SELECT id, day FROM {{source}} LEFT JOIN {opened} USING (store)"
    spec = orders(world, "moved", "append", query, join=(opened,), partitions=cut)
    send(world, 0, 0)
    ingest(world.spec, world.connections(), "r-1")
    world.derive(spec)
    spark.sql(f"UPDATE {dimension} SET day = {second}").collect()
    window = Window(TimePartitions.of(cut), START + day * DAY, START + (day + 1) * DAY)
    before = world.table(spec)
    with pytest.raises(AuditFailedError, match="1 rows have changed their partition"):
        world.derive(spec, window=window)
    assert world.table(spec) == before
    assert world.branches(spec) == {"main"}
    world.derive(spec, rebuild=True)
    assert [row["day"] for row in world.table(spec)] == [START + DAY + timedelta(hours=12)]


@pytest.mark.exhaustive
def test_days_derived_beside_incremental_run_are_right(world: World) -> None:
    cut = f"daily(day, {START:%Y-%m-%d})"
    spec = orders(world, "days", "append", "SELECT id, at AS day FROM {source}", partitions=cut)
    expected: dict[int, list[Any]] = {}

    def send_all(numbers: Iterable[int]) -> None:
        for number in numbers:
            send(world, number, number % 4)
            expected.setdefault(number % 4, []).append((number,))
        ingest(world.spec, world.connections(), f"r-{uuid4().hex}")

    def run(window: Window | None) -> Any:
        engine = replace(world.engine(), run_id=f"d-{uuid4().hex}", retry=RetryPolicy(attempts=8))
        return derive(spec, engine, window=window)

    windows = [Window(TimePartitions.of(cut), START + day * DAY, START + (day + 1) * DAY) for day in (1, 3)]
    send_all(range(8))
    run(None)
    name = world.connections().catalog.spark_name(spec.identifier)
    # Rows of two days that aren't neighbours are lost, and others have come.
    world.connections().spark().sql(f"DELETE FROM {name} WHERE id % 2 = 1").collect()
    send_all(range(8, 16))
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(run, [*windows, None]))
    assert [each.kind for each in done[:2]] == ["replace", "replace"]
    run(None)
    assert by_day(world, spec, "day") == {day: sorted(rows) for day, rows in sorted(expected.items())}
    assert world.branches(spec) == {"main"}
    assert run(None).snapshot is None
