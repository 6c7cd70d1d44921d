"""What another account of the machine, or another machine, can reach of `kafka-lake up`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kafka_lake.common.processes import HOST, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

COMMAND = [sys.executable, "-c", "from kafka_lake.cli.main import main; main()"]
OTHERS = 0o077
SERVERS = ("BROKER", "UI", "CONNECT")


@pytest.fixture
def ports() -> dict[str, int]:
    return {name: free_port() for name in SERVERS}


@pytest.fixture
def running(tmp_path: Path, ports: dict[str, int]) -> Iterator[psutil.Process]:
    """`kafka-lake up` in a new project, once all is up."""
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("KAFKA_LAKE_", "PYICEBERG_", "SPARK_", "DAGSTER_HOME"))
    }
    cache = {k: v for k, v in os.environ.items() if k == "KAFKA_LAKE_CACHE"}
    given = {f"KAFKA_LAKE_{name}_PORT": str(port) for name, port in ports.items()}
    environment = {**inherited, **cache, **given, "COLUMNS": "200"}
    project = tmp_path / "shop"
    subprocess.run([*COMMAND, "init", str(project)], env=environment, check=True, stdout=subprocess.DEVNULL)
    # What makes files and folders gives others all that it can.
    with subprocess.Popen(
        [*COMMAND, "up"],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=0o000,
    ) as up:
        assert up.stdout is not None
        try:
            while "All is up" not in (line := up.stdout.readline()):
                assert line, "kafka-lake up has ended"
                print(line, end="")
            yield psutil.Process(up.pid)
        finally:
            up.send_signal(signal.SIGINT)
            up.stdout.read()
            up.wait(120)


def _listening(process: psutil.Process) -> list[Any]:
    try:
        return [
            connection.laddr
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
    except psutil.NoSuchProcess:
        # Short-lived, as the programs that look for Java.
        return []


def test_up_listens_on_loopback_and_keeps_its_files(
    tmp_path: Path, ports: dict[str, int], running: psutil.Process
) -> None:
    listening = [address for process in (running, *running.children(recursive=True)) for address in _listening(process)]
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {HOST}
    assert {address.port for address in listening} >= set(ports.values())
    home = tmp_path / "shop" / ".kafka_lake"
    assert home.stat().st_mode & OTHERS == 0
    assert (home / "running.json").stat().st_mode & OTHERS == 0
    assert (home / "connect" / "token").stat().st_mode & OTHERS == 0
