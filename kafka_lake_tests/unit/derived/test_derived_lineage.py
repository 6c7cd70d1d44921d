"""Lineage of derived tables: the events of a run for OpenLineage."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.derived.derived_table import DerivedTable
from kafka_lake.derived.engine import DeriveReport
from kafka_lake.derived.run import DeriveLineage
from kafka_lake.errors import TableError
from kafka_lake_tests.unit.ingest.test_lineage import RUN, backend, fresh

__all__ = ["backend", "fresh"]


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
