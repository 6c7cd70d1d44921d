"""The Python daemon of a session, spoken to as Spark does."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

pytestmark = pytest.mark.processes

UNUSED = 0.3
DAEMON = f"from kafka_lake.engine import daemon; daemon._UNUSED_SECONDS = {UNUSED}; daemon.main()"


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "SPARK_REUSE_WORKER": "1", "PYTHON_UNIX_DOMAIN_ENABLED": "false"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", DAEMON], stdin=pipe, stdout=pipe, env=environment) as process:
        yield process
        process.kill()


def number(stream: socket.SocketIO) -> int:
    return int(struct.unpack("!i", stream.read(4))[0])


def test_a_daemon_ends_itself_once_it_has_no_worker(daemon: subprocess.Popen[bytes]) -> None:
    assert daemon.stdout is not None
    port = number(daemon.stdout)
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        worker = psutil.Process(number(connection.makefile("rb")))
        assert worker.ppid() == daemon.pid
        with pytest.raises(subprocess.TimeoutExpired):
            daemon.wait(10 * UNUSED)
        assert worker.is_running()
    assert daemon.wait(30) == 1
    assert not worker.is_running()
