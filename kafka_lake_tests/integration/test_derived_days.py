"""Each partition of a derived table that is computed again is what DuckDB computes, and all others are as they were."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import duckdb
import pytest

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.derived.derived_table import DerivedTable, TimePartitions, Window
from kafka_lake.derived.run import derive
from kafka_lake.errors import TableError
from kafka_lake.ingest.run import ingest
from kafka_lake.maintenance.maintain import maintain
from kafka_lake.orchestration.derived_assets import time_partitions_of
from kafka_lake.runtime.context import Observer
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake_tests.conftest import NAMESPACE
from kafka_lake_tests.integration.test_derived import START, World, orders, world
from kafka_lake_tests.integration.test_derived_partitions import DAY, by_day, moment

__all__ = ["world"]
pytestmark = pytest.mark.integration

CUT = f"daily(at, {START:%Y-%m-%d})"
TIMES = (
    None, "0999-05-05T00:00:00Z", "1965-02-03T04:05:06.789Z", "1969-12-31T22:59:59.999999Z", "1969-12-31T23:59:59.5Z",
    "1970-01-01T00:00:00Z", "2026-02-28T23:59:59.999Z", "2026-03-01T00:00:00Z", "2026-03-29T00:59:59.999999Z",
    "2026-03-29T22:30:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2500-01-01T00:00:00Z",
)  # fmt: skip
ON_READ = {"write.delete.mode": "merge-on-read", "write.merge.mode": "merge-on-read"}


class Case(NamedTuple):
    unit: str
    write: Any
    column: str
    time: str
    properties: dict[str, str]
    zone: str = "UTC"


CASES = {
    "hours": Case("hourly", "append", "a.b", "at", {"format-version": "2", **ON_READ}),
    "hours of Berlin": Case("hourly", "append", "T`x y", "at", {"format-version": "3", **ON_READ}, "Europe/Berlin"),
    "months": Case("monthly", "aggregate", "Day Of", "CAST(at AS DATE)", {"format-version": "3", **ON_READ}),
    "keys": Case("daily", "upsert", "At", "at", {"format-version": "1"}),
    "days of Berlin": Case("daily", "aggregate", "day", "date_trunc('day', at)", {}, "Europe/Berlin"),
}


def query_of(case: Case, factors: str) -> dict[str, Any]:
    """Return the settings of a derived table, without those that all cases have."""
    time, column = case.time, quoted(case.column)
    joined = f"FROM {{source}} o JOIN {factors} USING (store)"
    if case.write == "aggregate":
        sql = f"SELECT {time} AS {column}, store, sum(total * factor) AS total {joined} GROUP BY {time}, store"
        return {"sql": sql.replace("o.store", "store"), "key": {case.column: time, "store": "store"}}
    if case.write == "upsert":
        sql = f"SELECT id % 5 AS k, id, o.store, total * factor AS total, {time} AS {column} {joined}"
        return {"sql": sql, "key": {"k": "k"}, "order_by": (case.column,)}
    return {"sql": f"SELECT id, o.store, total * factor AS total, {time} AS {column} {joined}"}


def plain(world: World, case: Case, factor: float) -> list[dict[str, Any]]:
    """Return what DuckDB computes of the topic's table, with the key of each row's partition."""
    table = world.connections().catalog.table(world.spec.identifier)
    assert table is not None
    duck = duckdb.connect()
    duck.execute(f"SET TimeZone = '{case.zone}'")
    duck.register("t", table.scan().to_arrow())
    duck.execute(f"CREATE TABLE f AS SELECT * FROM (VALUES ('s0', 1.0), ('s1', {factor})) AS v (store, factor)")
    time = re.sub(r"\bat\b", '"at"', case.time)
    columns = f"id, store, (total * factor)::DOUBLE AS total, {time} AS c, id % 5 AS k, _kafka"
    rows = f"SELECT {columns} FROM t JOIN f USING (store)"
    if case.write == "aggregate":
        sql = f"SELECT c, store, sum(total) AS total FROM ({rows}) GROUP BY c, store"
    elif case.write == "upsert":
        newest = "PARTITION BY k ORDER BY c DESC NULLS LAST, _kafka.offset DESC, _kafka.partition DESC"
        sql = f"SELECT * EXCLUDE (_kafka) FROM ({rows}) QUALIFY row_number() OVER ({newest}) = 1"
    else:
        sql = f"SELECT * EXCLUDE (k, _kafka) FROM ({rows})"
    unit = {"hourly": "hour", "daily": "day", "monthly": "month"}[case.unit]
    at = "c::TIMESTAMP" if "CAST" in case.time else "timezone('UTC', c)"
    form = "%Y-%m-%d-%H:%M" if unit == "hour" else "%Y-%m-%d"
    found = duck.execute(f"SELECT *, strftime(date_trunc('{unit}', {at}), '{form}') AS partition FROM ({sql})")
    rows_: list[dict[str, Any]] = found.to_arrow_table().to_pylist()
    return rows_


def texts(rows: list[dict[str, Any]], column: str) -> list[str]:
    """Return rows as they can be compared, whatever their column of times is called."""
    found = []
    for row in rows:
        values = {"c" if name == column else name: value for name, value in row.items()}
        at = values["c"]
        values["c"] = at.astimezone(UTC) if isinstance(at, datetime) and at.tzinfo else at
        found.append(repr(sorted((k, v) for k, v in values.items() if k not in ("_kafka", "partition"))))
    return sorted(found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_derived_partition_matches_duckdb_and_leaves_rest(name: str, world: World) -> None:
    case, chance = CASES[name], random.Random(name)
    spark, catalog = world.connections().spark(), world.connections().catalog
    factors = f"{world.topic.table}_factors"
    dimension = catalog.spark_name((NAMESPACE, factors))
    values = "('s0', 1D), ('s1', 1D) AS f (store, factor)"
    spark.sql(f"CREATE TABLE {dimension} AS SELECT * FROM VALUES {values}").collect()
    for number, at in enumerate([*TIMES, *chance.choices(TIMES, k=len(TIMES))]):
        store, total = f"s{chance.randrange(2)}", float(chance.randrange(100))
        world.topic.send({"id": number, "store": store, "total": total, "at": at}, chance.randrange(2))
    ingest(world.spec, world.connections(), "r-1")
    query = query_of(case, factors)
    more = {"join": (factors,), "table_properties": case.properties, **query}
    spec = orders(world, "x", case.write, partitions=f"{case.unit}({case.column}, 1960-01-01)", **more)
    known, cut = time_partitions_of(spec), spec.time_partitions
    assert known is not None
    assert cut is not None
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", case.zone)
    try:
        done = derive(spec, world.engine())
        before = plain(world, case, 1.0)
        assert texts(world.table(spec), case.column) == texts(before, "c")
        keys = sorted(
            {row["partition"] for row in before if row["partition"] and known.has_partition_key(row["partition"])}
        )
        assert sorted(done.partitions) == keys
        spark.sql(f"UPDATE {dimension} SET factor = 10 WHERE store = 's1'").collect()
        after, again = plain(world, case, 10.0), set[str]()
        for key in chance.sample(keys, min(3, len(keys))):
            day = known.time_window_for_partition_key(key)
            done = derive(spec, world.engine(), window=Window(cut, day.start, day.end))
            again.add(key)
            assert done.rows == sum(row["partition"] == key for row in after)
            expected = [row for row in after if row["partition"] in again]
            expected += [row for row in before if row["partition"] not in again]
            assert texts(world.table(spec), case.column) == texts(expected, "c")
            assert derive(spec, world.engine()).snapshot is None
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def window(first: int) -> Window:
    return Window(TimePartitions.of(CUT), START + first * DAY, START + (first + 1) * DAY)


def make(world: World, specs: list[DerivedTable], stamp: Callable[[int], int | None] = lambda day: None) -> None:
    for number in range(6):
        day = number % 3
        value = {"id": number, "store": f"s{number % 2}", "total": float(number), "at": moment(day).isoformat()}
        world.topic.send(value, timestamp_ms=stamp(day))
    ingest(world.spec, world.connections(), "r-1")
    for spec in specs:
        world.derive(spec)


@pytest.mark.exhaustive
def test_rows_of_a_key_may_be_of_several_days(world: World) -> None:
    sql = (
        "SELECT store, session_window.start AS at, count(*) AS n FROM {source} "
        "GROUP BY store, session_window(at, '30 minutes')"
    )
    spec = orders(world, "sessions", "aggregate", sql, key={"store": "store"}, partitions=CUT)
    make(world, [spec])
    before = by_day(world, spec, "at")
    name = world.connections().catalog.spark_name(spec.identifier)
    world.connections().spark().sql(f"UPDATE {name} SET n = 0 WHERE at < TIMESTAMP '2026-01-02 12:00:00Z'").collect()
    world.derive(spec, window=window(0))
    assert by_day(world, spec, "at") == before
    assert world.derive(spec).snapshot is None


@pytest.mark.exhaustive
def test_a_table_that_is_replaced_is_computed_as_a_whole(world: World) -> None:
    sql = "SELECT id, CAST(current_timestamp() AS DATE) AS at FROM {source}"
    spec = orders(world, "today", "replace", sql, partitions=CUT)
    make(world, [spec])
    name = world.connections().catalog.spark_name(spec.identifier)
    world.connections().spark().sql(f"UPDATE {name} SET at = DATE '2026-01-01'").collect()
    world.derive(spec, window=window(0))
    assert sorted(row["id"] for row in world.table(spec)) == list(range(6))


@pytest.mark.exhaustive
def test_expired_foreign_row_triggers_downstream_tables(world: World) -> None:
    spec = orders(world, "rows", "append", "SELECT id, at FROM {source}", partitions=CUT)
    below = orders(world, "below", "append", "SELECT id, at FROM {source}", source=spec.table)
    make(world, [spec, below])
    name = world.connections().catalog.spark_name(spec.identifier)
    row = "(99, TIMESTAMP '2026-01-02 05:00:00 UTC')"
    world.connections().spark().sql(f"INSERT INTO {name} (id, at) VALUES {row}").collect()
    world.derive(below, rebuild=True)
    world.derive(spec, window=window(1))
    assert sorted(row["id"] for row in world.table(spec)) == list(range(6))
    # The row is no record: nobody can tell by offsets that it has gone.
    with pytest.raises(TableError, match="rebuild"):
        world.derive(below)


@pytest.mark.exhaustive
def test_days_that_have_expired_stay_if_another_one_is_computed(world: World) -> None:
    day = "date_trunc('day', at)"
    sql = f"SELECT {day} AS at, store, sum(total) AS total FROM {{source}} GROUP BY {day}, store"
    spec = orders(world, "sums", "aggregate", sql, key={"at": day, "store": "store"}, partitions=CUT)
    now = int(datetime.now(UTC).timestamp() * 1000)
    make(world, [spec], lambda day: now - (100 if day == 0 else 1) * 86_400_000)
    before = by_day(world, spec, "at")
    keep = Maintenance(row_retention={"older_than": "90d"}, compact_every=None, expire_after=None)
    world.spec = replace(world.spec, maintenance=keep)
    maintain(world.spec, world.connections())
    assert {row["id"] for row in world.table(world.spec)} == {1, 2, 4, 5}
    said: list[str] = []
    derive(spec, world.engine(Observer(warn=said.append)), window=window(1))
    assert by_day(world, spec, "at") == before
    assert any("have expired" in line for line in said)
