"""`make demo` for real: what it shows, what `status` says afterwards, and that nothing of it stays behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from kafka_lake.common.processes import free_port
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.runtime.commit import CHECKS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "examples.pizza_shop"]


def deployment_in(home: Path) -> dict[str, str]:
    """Return the variables of a deployment of its own: state, ports."""
    ports = {f"KAFKA_LAKE_{name}_PORT": str(free_port()) for name in ("BROKER", "UI", "CONNECT", "REGISTRY")}
    ours = ("KAFKA_LAKE_", "SPARK_REMOTE")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == "KAFKA_LAKE_CACHE"}
    return {**inherited, **ports, "KAFKA_LAKE_HOME": str(home), "COLUMNS": "200"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return deployment_in(tmp_path_factory.mktemp("demo"))


def kafka_lake(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=400
    )


def processes_of(environment: Mapping[str, str]) -> list[str]:
    """Command lines of all processes that belong to this deployment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("KAFKA_LAKE_HOME") == environment["KAFKA_LAKE_HOME"]:
                found.append(" ".join(process.cmdline()))
    return found


def status(environment: Mapping[str, str]) -> dict:
    """What the command tells of the demo's topic beside its broker, which the command doesn't start."""
    port = int(environment["KAFKA_LAKE_BROKER_PORT"])
    with EmbeddedBroker(Path(environment["KAFKA_LAKE_HOME"]) / "kafka", port):
        asked = kafka_lake(environment, "status", "completed-pizzas", "--json")
    assert asked.returncode == 0, asked.stderr
    [topic] = json.loads(asked.stdout)
    return topic


def run_is_under_way(environment: Mapping[str, str]) -> bool:
    return any("org.apache.spark.deploy.SparkSubmit" in command for command in processes_of(environment))


def registry_is_up(environment: Mapping[str, str]) -> bool:
    return any("apicurio-registry-app" in command for command in processes_of(environment))


def dagster_is_up(environment: Mapping[str, str]) -> bool:
    return any("dagster._daemon" in command for command in processes_of(environment))


def test_demo_fills_its_table_and_stops_everything(environment: dict[str, str]) -> None:
    done = kafka_lake(environment, "demo", "--records", "2000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2,000 new rows, 2,000 rows in pizza.completed_pizzas" in done.stdout
    # The checks of the run, and no_dead_letters.
    assert len(re.findall(r" passed", done.stdout)) == len(CHECKS) + 1, done.stdout
    assert processes_of(environment) == []
    topic = status(environment)
    assert [partition["lag"] for partition in topic["partitions"]] == [0] * 6
    assert (topic["rows"], topic["dead_letters"]) == (2_000, 0)
    assert processes_of(environment) == []


@pytest.mark.exhaustive
def test_avro_demo_adds_a_column_during_its_run(environment: dict[str, str]) -> None:
    done = kafka_lake(environment, "demo", "--avro", "--records", "200")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 rows in pizza.deliveries" in done.stdout
    assert processes_of(environment) == []
    registry = f"http://127.0.0.1:{environment['KAFKA_LAKE_REGISTRY_PORT']}/apis/ccompat/v7"
    asked = kafka_lake(
        {**environment, "KAFKA_LAKE_SCHEMA_REGISTRY_URL": registry}, "schema", "pizza-deliveries", "--history", "--json"
    )
    assert asked.returncode == 0, asked.stderr
    [[first, second]] = json.loads(asked.stdout)
    columns = ["courier", "price", "left_at", "delivered_at", "note", "order_id", "_kafka"]
    assert [change["column"] for change in first["changes"]] == columns
    assert second["changes"] == [{"column": "tip", "kind": "added", "before": "", "after": "decimal(8, 2)"}]
    assert sum(second["position"]["pizza-deliveries"]["offsets"].values()) == 20


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("options", "moment", "number"),
    [
        (["--avro"], registry_is_up, signal.SIGTERM),
        ([], dagster_is_up, signal.SIGINT),
        ([], run_is_under_way, signal.SIGINT),
    ],
)
def test_signal_leaves_no_process(
    environment: dict[str, str],
    options: list[str],
    moment: Callable[[Mapping[str, str]], bool],
    number: signal.Signals,
) -> None:
    with subprocess.Popen(
        [*COMMAND, "demo", *options, "--records", "100"], cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL
    ) as demo:
        try:
            deadline = time.monotonic() + 120
            while not moment(environment):
                assert demo.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            demo.send_signal(number)
            assert demo.wait(90) == 128 + number
        finally:
            demo.kill()
    assert processes_of(environment) == []


@pytest.mark.exhaustive
def test_demo_after_interruptions_ingests_all_of_it_once(environment: dict[str, str]) -> None:
    done = kafka_lake(environment, "demo", "--records", "500")
    assert done.returncode == 0, done.stdout + done.stderr
    topic = status(environment)
    assert topic["lag"] == 0
    assert topic["rows"] == sum(partition["end"] for partition in topic["partitions"])
