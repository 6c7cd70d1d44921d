"""Each way to launch a run in Dagster's UI, by the GraphQL that its page sends; the sensors are off."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer

from examples.pizza_shop.topics import ensure_topic
from kafka_lake.catalog.positions import read_state
from kafka_lake.devstack.dagster_runs import DagsterRuns, RunReport
from kafka_lake.devstack.dagster_servers import CodeLocation
from kafka_lake.devstack.stack import Stack
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.runtime.commit import CHECKS
from kafka_lake_tests.e2e.test_launch import ask, until, use_free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PARTITIONS = ["0", "1", "2"]
ORDERS, LATE, BY_SHOP = ["lake", "orders"], ["lake", "late"], ["lake", "by_shop"]
DOCUMENTS = {
    "cluster": "type: kafka_lake.KafkaCluster\nattributes: {sensor_running: false, retry_attempts: 1}",
    "orders": "type: kafka_lake.KafkaTopic\n"
    "attributes: {topic: orders, table: {columns: 'id bigint not null, shop int'}}",
    "late": "type: kafka_lake.KafkaTopic\nattributes: {topic: late, table: {columns: id bigint not null}}",
    "by_shop": "type: kafka_lake.DerivedTable\nattributes: {table: by_shop, from: [orders], write: aggregate, "
    "every: '0 0 1 1 *', key: [shop], sql: 'SELECT shop, count(*) AS n FROM orders GROUP BY shop'}",
}
DEFINITIONS = """
from pathlib import Path

import dagster as dg


@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
PROJECT = """
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
code_location_name = "shop"
registry_modules = ["kafka_lake"]
"""
LOCATION = {"repositoryLocationName": "shop", "repositoryName": "__repository__"}
ERRORS = "... on PythonError { message } ... on UnauthorizedError { message }"
LAUNCH = """
mutation ($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
  __typename
  ... on LaunchRunSuccess { run { id } }
  ... on RunConfigValidationInvalid { errors { message } }
  ... on InvalidSubsetError { message } ... on PythonError { message }
} }
"""
BACKFILL = """
mutation ($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
  __typename
  ... on LaunchBackfillSuccess { backfillId }
  ... on PartitionKeysNotFoundError { message } ... on PythonError { message }
} }
"""
BACKFILLED = """
query ($id: String!) { partitionBackfillOrError(backfillId: $id) {
  ... on PartitionBackfill { status error { message } runs: cancelableRuns { id } partitionNames }
} }
"""
RUNS = """
query ($id: String!) { runsOrError(filter: {tags: [{key: "dagster/backfill", value: $id}]}) {
  ... on Runs { results { id status } }
} }
"""
AGAIN = """
mutation ($params: ReexecutionParams!) { launchPipelineReexecution(reexecutionParams: $params) {
  __typename
  ... on LaunchRunSuccess { run { id parentRunId } }
  ... on PythonError { message }
} }
"""
END = """
mutation ($ids: [String!]!) { terminateRuns(runIds: $ids, terminatePolicy: SAFE_TERMINATE) {
  ... on TerminateRunsResult { terminateRunResults { __typename ... on TerminateRunFailure { message } } }
} }
"""
ADD = """
mutation ($selector: RepositorySelector!, $name: String!, $key: String!) {
  addDynamicPartition(repositorySelector: $selector, partitionsDefName: $name, partitionKey: $key) { __typename }
}
"""
DELETE = """
mutation ($selector: RepositorySelector!, $name: String!, $keys: [String!]!) {
  deleteDynamicPartitions(repositorySelector: $selector, partitionsDefName: $name, partitionKeys: $keys) { __typename }
}
"""
MATERIALIZED = """
query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions failedPartitions } }
  assetMaterializations(limit: 1) { partition metadataEntries { label ... on IntMetadataEntry { intRepr } } }
} } }
"""
CHECKS_OF = """
query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  assetChecksOrError { ... on AssetChecks { checks {
    name executionForLatestMaterialization { status }
  } } }
} } }
"""
RUN = "query ($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"


@dataclass
class Page:
    """Dagster's UI, and the topics behind it."""

    url: str
    bootstrap: str
    sent: int = 0

    def send(self, topic: str = "orders", count: int = 30) -> None:
        """Produce records, the same number to each partition."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(self.sent, self.sent + count):
            value = json.dumps({"id": number, "shop": number % 2}).encode()
            producer.produce(topic, value, partition=number % len(PARTITIONS) if topic == "orders" else 0)
        assert producer.flush(30) == 0
        self.sent += count if topic == "orders" else 0

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the one answer to a query."""
        (answer,) = ask(self.url, query, **variables).values()
        found: dict[str, Any] = answer
        return found

    def launch(self, *assets: list[str], config: dict[str, Any] | None = None, **tags: str) -> str:
        """Launch one run as the button "Launch 1 run" does, and return its id."""
        params = {
            "mode": "default",
            "selector": {
                **LOCATION,
                "jobName": "__ASSET_JOB",
                "assetSelection": [{"path": path} for path in assets],
                # As the page does: all checks of the assets.
                "assetCheckSelection": [
                    {"assetKey": {"path": asset}, "name": c} for asset in assets for c in self.checks(asset)
                ],
            },
            "executionMetadata": {"tags": [{"key": f"dagster/{name}", "value": value} for name, value in tags.items()]},
            "runConfigData": {"ops": {"lake__orders": {"config": config}}} if config else {},
        }
        launched = self.ask(LAUNCH, params=params)
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return str(launched["run"]["id"])

    def checks(self, path: list[str]) -> list[str]:
        """Return the checks that the page of an asset shows."""
        reported = self.ask(CHECKS_OF, key={"path": path})["assetChecksOrError"]
        return [check["name"] for check in reported["checks"]]

    def newest_checks(self) -> dict[str, str]:
        """Return how the checks of the table stand, as its page counts them."""
        reported = self.ask(CHECKS_OF, key={"path": ORDERS})["assetChecksOrError"]["checks"]
        return {
            item["name"]: (item["executionForLatestMaterialization"] or {}).get("status", "grey") for item in reported
        }

    def status(self, run: str) -> str:
        """Return how a run is doing."""
        return str(self.ask(RUN, id=run)["status"])

    def ended(self, run: str) -> tuple[str, RunReport]:
        """Wait for a run, and return how it ended and what it told."""
        until(lambda: self.status(run) in ("SUCCESS", "FAILURE", "CANCELED"), f"run {run}", 240)
        return self.status(run), DagsterRuns(self.url).report(run)

    def backfill(self, *assets: list[str], **params: Any) -> list[str]:
        """Launch a backfill as the button does, and return its runs once it is green."""
        asked = {"assetSelection": [{"path": path} for path in assets], "tags": [], **params}
        launched = self.ask(BACKFILL, params=asked)
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        identity = launched["backfillId"]

        def over() -> Any:
            reported = self.ask(BACKFILLED, id=identity)
            return reported if reported["status"] not in ("REQUESTED", "CANCELING", "FAILING") else None

        reported = until(over, f"backfill {identity}", 300)
        assert reported["status"] == "COMPLETED_SUCCESS", reported
        runs = self.ask(RUNS, id=identity)["results"]
        assert {run["status"] for run in runs} == {"SUCCESS"}
        return [run["id"] for run in runs]

    def materialized(self, path: list[str] = ORDERS) -> list[str]:
        """Return the partitions that the page shows in green; none may be red."""
        statuses = self.ask(MATERIALIZED, key={"path": path})["assetPartitionStatuses"]
        assert statuses["failedPartitions"] == []
        return sorted(statuses["materializedPartitions"])

    def newest(self) -> dict[str, Any]:
        """Return what the page shows of the table: the metadata of its newest materialization."""
        (event,) = self.ask(MATERIALIZED, key={"path": ORDERS})["assetMaterializations"]
        return {entry["label"]: entry.get("intRepr") for entry in event["metadataEntries"]}


def rows(table: str = "orders") -> list[int]:
    found = CatalogResource().open().table(("lake", table))
    return sorted(found.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()) if found else []


def position() -> dict[int, int]:
    table = CatalogResource().open().table(("lake", "orders"))
    state = read_state(table) if table else None
    return dict(state.position.offsets) if state and state.position else {}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("launch")
    for name, document in DOCUMENTS.items():
        (folder / "shop" / "defs" / name).mkdir(parents=True)
        (folder / "shop" / "defs" / name / "defs.yaml").write_text(document)
    (folder / "shop" / "__init__.py").write_text("")
    (folder / "shop" / "definitions.py").write_text(DEFINITIONS)
    (folder / "pyproject.toml").write_text(PROJECT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_LAKE_HOME", str(folder / "home"))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        for name in ("KAFKA_LAKE_BOOTSTRAP_SERVERS", "SPARK_REMOTE"):
            # Set and deleted, so that what the stack sets is undone after the test too.
            patch.setenv(name, "")
            patch.delenv(name)
        with Stack(use_free_ports(patch), lambda line: None) as stack:
            bootstrap = stack.start_broker()
            ensure_topic(bootstrap, "orders", len(PARTITIONS))
            stack.start_connect(CatalogResource().open())
            location = CodeLocation("shop", ("-m", "shop.definitions"))
            found = Page(stack.start_dagster([location], folder), bootstrap)
            for key in PARTITIONS:
                added = found.ask(ADD, selector=LOCATION, name="kafka/orders", key=key)
                assert added["__typename"] == "AddDynamicPartitionSuccess"
            yield found


def test_backfill_of_all_partitions_is_one_run_and_green(page: Page) -> None:
    page.send()
    (run,) = page.backfill(ORDERS, partitionNames=PARTITIONS, fromFailure=False)
    reported = DagsterRuns(page.url).report(run)
    assert {materialization.partition for materialization in reported.materializations} == {*PARTITIONS}
    assert {check.check: check.passed for check in reported.checks} == dict.fromkeys(
        [*CHECKS, "no_dead_letters", "table_health"], True
    )
    assert page.materialized() == PARTITIONS
    assert rows() == list(range(page.sent))
    assert page.newest()["dagster/row_count"] == str(page.sent)
    # None is grey: each is for the newest materialization.
    assert page.newest_checks() == dict.fromkeys([*CHECKS, "no_dead_letters", "table_health"], "SUCCEEDED")


@pytest.mark.exhaustive
def test_backfill_of_partitions_with_a_gap_reads_them_alone(page: Page) -> None:
    before = position()
    page.send()
    runs = page.backfill(ORDERS, partitionNames=["0", "2"], fromFailure=False)
    assert len(runs) == 2
    after = position()
    assert [after[p] - before.get(p, 0) for p in (0, 1, 2)] == [10, 0, 10]
    # A range of them is one run.
    assert len(page.backfill(ORDERS, partitionNames=["1", "2"], fromFailure=False)) == 1
    assert rows() == list(range(page.sent))


@pytest.mark.exhaustive
def test_backfill_of_several_assets_is_green(page: Page) -> None:
    page.send()
    page.backfill(ORDERS, BY_SHOP, allPartitions=True)
    assert rows() == list(range(page.sent))
    table = CatalogResource().open().table(("lake", "by_shop"))
    assert table is not None
    assert sum(table.scan().to_arrow()["n"].to_pylist()) == page.sent


@pytest.mark.exhaustive
def test_one_run_of_several_assets_is_for_their_partitions(page: Page) -> None:
    page.send()
    status, reported = page.ended(
        page.launch(ORDERS, BY_SHOP, asset_partition_range_start="0", asset_partition_range_end="2")
    )
    assert status == "SUCCESS", reported.failure
    # Dagster tells of a result's partitions in no order.
    told_of = [
        materialization.partition
        for materialization in reported.materializations
        if materialization.asset == "lake/orders"
    ]
    assert sorted(told_of) == ["", *PARTITIONS]
    assert rows() == list(range(page.sent))


@pytest.mark.exhaustive
def test_replace_leaves_each_row_once(page: Page) -> None:
    page.send()
    page.backfill(ORDERS, partitionNames=PARTITIONS, fromFailure=False)
    before = rows()
    run = page.launch(
        ORDERS, config={"mode": "replace"}, asset_partition_range_start="0", asset_partition_range_end="2"
    )
    status, reported = page.ended(run)
    assert status == "SUCCESS", reported.failure
    added = [
        int(materialization.metadata["dagster/partition_row_count"])
        for materialization in reported.materializations
        if materialization.partition
    ]
    assert sum(added) == page.sent
    assert rows() == before == list(range(page.sent))


@pytest.mark.exhaustive
def test_terminated_run_keeps_its_commits(page: Page) -> None:
    page.send()
    run = page.launch(ORDERS, config={"catch_up_for": 600, "poll_every": 0.5}, partition="0")
    until(lambda: page.status(run) == "STARTED" and len(rows()) > page.sent - 30, "its first commit")
    committed = rows()
    (ended,) = page.ask(END, ids=[run])["terminateRunResults"]
    assert ended["__typename"] == "TerminateRunSuccess", ended
    assert page.ended(run)[0] == "CANCELED"
    page.backfill(ORDERS, partitionNames=PARTITIONS, fromFailure=False)
    assert set(committed) < set(rows())
    assert rows() == list(range(page.sent))


@pytest.mark.exhaustive
def test_run_executed_again_from_failure_succeeds(page: Page) -> None:
    assert page.ask(ADD, selector=LOCATION, name="kafka/late", key="0")["__typename"] == "AddDynamicPartitionSuccess"
    failed = page.launch(LATE, partition="0")
    status, reported = page.ended(failed)
    assert (status, "UNKNOWN_TOPIC_OR_PART" in reported.failure) == ("FAILURE", True)
    ensure_topic(page.bootstrap, "late", 1)
    page.send("late", 3)
    again = page.ask(AGAIN, params={"parentRunId": failed, "strategy": "FROM_FAILURE"})
    assert again["__typename"] == "LaunchRunSuccess", again
    assert again["run"]["parentRunId"] == failed
    status, reported = page.ended(again["run"]["id"])
    assert status == "SUCCESS", reported.failure
    assert [materialization.partition for materialization in reported.materializations] == ["0", ""]
    assert len(rows("late")) == 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("key", ["7", "seven"])
def test_partition_that_kafka_lacks_is_refused_by_name(page: Page, key: str) -> None:
    page.send()
    page.ask(ADD, selector=LOCATION, name="kafka/orders", key=key)
    try:
        status, reported = page.ended(page.launch(ORDERS, partition=key))
        assert status == "FAILURE"
        assert f"no partition {key}" in reported.failure
        # Beside those of the topic it is left out.
        page.backfill(ORDERS, partitionNames=[*PARTITIONS, key], fromFailure=False)
        assert rows() == list(range(page.sent))
        assert position().keys() == {0, 1, 2}
    finally:
        deleted = page.ask(DELETE, selector=LOCATION, name="kafka/orders", keys=[key])
        assert deleted["__typename"] == "DeleteDynamicPartitionsSuccess"
