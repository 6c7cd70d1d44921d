"""Client of Dagster's GraphQL endpoint: runs, their events, and the reload of definitions."""

import json
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.request import Request, urlopen

from kafka_lake.errors import KafkaLakeError

_RUNS = """
query ($since: Float!) {
  runsOrError(filter: {updatedAfter: $since}) {
    __typename
    ... on PythonError { message }
    ... on Runs { results {
      runId status startTime endTime
      tags { key value }
      jobName
      assetSelection { path }
    } }
  }
}
"""

_EVENTS = """
query ($runId: ID!, $after: String) {
  runOrError(runId: $runId) {
    ... on Run { eventConnection(afterCursor: $after) {
      cursor hasMore
      events {
        __typename
        ... on MaterializationEvent {
          assetKey { path } partition
          metadataEntries {
            label
            ... on IntMetadataEntry { intRepr }
            ... on FloatMetadataEntry { floatValue }
            ... on TextMetadataEntry { text }
          }
        }
        ... on AssetCheckEvaluationEvent { evaluation {
          assetKey { path } checkName success severity description
        } }
        ... on ExecutionStepFailureEvent { stepKey error { message errorChain { error { message } } } }
        ... on RunFailureEvent { message error { message errorChain { error { message } } } }
      }
    } }
  }
}
"""

_RELOAD = """
mutation {
  reloadWorkspace {
    ... on Workspace { locationEntries { name locationOrLoadError { ... on PythonError { message } } } }
    ... on UnauthorizedError { message }
    ... on PythonError { message }
  }
}
"""


@dataclass(frozen=True)
class Run:
    """A run of Dagster.

    Args:
        status: Dagster's name, as ``SUCCESS``.
        sensor: Name of the sensor that requested it; empty for another run.
        assets: Keys of its assets, with parts joined by ``/``.
        ended: Seconds since the epoch; 0 while it runs.
    """

    run_id: str
    status: str
    sensor: str
    job: str
    assets: tuple[str, ...]
    ended: float


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one asset check in a run."""

    asset: str
    check: str
    passed: bool
    description: str


@dataclass(frozen=True)
class Materialization:
    """One materialization event; ``partition`` is empty for an event of the whole asset."""

    asset: str
    partition: str
    metadata: dict[str, Any]


@dataclass(frozen=True)
class RunReport:
    """The events of a run.

    Args:
        materializations: In the order of the events.
        checks: Check results, in the order of the events.
        failure: The innermost cause of the failure; empty if it didn't fail.
    """

    materializations: tuple[Materialization, ...]
    checks: tuple[CheckResult, ...]
    failure: str

    def of(self, asset: str) -> Self:
        """Return the events of one asset, by its key with parts joined by ``/``."""
        return replace(
            self,
            materializations=tuple(
                materialization for materialization in self.materializations if materialization.asset == asset
            ),
            checks=tuple(check for check in self.checks if check.asset == asset),
        )


class DagsterRuns:
    """Queries of a running web server."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/graphql"

    def since(self, moment: float) -> list[Run]:
        """Return the runs that changed after ``moment`` (seconds since the epoch), newest first."""
        answer = self._query(_RUNS, {"since": moment})["runsOrError"]
        if "results" not in answer:
            raise KafkaLakeError(f"Dagster at {self._url} can't list its runs: {answer.get('message')}.")
        return [_run(result) for result in answer["results"]]

    def report(self, run_id: str) -> RunReport:
        """Return the run's events."""
        events = self._events(run_id)
        failures = [_cause(event) for event in events if event["__typename"] == "ExecutionStepFailureEvent"]
        failures += [_cause(event) for event in events if event["__typename"] == "RunFailureEvent"]
        return RunReport(
            tuple(_materialization(event) for event in events if event["__typename"] == "MaterializationEvent"),
            tuple(
                _check(event["evaluation"]) for event in events if event["__typename"] == "AssetCheckEvaluationEvent"
            ),
            next((failure for failure in failures if failure), ""),
        )

    def _events(self, run_id: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            page = self._query(_EVENTS, {"runId": run_id, "after": after})["runOrError"]["eventConnection"]
            events += page["events"]
            if not page["hasMore"]:
                return events
            after = page["cursor"]

    def _query(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        return _post(self._url, query, variables, 30)


def reload_definitions(url: str) -> list[str]:
    """Reload the code locations, as the button Reload definitions does."""
    answer = _post(f"{url}/graphql", _RELOAD, {}, 120)["reloadWorkspace"]
    if "locationEntries" not in answer:
        raise KafkaLakeError(f"Dagster at {url} can't load its definitions again: {answer.get('message')}.")
    for entry in answer["locationEntries"]:
        if problem := (entry["locationOrLoadError"] or {}).get("message"):
            raise KafkaLakeError(f"Dagster at {url} can't load {entry['name']}: {problem.strip()}")
    return [entry["name"] for entry in answer["locationEntries"]]


def _post(url: str, query: str, variables: dict[str, Any], seconds: float) -> dict[str, Any]:
    body = json.dumps({"query": query, "variables": variables}).encode()
    try:
        with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=seconds) as response:
            answer = json.load(response)
    except OSError as error:
        raise KafkaLakeError(f"Dagster at {url} doesn't answer: {error}.") from error
    if "errors" in answer:
        raise KafkaLakeError(f"Dagster at {url} refused a query: {answer['errors'][0]['message']}")
    data: dict[str, Any] = answer["data"]
    return data


def _run(answer: dict[str, Any]) -> Run:
    tags = {tag["key"]: tag["value"] for tag in answer["tags"]}
    assets = tuple("/".join(key["path"]) for key in answer["assetSelection"] or [])
    return Run(
        run_id=answer["runId"],
        status=answer["status"],
        sensor=tags.get("dagster/sensor_name", ""),
        job=answer["jobName"],
        assets=assets,
        ended=answer["endTime"] or 0.0,
    )


def _materialization(event: dict[str, Any]) -> Materialization:
    metadata = {
        entry["label"]: next((entry[kind] for kind in ("intRepr", "floatValue", "text") if kind in entry), None)
        for entry in event["metadataEntries"]
    }
    return Materialization("/".join(event["assetKey"]["path"]), event["partition"] or "", metadata)


def _check(evaluation: dict[str, Any]) -> CheckResult:
    asset = "/".join(evaluation["assetKey"]["path"])
    return CheckResult(asset, evaluation["checkName"], evaluation["success"], evaluation["description"] or "")


def _cause(event: dict[str, Any]) -> str:
    error = event.get("error")
    if not error:
        return str(event.get("message") or "")
    chain = error["errorChain"]
    return str(chain[-1]["error"]["message"] if chain else error["message"]).strip()
