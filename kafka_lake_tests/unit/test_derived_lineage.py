"""Lineage of derived tables: the columns that a column is made of, and what OpenLineage is told of a run."""

import re
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType

from kafka_lake.common.errors import TableError
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import DeriveReport
from kafka_lake.derive.lineage import DeriveLineage, Origin, origins_of
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake_tests.unit.test_lineage import RUN, backend, fresh

__all__ = ["backend", "fresh"]

TABLES = {"orders": ["id", "store", "total"], "stores": ["store", "city"]}
QUERIES = [
    "SELECT id AS a, total + 1 AS b FROM orders",
    "SELECT o.*, s.city AS b FROM orders o LEFT JOIN stores s USING (store)",
    "SELECT store AS a, sum(total) AS b, count(*) AS c FROM orders GROUP BY ALL",
    "WITH x AS (SELECT *, total * 2 AS twice FROM orders) SELECT twice AS a, x.id AS b FROM x JOIN stores s ON true",
    "SELECT a, sum(b) OVER (PARTITION BY a) AS b FROM (SELECT id % 2 AS a, total AS b FROM orders)",
    "SELECT id AS a, 'o' AS b FROM orders UNION ALL SELECT length(city) AS a, city AS b FROM stores",
    "SELECT CASE WHEN o.total > 1 THEN s.city ELSE o.store END AS a, Coalesce(O.Total, o.ID) AS b "
    "FROM orders AS o, stores s",
    "SELECT max(total) AS a, b FROM (SELECT total, store || id AS b FROM orders) GROUP BY b",
]


def result(sql: str, changed: tuple[str, str] | None = None) -> dict[str, list[Any]]:
    """Return the columns of a query's result, sorted, where the values of one column are others."""
    database = duckdb.connect()
    rows: dict[str, list[dict[str, Any]]] = {
        "orders": [{"id": n, "store": f"s{n % 2}", "total": n * 3} for n in range(4)],
        "stores": [{"store": f"s{n}", "city": f"c{n}"} for n in range(2)],
    }
    for table, there in rows.items():
        for row in there:
            if changed and changed[0] == table:
                value = row[changed[1]]
                row[changed[1]] = value + 1000 if isinstance(value, int) else f"{value}, others"
        columns = ", ".join(f"{name} {'int' if name in ('id', 'total') else 'text'}" for name in TABLES[table])
        database.execute(f"CREATE TABLE {table} ({columns})")
        database.executemany(
            f"INSERT INTO {table} VALUES ({', '.join('?' * len(there[0]))})", [list(r.values()) for r in there]
        )
    found = database.execute(sql)
    names = [each[0] for each in found.description]
    columns_ = list(zip(*found.fetchall(), strict=True))
    return {name: sorted(set(map(str, each))) for name, each in zip(names, columns_, strict=True)}


@pytest.mark.parametrize("sql", QUERIES)
def test_a_column_is_made_of_those_whose_values_show_in_it(sql: str) -> None:
    plain = result(sql)
    found = origins_of(sql, list(plain), TABLES)
    for table, names in TABLES.items():
        for name in names:
            if name == "store" and "USING" in sql:
                # It decides which rows there are, too.
                continue
            other = result(sql, (table, name))
            for column in plain:
                told = (table, name) in {(each.table, each.column) for each in found.get(column, ())}
                shows = other[column] != plain[column]
                assert told or not shows, (column, table, name)
                assert shows or not told or re.search("OVER|Coalesce", sql), (column, table, name)


def test_how_a_column_is_made_is_told() -> None:
    sql = (
        "SELECT o.Id, upper(o.store) AS store, sum(s.total) AS t, min(date_trunc('hour', at)) AS h, o._kafka, "
        "x.y.z AS z, 1 AS one FROM orders o JOIN sums s USING (id) GROUP BY ALL"
    )
    tables = {"Orders": ["id", "Store", "at", "_kafka", "x"], "sums": ["id", "total"]}
    found = origins_of(sql, ["Id", "store", "t", "h", "_kafka", "z", "one", "none"], tables)
    assert found == {
        "Id": [Origin("Orders", "id", "IDENTITY")],
        "store": [Origin("Orders", "Store", "TRANSFORMATION")],
        "t": [Origin("sums", "total", "AGGREGATION")],
        "h": [Origin("Orders", "at", "AGGREGATION")],
        "_kafka": [Origin("Orders", "_kafka", "IDENTITY")],
        "z": [Origin("Orders", "x", "TRANSFORMATION")],
    }
    assert origins_of("SELECT neither FROM a, b", ["neither"], {"a": ["x"], "b": ["y"]}) == {}


def table(name: str, *columns: str) -> Any:
    kafka = StructType(
        *(NestedField(90 + n, each, LongType()) for n, each in enumerate(("partition", "offset", "topic", "timestamp")))
    )
    fields = [
        NestedField(n + 1, each, kafka if each.startswith("_") else StringType()) for n, each in enumerate(columns)
    ]
    summary = {"added-files-size": "70", "added-data-files": "2"}
    metadata = SimpleNamespace(
        snapshot_by_id=lambda number: (
            number == 7 and SimpleNamespace(summary=SimpleNamespace(additional_properties=summary))
        )
    )
    return SimpleNamespace(schema=lambda: Schema(*fields), location=lambda: f"s3://lake/{name}", metadata=metadata)


CATALOG = {
    ("lake", "orders"): table("lake/orders", "id", "store", "_meta"),
    ("shop", "stores"): table("shop/stores", "store", "city", "_kafka"),
    ("lake", "t"): table("lake/t", "id", "city", "_kafka"),
}
SPEC = DerivedTable(
    table="t", sources=("orders",), join=("shop.stores",), write="append",
    sql="SELECT id, upper(s.city) AS city FROM orders LEFT JOIN stores s USING (store)",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_lake.derive.plan.has_origin", lambda kind: isinstance(kind, StructType))


def catalog(tables: dict[tuple[str, str], Any] = CATALOG) -> LakeCatalog:
    return cast(LakeCatalog, SimpleNamespace(name="lake", table=tables.get))


def test_a_run_of_a_derived_table_is_told_of(backend: list[Any]) -> None:
    with DeriveLineage(SPEC, catalog(), RUN) as told:
        told.derived(DeriveReport("lake.t", snapshot=7, rows=5))
    (_, _, start), (_, _, end) = backend
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert end["job"]["name"] == "derive lake.t"
    assert end["run"]["facets"]["parent"]["job"]["name"] == "lake/t"
    assert [each["name"] for each in end["inputs"]] == ["lake/orders", "shop/stores"]
    (written,) = end["outputs"]
    assert (written["namespace"], written["name"]) == ("s3://lake", "lake/t")
    assert {
        name: [(i["name"], i["field"], i["transformations"][0]["subtype"]) for i in each["inputFields"]]
        for name, each in written["facets"]["columnLineage"]["fields"].items()
    } == {
        "id": [("lake/orders", "id", "IDENTITY")],
        "city": [("shop/stores", "city", "TRANSFORMATION")],
        "_kafka": [("lake/orders", "_meta", "IDENTITY")],
    }
    figures = written["outputFacets"]["outputStatistics"]
    assert (figures["rowCount"], figures["size"], figures["fileCount"]) == (5, 70, 2)


def test_a_run_that_finds_nothing_or_fails_has_written_nothing(backend: list[Any]) -> None:
    with DeriveLineage(SPEC, catalog(), RUN) as told:
        told.derived(DeriveReport("lake.t"))
    without = {name: each for name, each in CATALOG.items() if name != ("lake", "t")}
    with pytest.raises(TableError), DeriveLineage(SPEC, catalog(without), RUN):
        raise TableError("Not this one.", "Another.")
    ends = [event for _, _, event in backend[1::2]]
    assert [each["eventType"] for each in ends] == ["COMPLETE", "FAIL"]
    assert ends[0]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 0
    assert ends[1]["outputs"] == []
    assert ends[1]["run"]["facets"]["errorMessage"]["message"] == "Not this one."
