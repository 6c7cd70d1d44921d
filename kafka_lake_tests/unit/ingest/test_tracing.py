"""Traces: what is sent to a collector, and what becomes of a run if there is none."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kafka_lake.common.processes import HOST, free_port

pytestmark = pytest.mark.processes

RUN = """
import sys
from types import SimpleNamespace
if "without" in sys.argv:
    sys.modules["opentelemetry"] = None
from kafka_lake.errors import TableError
from kafka_lake.ingest import telemetry
from kafka_lake.runtime.context import Effort
effort = Effort()
context = SimpleNamespace(
    spec=SimpleNamespace(topic="shop.orders"), table_name="shop.orders", run_id="run-1", effort=effort
)
effort.begin()
for step in ("plan", "stage"):
    effort.done(step)
telemetry.trace_failure(context, TableError("Not this one.", "Another."))
telemetry.trace_failure(context, ValueError("hunter2"))
for step in ("plan", "stage", "audit", "publish"):
    effort.done(step)
commit = SimpleNamespace(
    records=5, snapshot=9007199254740993, kind="append", rows=3, dead_letters=1, tombstones=1, files=1, size=10
)
telemetry.trace_commit(context, commit)
effort.done("plan")
telemetry.trace_failure(context, ValueError("hunter2"))
assert not effort.take_steps()
telemetry.flush()
"""


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    asked: list[Any] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, self.headers, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with HTTPServer((HOST, 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}", asked
        server.shutdown()


def run(*arguments: str, **variables: str) -> str:
    mine = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], env={**mine, **variables}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def told(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def test_a_collector_gets_each_commit_with_its_steps_and_each_failure(collector: tuple[str, list[Any]]) -> None:
    address, asked = collector
    run(OTEL_EXPORTER_OTLP_ENDPOINT=address, OTEL_EXPORTER_OTLP_HEADERS="x-key=k")
    assert {(path, headers["x-key"]) for path, headers, _ in asked} == {("/v1/traces", "k")}
    resources = [each for _, _, request in asked for each in request.resource_spans]
    assert {told(a.value) for each in resources for a in each.resource.attributes if a.key == "service.name"} == {
        "kafka-lake"
    }
    spans = [span for each in resources for scope in each.scope_spans for span in scope.spans]
    roots = [span for span in spans if not span.parent_span_id]
    steps = [[s.name for s in spans if s.parent_span_id == root.span_id] for root in roots]
    assert [root.name for root in roots] == ["process shop.orders"] * 3
    assert steps == [["plan", "stage"], ["plan", "stage", "audit", "publish"], ["plan"]]
    for span in spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert abs(span.end_time_unix_nano / 1e9 - time.time()) < 120
    attributes = [{a.key: told(a.value) for a in root.attributes} for root in roots]
    assert attributes[1] == {
        "messaging.system": "kafka", "messaging.operation.type": "process", "messaging.destination.name": "shop.orders",
        "messaging.batch.message_count": 5, "kafka_lake.table": "shop.orders", "kafka_lake.run_id": "run-1",
        "kafka_lake.snapshot": "9007199254740993", "kafka_lake.kind": "append", "kafka_lake.rows": 3,
        "kafka_lake.dead_letters": 1, "kafka_lake.tombstones": 1, "kafka_lake.files": 1, "kafka_lake.bytes": 10,
    }  # fmt: skip
    assert [each.get("error.type") for each in attributes] == ["TableError", None, "ValueError"]
    # What others say may quote a value.
    assert [root.status.message for root in roots] == ["Not this one.", "", "ValueError"]


def test_nobody_asks_and_nothing_is_sent(collector: tuple[str, list[Any]]) -> None:
    address, asked = collector
    assert run() == ""
    assert run(OTEL_EXPORTER_OTLP_ENDPOINT=address, OTEL_SDK_DISABLED="true") == ""
    assert not asked


def test_a_run_without_the_packages_says_how_to_install_them() -> None:
    assert run("without") == ""
    said = run("without", OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"http://{HOST}:{free_port()}/v1/traces")
    assert said.count("pip install 'kafka-lake[otel]'") == 1


def test_a_collector_that_is_not_there_fails_nothing() -> None:
    began = time.monotonic()
    said = run(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{HOST}:{free_port()}", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert "hunter2" not in said
    assert time.monotonic() - began < 30
