"""Manifests are rewritten where there are too many, beside other writers. Real tables; Spark is a stand-in."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.errors import TableError
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.maintenance import manifests
from kafka_lake.lake.maintenance.manifests import rewrite_manifests
from kafka_lake.lake.tables import ensure_table, schema_of

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
ORDERS = ("pizza", "orders")
# As Iceberg words it.
GONE = "Deleted manifest file:/m9.avro could not be found in the latest snapshot 3173438356336973767"


@pytest.fixture
def asked(catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A table with three manifests, which are too many."""
    monkeypatch.setattr(manifests, "_FEW", 2)
    monkeypatch.setattr(manifests, "_TIMES_TOO_MANY", 1)
    catalog.ensure_namespace("pizza")
    table = ensure_table(catalog, ORDERS, schema_of(ROWS.schema))
    with table.transaction() as change:
        change.set_properties({"commit.manifest-merge.enabled": "false"})
    for _ in range(3):
        table.append(ROWS)
    return []


def failing(asked: list[str], message: str) -> Any:
    def sql(query: str) -> Any:
        asked.append(query)
        raise RuntimeError(message)

    return lambda: SimpleNamespace(sql=sql)


def test_it_is_tried_three_times_beside_other_writers(catalog: LakeCatalog, asked: list[str]) -> None:
    with pytest.raises(TableError, match=r"pizza\.orders: its manifests could not be replaced.* 3 times") as told:
        rewrite_manifests(failing(asked, GONE), catalog, ORDERS)
    assert len(asked) == 3
    assert GONE in str(told.value.__cause__)


def test_what_else_goes_wrong_is_raised_at_once(catalog: LakeCatalog, asked: list[str]) -> None:
    with pytest.raises(RuntimeError, match="No space left"):
        rewrite_manifests(failing(asked, "No space left on device"), catalog, ORDERS)
    assert len(asked) == 1


def test_spark_is_not_asked_for_few(catalog: LakeCatalog, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "_FEW", 3)
    rewrite_manifests(failing(asked, GONE), catalog, ORDERS)
    rewrite_manifests(failing(asked, GONE), catalog, ("pizza", "no_such_table"))
    assert asked == []
