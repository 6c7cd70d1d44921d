"""`kafka-lake up --metrics`: the process that serves metrics is one of the stack's, and ends with it."""

from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from kafka_lake.common.errors import KafkaLakeError
from kafka_lake.common.server_process import free_port
from kafka_lake.local_stack.ports import Ports
from kafka_lake.local_stack.stack import Stack

pytestmark = pytest.mark.processes


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path))
    monkeypatch.setenv("KAFKA_LAKE_METRICS_PORT", str(free_port()))
    # Nobody is there: the process answers all the same.
    monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", f"127.0.0.1:{free_port()}")
    return Stack(Ports.from_env(), lambda _: None)


def test_metrics_are_served_until_the_stack_ends_and_their_end_ends_it(stack: Stack) -> None:
    with stack:
        url = stack.start_metrics()
        assert url == f"http://{stack.ports.metrics.address}/metrics"
        with urlopen(url, timeout=30) as answer:
            assert b"kafka_lake_collection_interval_seconds" in answer.read()
        stack.check()
        (process,) = [each for each in psutil.Process().children() if "metrics" in each.cmdline()]
        process.kill()
        process.wait()
        with pytest.raises(KafkaLakeError, match=r"The process of the metrics ended unexpectedly.*metrics\.log"):
            stack.check()
    assert not process.is_running()
