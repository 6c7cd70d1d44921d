"""The sensors that docs/monitoring.md has for alarms, as the page has them, against a receiver of webhooks."""

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import dagster as dg
import pytest
import requests

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
KEY = dg.AssetKey(["shop", "orders"])

pytestmark = pytest.mark.processes


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Give what the receiver gets; it answers with an error while that has a text `down`."""
    texts: list[str] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(503 if "down" in texts else 200)
            self.end_headers()
            if "down" not in texts:
                texts.append(body["text"])

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("ALARM_URL", f"http://127.0.0.1:{server.server_port}/hook")
    yield texts
    server.shutdown()
    server.server_close()


@pytest.fixture
def sensors() -> dict[str, Any]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (code,) = [block for block in blocks if "failed_checks" in block]
    found: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), found)
    return found


def checked(instance: dg.DagsterInstance, passed: bool, name: str = "freshness") -> None:
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(KEY, check_name=name, passed=passed, description="3 unread offsets")
    )


def test_alarm_is_sent_once_per_failure_and_recovery(reported: list[str], sensors: dict[str, Any]) -> None:
    specs = [dg.AssetCheckSpec(name, asset=KEY) for name in ("freshness", "row_count", "never_asked")]

    @dg.multi_asset_check(specs=specs)
    def checks() -> Iterator[dg.AssetCheckResult]:
        yield from ()

    repository = dg.Definitions(assets=[dg.AssetSpec(KEY)], asset_checks=[checks]).get_repository_def()
    with dg.instance_for_test() as instance:
        cursor = None

        def tick() -> list[str]:
            nonlocal cursor
            context = dg.build_sensor_context(instance=instance, repository_def=repository, cursor=cursor)
            cursor = sensors["failed_checks"].evaluate_tick(context).cursor
            seen = reported.copy()
            reported.clear()
            return seen

        assert tick() == []
        for _ in range(3):
            checked(instance, False)
        checked(instance, True, "row_count")
        assert tick() == ["shop/orders: freshness fails: 3 unread offsets"]
        checked(instance, False)
        assert tick() == []
        checked(instance, True)
        reported.append("down")
        with pytest.raises(requests.HTTPError, match="503"):
            tick()
        reported.clear()
        assert tick() == ["shop/orders: freshness passes again"]


def test_failed_run_alarm_names_its_topic(reported: list[str], sensors: dict[str, Any]) -> None:
    @dg.op
    def breaks() -> None:
        raise ValueError("a gate failed")

    job = dg.GraphDefinition("breaks_all", node_defs=[breaks]).to_job()
    with dg.instance_for_test() as instance:
        done = job.execute_in_process(instance=instance, raise_on_error=False, tags={"kafka_lake/topic": "eu/orders"})
        context = dg.build_run_status_sensor_context(
            sensor_name="failed_runs",
            dagster_event=done.get_run_failure_event(),
            dagster_instance=instance,
            dagster_run=done.dagster_run,
        ).for_run_failure()
        sensors["failed_runs"](context)
    (text,) = reported
    assert text.startswith(f"eu/orders: run {done.run_id[:8]} failed: ")
