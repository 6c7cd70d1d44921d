"""A run of a derived table maintains it where that is due, and asks Spark for nothing else. Real tables, no Spark."""

from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.catalog.positions import DERIVED
from kafka_lake.catalog.tables import ensure_table, schema_of
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.derived.engine import Engine
from kafka_lake.derived.run import cleaned
from kafka_lake.maintenance.maintain import Tables, due
from kafka_lake.runtime.context import Observer
from kafka_lake.spec.maintenance import Maintenance

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
POLICY = Maintenance(compact_every=2)
SPEC = DerivedTable(
    table="made",
    namespace="pizza",
    sources=("orders",),
    write="append",
    sql="SELECT id FROM orders",
    maintenance=POLICY,
)


@pytest.mark.parametrize(
    ("commits", "policy", "asked"),
    [(1, POLICY, 0), (2, POLICY, 1), (2, POLICY.model_copy(update={"enabled": False}), 0), (2, Maintenance(), 0)],
)
def test_a_derived_table_is_maintained_where_it_is_due(
    catalog: Any, commits: int, policy: Maintenance, asked: int
) -> None:
    catalog.ensure_namespace("pizza")
    table = ensure_table(catalog, SPEC.identifier, schema_of(ROWS.schema))
    for _ in range(commits):
        table.append(ROWS, snapshot_properties={DERIVED: "{}"})
    said, calls = list[str](), list[int]()

    def spark() -> Any:
        calls.append(1)
        raise RuntimeError("no Spark here")

    spec = SPEC.model_copy(update={"maintenance": policy})
    cleaned(spec, Engine(catalog, spark, "run-1", Observer(warn=said.append)), committed=True)
    assert len(calls) == asked
    reported = "Table pizza.made is up to date, but its maintenance failed: no Spark here"
    assert said == [reported] * asked, "what fails is for the next run"
    assert [item.name for item in due(spec, Tables(catalog, spark))] == ["pizza.made"]
