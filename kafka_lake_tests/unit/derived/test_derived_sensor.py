"""The sensor of derived tables: a run for each table that lacks something, and patience with those that fail."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import dagster as dg
import pytest
from pyiceberg.table import Table

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.derived.upstream import read_of
from kafka_lake.orchestration.sensors.derived import evaluate, last_requests
from kafka_lake_tests.unit.derived.test_derived_detect import SPEC, Upstream, derived, upstream_table

Identifier = tuple[str, str]


class Catalog:
    """Tables by their names, as they are now."""

    def __init__(self, **tables: Any) -> None:
        self.tables = tables

    def table(self, identifier: Identifier) -> Table | None:
        return cast("Table | None", self.tables.get(identifier[1]))


class Ticks:
    """The sensor, tick by tick, each some seconds after the one before."""

    def __init__(self, catalog: Catalog, instance: dg.DagsterInstance) -> None:
        self.catalog, self.instance, self.now = catalog, instance, 1000.0
        self.cursor: str | None = None

    def tick(self, specs: Sequence[DerivedTable] = (SPEC,), seconds: float = 1.0) -> tuple[list[str], str]:
        self.now += seconds
        context = dg.build_sensor_context(self.instance, cursor=self.cursor)
        result = evaluate(context, specs, cast(LakeCatalog, self.catalog), clock=lambda: self.now)
        self.cursor = result.cursor
        asked = [item.asset_selection[0].to_user_string() for item in result.run_requests or () if item.asset_selection]
        return asked, result.skip_reason.skip_message or "" if result.skip_reason else ""


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture(autouse=True)
def _origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_lake.derived.plan.has_origin", lambda kind: kind is None)


def test_a_table_is_asked_for_when_its_upstream_table_has_news_and_only_then(instance: dg.DagsterInstance) -> None:
    upstream = Upstream()
    upstream.append(0, 0)
    ticks = Ticks(Catalog(), instance)
    assert ticks.tick() == ([], "Table lake.t reads lake.orders, which doesn't exist yet. Materialize it first; if it "
                            "has another name, correct from: or join:.")  # fmt: skip
    ticks.catalog = Catalog(orders=upstream_table(upstream))
    assert ticks.tick()[0] == ["lake/t"]
    ticks.catalog = Catalog(orders=upstream_table(upstream), t=derived(SPEC, read_of(upstream.table())))
    assert ticks.tick() == ([], "lake.t: up to date")
    upstream.compact()
    ticks.catalog.tables["orders"] = upstream_table(upstream)
    assert ticks.tick() == ([], "lake.t: up to date")
    upstream.append(1, 0)
    ticks.catalog.tables["orders"] = upstream_table(upstream)
    assert ticks.tick()[0] == ["lake/t"]
    assert ticks.tick([SPEC.model_copy(update={"every": "0 * * * *"})], 9999)[0] == [], "it has a schedule"


def test_a_table_whose_runs_publish_nothing_waits_longer_each_time(instance: dg.DagsterInstance) -> None:
    upstream = Upstream()
    upstream.append(0, 0)
    read = read_of(upstream.table())
    ticks = Ticks(Catalog(orders=upstream_table(upstream)), instance)
    ticks.catalog.tables["t"] = derived(SPEC, replace(read, snapshot=1, rows=0, added=0, position=None))
    asked = [second for second in range(400) if ticks.tick()[0]]
    assert asked == [0, 5, 15, 35, 75, 155, 315]
    ticks.catalog.tables["t"] = derived(SPEC, read)
    assert ticks.tick() == ([], "lake.t: up to date")
    upstream.append(0, 0)
    ticks.catalog.tables["orders"] = upstream_table(upstream)
    assert ticks.tick()[0] == ["lake/t"], "what has published since is asked for at once"


def test_a_run_in_flight_is_waited_for(instance: dg.DagsterInstance) -> None:
    upstream = Upstream()
    upstream.append(0, 0)
    ticks = Ticks(Catalog(orders=upstream_table(upstream)), instance)
    making = frozenset({dg.AssetKey(["lake", "t"])})
    instance.add_run(dg.DagsterRun("job", status=dg.DagsterRunStatus.STARTED, asset_selection=making))
    assert ticks.tick() == ([], "lake.t: a run is in flight")


def test_a_table_with_a_duration_is_asked_for_at_most_once_in_that_time(instance: dg.DagsterInstance) -> None:
    upstream, spec = Upstream(), SPEC.model_copy(update={"every": "2m"})
    upstream.append(0, 0)
    ticks = Ticks(Catalog(orders=upstream_table(upstream)), instance)
    assert ticks.tick([spec])[0] == ["lake/t"], "a table that isn't there yet needn't wait"
    made = derived(spec, read_of(Upstream().table()))
    newest = made.metadata.snapshots[-1]
    made.metadata.snapshots[-1] = newest.model_copy(update={"timestamp_ms": 999_000})
    ticks.catalog.tables["t"] = made
    asked, why = ticks.tick([spec], seconds=60)
    assert (asked, why) == ([], "lake.t: at most once in 2m, the next run starts in 58 s")
    assert ticks.tick([spec], seconds=60)[0] == ["lake/t"]


def test_one_table_that_can_not_be_planned_keeps_no_other_from_its_run(instance: dg.DagsterInstance) -> None:
    upstream = Upstream()
    upstream.append(0, 0)
    ticks = Ticks(Catalog(orders=upstream_table(upstream)), instance)
    ticks.catalog.tables["other"] = derived(SPEC, read_of(Upstream().table()), query="changed")
    assert ticks.tick([SPEC.model_copy(update={"table": "other"}), SPEC])[0] == ["lake/t"]
    assert "other: the query" in ticks.tick([SPEC.model_copy(update={"table": "other"})])[1]


def test_cursor_that_is_something_else_counts_as_none() -> None:
    assert last_requests('{"asked": 3}') == last_requests(None) == last_requests("no json") == {}
