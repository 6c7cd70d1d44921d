"""Who launches a run, as Dagster's page does it, can't have the deployment's passwords sent elsewhere."""

import asyncio
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import PythonFileTarget
from dagster_graphql.schema import create_schema

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PASSWORD = "hush-sasl"
LOCATION = """
from pathlib import Path

import dagster as dg

defs = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
INSTANCE = """
telemetry: {enabled: false}
run_coordinator:
  module: dagster.core.run_coordinator
  class: DefaultRunCoordinator
"""
LAUNCH = """
mutation ($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on PythonError { message }
  }
}
"""


def await_end(instance: DagsterInstance, run_id: str) -> None:
    deadline = time.monotonic() + 120
    while not ((run := instance.get_run_by_id(run_id)) and run.is_finished):
        assert time.monotonic() < deadline, "the run goes on"
        time.sleep(0.1)


class Listener:
    """Accepts connections at a port of its own and keeps what they send."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.received: list[bytes] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> "Listener":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._server.close()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._server, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in ready.select(0.1):
                    if key.fileobj is self._server:
                        connection, _ = self._server.accept()
                        self.received.append(b"connected")
                        ready.register(connection, selectors.EVENT_READ)
                    elif not self._took(key.fileobj):
                        ready.unregister(key.fileobj)

    def _took(self, connection: Any) -> bool:
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        self.received.append(data)
        return bool(data)


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, Any]]]:
    """Return a function that launches a run by GraphQL; a run that was launched has ended when it returns."""
    for name, value in {
        "KAFKA_LAKE_HOME": str(tmp_path / "home"),
        "KAFKA_LAKE_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "KAFKA_LAKE_KAFKA_SASL_MECHANISM": "PLAIN",
        "KAFKA_LAKE_KAFKA_SASL_USERNAME": "me",
        "KAFKA_LAKE_KAFKA_SASL_PASSWORD": PASSWORD,
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "dagster.yaml").write_text(INSTANCE)
    for name, kind in {"cluster": "KafkaCluster", "orders": "KafkaTopic"}.items():
        (tmp_path / "defs" / name).mkdir(parents=True)
        attributes = "{retry_attempts: 1}" if name == "cluster" else "{topic: orders}"
        (tmp_path / "defs" / name / "defs.yaml").write_text(f"type: kafka_lake.{kind}\nattributes: {attributes}\n")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "defs"\ndefs_module = "defs"\n'
    )
    (tmp_path / "defs" / "__init__.py").touch()
    (tmp_path / "location.py").write_text(LOCATION)
    target = PythonFileTarget(str(tmp_path / "location.py"), None, str(tmp_path), None)
    with DagsterInstance.from_config(str(tmp_path)) as instance, WorkspaceProcessContext(instance, target) as process:
        schema = create_schema()

        def launch(job: str, assets: list[str], config: dict[str, Any]) -> dict[str, Any]:
            context = process.create_request_context()
            (location,) = context.code_locations
            selector = {
                "repositoryLocationName": location.name,
                "repositoryName": "__repository__",
                "jobName": job,
                "assetSelection": [{"path": assets}] if assets else [],
            }
            # As the page sends it: as text.
            params = {"selector": selector, "runConfigData": json.dumps(config)}
            answer = asyncio.run(
                schema.execute_async(LAUNCH, context_value=context, variable_values={"params": params})
            )
            assert answer.errors is None, answer.errors
            launched: dict[str, Any] = answer.data["launchRun"]
            if launched["__typename"] == "LaunchRunSuccess":
                await_end(instance, launched["run"]["runId"])
            return launched

        yield launch


@pytest.mark.exhaustive
def test_launch_with_config_of_resources_is_refused(ask: Callable[..., dict[str, Any]]) -> None:
    replay = {"ops": {"decode_again": {"config": {"topic": "orders"}}}}
    with Listener() as listener:
        kafka = {"kafka": {"config": {"properties": {"bootstrap.servers": listener.address}}}}
        registry = {"registry": {"config": {"properties": {"url": f"http://{listener.address}"}}}}
        catalog = {"catalog": {"config": {"properties": {"type": "rest", "uri": f"http://{listener.address}"}}}}
        spark = {"spark": {"config": {"spark_config": {"spark.master": f"spark://{listener.address}"}}}}
        for given in (kafka, registry, catalog, spark):
            for job, assets, more in (("__ASSET_JOB", ["lake", "orders"], {}), ("replay_dead_letters", [], replay)):
                launched = ask(job, assets, {"resources": given, **more})
                assert launched["__typename"] == "RunConfigValidationInvalid", (given, launched)
                (error,) = launched["errors"]
                assert "unexpected config entry" in error["message"]
    assert listener.received == []
