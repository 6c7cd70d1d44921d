"""What a person does in the UI, by the same GraphQL mutations: materialize one partition or all, run checks alone."""

import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from examples.pizza_shop import orders, topics
from kafka_lake.catalog.positions import read_state
from kafka_lake.cli.find_project import code_locations, targets
from kafka_lake.devstack.dagster_runs import DagsterRuns, RunReport
from kafka_lake.devstack.running import Ports
from kafka_lake.devstack.stack import Stack
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.runtime.commit import CHECKS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

TABLE = ("pizza", "completed_pizzas")
LAUNCH = """
mutation ($selector: JobOrPipelineSelector!, $tags: [ExecutionTag!]!) {
  launchRun(executionParams: {selector: $selector, executionMetadata: {tags: $tags}}) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on PresetNotFoundError { message }
  }
}
"""
SENSOR = """
query ($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector) {
  __typename ... on Sensor { sensorState { id status } }
} }
"""
STOP = """
mutation ($id: String!) { stopSensor(id: $id) {
  __typename ... on StopSensorMutationResult { instigationState { status } }
} }
"""
PARTITIONS = """
query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode { partitionKeys } } }
"""
LOCATION = {"repositoryLocationName": "kafka_lake", "repositoryName": "__repository__"}


def use_free_ports(monkeypatch: pytest.MonkeyPatch) -> Ports:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for socket_ in sockets:
            socket_.bind(("127.0.0.1", 0))
        names = ("KAFKA_LAKE_BROKER_PORT", "KAFKA_LAKE_UI_PORT", "KAFKA_LAKE_CONNECT_PORT")
        for name, value in zip(names, sockets, strict=True):
            monkeypatch.setenv(name, str(value.getsockname()[1]))
    return Ports.from_env()


def ask(url: str, query: str, **variables: Any) -> dict[str, Any]:
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as response:
        answer = json.load(response)
    assert "errors" not in answer, answer
    return answer["data"]


def until(condition: Callable[[], Any], what: str, timeout: float = 180) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(0.5)
    return found


def launch(url: str, tags: dict[str, str], assets: list[str], checks: tuple[str, ...]) -> RunReport:
    """Launch as the UI does, await success, and return what the run's events tell."""
    selector = {
        **LOCATION,
        "jobName": "__ASSET_JOB",
        "assetSelection": [{"path": assets}] if assets else [],
        "assetCheckSelection": [{"assetKey": {"path": list(TABLE)}, "name": name} for name in checks],
    }
    pairs = [{"key": key, "value": value} for key, value in tags.items()]
    launched = ask(url, LAUNCH, selector=selector, tags=pairs)["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run_id = launched["run"]["runId"]
    runs = DagsterRuns(url)

    def ended() -> Any:
        return next((r for r in runs.since(0) if r.run_id == run_id and r.ended), None)

    run = until(ended, f"run {run_id}")
    report = runs.report(run_id)
    assert run.status == "SUCCESS", report.failure
    return report


@pytest.mark.exhaustive
def test_launchpad_runs_one_or_all_partitions_or_checks(tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path))
    for name in ("KAFKA_LAKE_BOOTSTRAP_SERVERS", "SPARK_REMOTE"):
        # Set and deleted, so that what the stack sets is undone after the test too.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    # As a process leaves it to its children that has had a Connect session.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with Stack(use_free_ports(monkeypatch), lambda line: None) as stack:
        bootstrap = stack.start_broker()
        topics.ensure_topic(bootstrap, orders.TOPIC, orders.PARTITIONS)
        project = Path(__file__).parents[2]
        url = stack.start_dagster(code_locations(targets(project)), project)
        key = {"path": list(TABLE)}
        until(
            lambda: ask(url, PARTITIONS, key=key)["assetNodeOrError"].get("partitionKeys") == list("012345"),
            "the sensor to add six partitions in numeric order",
        )
        sensor = ask(url, SENSOR, selector={**LOCATION, "sensorName": "kafka_offsets"})["sensorOrError"]
        assert sensor["sensorState"]["status"] == "RUNNING"
        stopped = ask(url, STOP, id=sensor["sensorState"]["id"])["stopSensor"]
        assert stopped["instigationState"]["status"] == "STOPPED", stopped
        orders.produce_orders(bootstrap, orders.TOPIC, 2000, 1, lambda done: None)

        materialized = launch(url, {"dagster/partition": "3"}, list(TABLE), CHECKS)

        (event, whole) = materialized.materializations
        assert event.partition == "3"
        assert (whole.partition, whole.metadata["records_read"]) == ("", event.metadata["dagster/partition_row_count"])
        assert {c.check: c.passed for c in materialized.checks} == dict.fromkeys([*CHECKS, "no_dead_letters"], True)
        table = CatalogResource().open().table(TABLE)
        in_table = table.scan(selected_fields=("_kafka.partition",)).to_arrow().num_rows
        position = read_state(table).position.offsets
        assert in_table == position[3] == int(event.metadata["dagster/partition_row_count"]) > 0
        assert {p: o for p, o in position.items() if p != 3} == dict.fromkeys([0, 1, 2, 4, 5], 0)

        everything = launch(url, {}, list(TABLE), CHECKS)

        assert [materialization.partition for materialization in everything.materializations] == [*"012345", ""]
        state = read_state(CatalogResource().open().table(TABLE))
        assert sum(state.position.offsets.values()) == 2000

        checked = launch(url, {}, [], CHECKS)

        assert {c.check: c.passed for c in checked.checks} == dict.fromkeys(CHECKS, True)
        assert checked.materializations == ()
