"""`kafka-lake up --metrics`: the process that serves metrics is started again when killed, and ends with the stack."""

import time
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from kafka_lake.common.processes import free_port
from kafka_lake.devstack.running import Ports
from kafka_lake.devstack.stack import Stack

pytestmark = pytest.mark.processes


@pytest.fixture
def said() -> list[str]:
    return [""]


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> Stack:
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path))
    monkeypatch.setenv("KAFKA_LAKE_METRICS_PORT", str(free_port()))
    # No broker is there: the process answers all the same.
    monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", f"127.0.0.1:{free_port()}")
    return Stack(Ports.from_env(), said.append)


@pytest.mark.exhaustive
def test_metrics_are_served_until_the_stack_ends(stack: Stack, said: list[str]) -> None:
    with stack:
        url = stack.start_metrics()
        assert url == f"http://{stack.ports.metrics.address}/metrics"
        for _ in range(2):
            with urlopen(url, timeout=30) as answer:
                assert b"kafka_lake_collection_interval_seconds" in answer.read()
            stack.check()
            (process,) = [child for child in psutil.Process().children() if "metrics" in child.cmdline()]
            process.kill()
            process.wait()
            deadline = time.monotonic() + 60
            while said[-1] != "The process of the metrics runs again.":
                assert time.monotonic() < deadline, said
                stack.check()
                time.sleep(0.1)
            assert "metrics.log" in said[-2]
            said.append("")
        (process,) = [child for child in psutil.Process().children() if "metrics" in child.cmdline()]
    assert not process.is_running()
