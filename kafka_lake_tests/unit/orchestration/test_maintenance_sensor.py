"""Which maintenance one tick asks for. Tables and Dagster's instance are real; no run is executed."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
import yaml
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import CREATED, POSITION
from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.maintenance import policy
from kafka_lake.orchestration.assets import Presentation, build_topic_assets
from kafka_lake.orchestration.heartbeat import HEARTBEAT_TAG
from kafka_lake.orchestration.jobs import build_maintenance_job, health_check_key
from kafka_lake.orchestration.keys import MAINTENANCE_TAG, table_key
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake.orchestration.sensors.maintenance import at_once, build_maintenance_sensor, evaluate
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.topic_table import TopicTable

POLICY = Maintenance(compact_every=2)
SPECS = [TopicTable(name, "pizza", name, maintenance=POLICY) for name in ("a", "b", "c")]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def tick(instance: dg.DagsterInstance, catalog: LakeCatalog) -> Callable[..., dg.SensorResult]:
    def evaluated(
        cursor: str | None = None, clock: Callable[[], float] = lambda: 1e9, specs: list[TopicTable] = SPECS
    ) -> dg.SensorResult:
        return evaluate(dg.build_sensor_context(instance=instance, cursor=cursor), specs, catalog, clock)

    return evaluated


def committed(catalog: LakeCatalog, commits: int, spec: TopicTable) -> None:
    rows, position = pa.table({"id": [1]}), Position(TopicIdentity("c", "t", spec.topic), {0: 1}).to_json()
    catalog.ensure_namespace("pizza")
    table = catalog.pyiceberg.create_table_if_not_exists(spec.identifier, rows.schema, properties={CREATED: "{}"})
    for _ in range(commits):
        table.append(rows, snapshot_properties={POSITION: position})


def tables(result: dg.SensorResult) -> list[str]:
    return [request.tags[MAINTENANCE_TAG] for request in result.run_requests or ()]


def test_a_run_has_several_tables_and_a_keyed_one_is_alone(catalog: LakeCatalog, tick: Any) -> None:
    for spec, commits in zip(SPECS, (2, 4, 1), strict=True):
        committed(catalog, commits, spec)
    result = tick()
    assert tables(result) == ["pizza.b,pizza.a"]
    (request,) = result.run_requests
    assert request.asset_check_keys == [health_check_key(SPECS[1]), health_check_key(SPECS[0])]
    keyed = [replace(spec, write="upsert", key=("id",)) if spec.table == "b" else spec for spec in SPECS]
    first = tick(specs=keyed)
    assert tables(first) == ["pizza.b"]
    assert tables(tick(first.cursor, specs=keyed)) == ["pizza.a"]


def test_who_has_waited_longest_is_first_whatever_others_need(catalog: LakeCatalog, tick: Any) -> None:
    keyed = [replace(spec, write="upsert", key=("id",)) for spec in SPECS]
    for spec, commits in zip(keyed, (9, 8, 2), strict=True):
        committed(catalog, commits, spec)
    asked, cursor = [], None
    for number in range(9):
        result = tick(cursor, lambda number=number: 1e9 + 300 * number, specs=keyed)
        asked += tables(result)
        cursor = result.cursor
    # Whatever was done hasn't helped: none is asked for twice within a quarter of an hour.
    assert asked == ["pizza.a", "pizza.b", "pizza.c"] * 3


def test_a_clock_that_is_set_back_delays_nothing_for_ever(catalog: LakeCatalog, tick: Any) -> None:
    committed(catalog, 2, SPECS[0])
    first = tick(None, lambda: 2e9)
    back = tick(first.cursor, lambda: 1e9)
    assert tables(back) == []
    assert tables(tick(back.cursor, lambda: 1e9 + 901)) == ["pizza.a"]


def test_a_table_that_rots_is_a_warning_though_no_run_comes(
    catalog: LakeCatalog, tick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(catalog, 3, SPECS[0])
    assert tick().asset_events == []
    monkeypatch.setattr(policy, "_FAR_TOO_MANY_COMMITS", 2)
    (warning,) = tick().asset_events
    assert (warning.asset_key, warning.check_name, warning.passed) == (
        table_key(SPECS[0]),
        "table_health",
        False,
    )
    assert "pizza.a: 3 small files make reading slow" in warning.description


def test_a_run_in_progress_is_waited_for_and_a_dead_one_or_a_queued_one_is_not(
    catalog: LakeCatalog, instance: dg.DagsterInstance, tick: Any
) -> None:
    for spec in SPECS[:2]:
        committed(catalog, 2, spec)
    job = dg.GraphDefinition("any").to_job()
    tags = {MAINTENANCE_TAG: "pizza.a"}
    running = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=tags)
    result = tick()
    assert tables(result) == []
    assert "pizza.a: its maintenance is in flight" in str(result.skip_reason)
    instance.delete_run(running.run_id)
    died = {HEARTBEAT_TAG: "elsewhere:boot:1:17:123 2026-01-02T03:04:05+00:00"}
    dead = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags={**tags, **died})
    assert tables(tick()) == ["pizza.a,pizza.b"]
    run = instance.get_run_by_id(dead.run_id)
    assert run is not None
    assert run.status is dg.DagsterRunStatus.FAILURE


def test_so_many_runs_at_once_as_dagster_s_queue_lets_begin(catalog: LakeCatalog, tmp_path: Path) -> None:
    for spec in SPECS:
        committed(catalog, 2, spec)
    shipped = yaml.safe_load((Path(__file__).parents[3] / "dagster.yaml").read_text())
    job, found = dg.GraphDefinition("any").to_job(), []
    for limit in (None, 2, [{"key": "team", "limit": 3}]):
        limits = shipped["concurrency"]["runs"]["tag_concurrency_limits"] if limit is None else limit
        reported = [{"key": MAINTENANCE_TAG, "limit": limits}] if isinstance(limits, int) else limits
        home = tmp_path / str(len(found))
        home.mkdir()
        (home / "dagster.yaml").write_text(
            yaml.safe_dump({"concurrency": {"runs": {"tag_concurrency_limits": reported}}})
        )
        with dg.DagsterInstance.from_config(str(home)) as instance:
            tags = {MAINTENANCE_TAG: "pizza.a"}
            instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=tags)
            context = dg.build_sensor_context(instance=instance)
            found.append((at_once(instance), tables(evaluate(context, SPECS, catalog, lambda: 1e9))))
    # What is in progress isn't asked for a second time.
    assert found == [(1, []), (2, ["pizza.b,pizza.c"]), (1, [])]


def test_a_run_that_waits_in_the_queue_keeps_no_other_table_waiting(
    catalog: LakeCatalog, instance: dg.DagsterInstance, tick: Any
) -> None:
    for spec, commits in zip(SPECS[:2], (3, 2), strict=True):
        committed(catalog, commits, spec)
    origin = RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin("127.0.0.1", 4000, location_name="here"), "repo")
    queued = dg.DagsterRun(
        "job",
        tags={MAINTENANCE_TAG: "pizza.a"},
        status=dg.DagsterRunStatus.QUEUED,
        remote_job_origin=origin.get_job_origin("job"),
    )
    instance.add_run(queued)
    assert tables(tick()) == ["pizza.b"]


def test_a_table_that_cannot_be_looked_at_keeps_no_other_waiting(
    catalog: LakeCatalog, tick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(catalog, 2, SPECS[1])
    look = LakeCatalog.table

    def broken(self: LakeCatalog, identifier: tuple[str, str]) -> Any:
        if identifier == SPECS[0].identifier:
            raise OSError("its metadata are gone")
        return look(self, identifier)

    monkeypatch.setattr(LakeCatalog, "table", broken)
    assert tables(tick()) == ["pizza.b"]


@pytest.mark.parametrize("cursor", ["of another version", '{"a": 1}', "[]", '{"asked": 3}'])
def test_a_cursor_that_is_not_understood_is_none(cursor: str, catalog: LakeCatalog, tick: Any) -> None:
    committed(catalog, 2, SPECS[0])
    assert tables(tick(cursor)) == ["pizza.a"]


def test_a_tick_ends_in_time_and_the_next_one_goes_on_behind_it(catalog: LakeCatalog, tick: Any) -> None:
    for spec in SPECS:
        committed(catalog, 2, spec)
    seen = []
    cursor = None
    for number in range(4):
        # Each look at a table takes 15 seconds.
        times = iter(1e9 + 10_000 * number + 15 * n for n in range(100))
        result = tick(cursor, lambda times=times: next(times))
        seen.append((tables(result), json.loads(result.cursor)["after"]))
        cursor = result.cursor
    assert [after for _, after in seen] == ["pizza.a", "pizza.b", "pizza.c", "pizza.a"]
    assert [found for found, _ in seen] == [["pizza.a"], ["pizza.b"], ["pizza.c"], ["pizza.a"]]


def test_who_switches_it_off_is_not_asked(catalog: LakeCatalog, tick: Any) -> None:
    committed(catalog, 5, SPECS[0])
    off = replace(SPECS[0], maintenance=POLICY.model_copy(update={"enabled": False}))
    assert tables(tick(specs=[off])) == []


def test_the_sensor_asks_for_the_job_and_its_tables(catalog: LakeCatalog, instance: dg.DagsterInstance) -> None:
    committed(catalog, 2, SPECS[0])
    resource = CatalogResource(properties=catalog.properties)
    job = build_maintenance_job()
    sensor = build_maintenance_sensor(job, 300, True)
    definitions = dg.Definitions(
        assets=[asset for spec in SPECS for asset in build_topic_assets(spec, Presentation("g"))],
        sensors=[sensor],
        jobs=[job],
        resources={
            "catalog": resource,
            "kafka": KafkaResource(),
            "registry": RegistryResource(),
            "spark": SparkResource(spark_config={}, catalog=resource),
        },
    )
    repository = definitions.get_repository_def()
    context = dg.build_sensor_context(instance=instance, repository_def=repository, resources={"catalog": resource})
    (request,) = sensor.evaluate_tick(context).run_requests or ()
    assert request.asset_check_keys == [health_check_key(SPECS[0])]
    # Nothing of the table itself is selected: its own runs need not wait.
    assert request.asset_selection is None
    nodes = {node.name: node.definition.pools for node in repository.get_job(sensor.job_name).nodes}
    assert nodes == {f"pizza__{name}__table_health": {f"maintenance_table_pizza_{name}"} for name in "abc"}
