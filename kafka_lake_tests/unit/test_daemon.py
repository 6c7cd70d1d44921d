"""The Python daemon of a session, spoken to as Spark does."""

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kafka_lake.spark import daemon as kafka_lake_daemon

pytestmark = pytest.mark.processes

UNUSED = 0.3
DAEMON = f"from kafka_lake.spark import daemon; daemon._UNUSED_SECONDS = {UNUSED}; daemon.main()"


@pytest.fixture(params=["", "import pyspark.daemon; del pyspark.daemon.manager; "], ids=["", "without manager"])
def daemon(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "SPARK_REUSE_WORKER": "1", "PYTHON_UNIX_DOMAIN_ENABLED": "false"}
    pipe, code = subprocess.PIPE, request.param + DAEMON
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, env=environment) as process:
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


JVM = """
import json, os, shutil, struct, subprocess, sys, time
from pathlib import Path
from kafka_lake.spark import daemon

CODE = "from kafka_lake.spark import daemon; daemon._IMPORTED = (); {trouble}; daemon.main()"
environment = {**os.environ, daemon.FORK_SERVER: "1", "PYTHON_UNIX_DOMAIN_ENABLED": "false"}


def session(folder, trouble):
    folder.mkdir()
    code = CODE.replace("{trouble}", trouble)
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdin=pipe, stdout=pipe, env=environment)
    told = process.stdout.read(4)
    process.stdin.close()
    process.wait(20)
    shutil.rmtree(folder)
    return len(told) and struct.unpack("!i", told)[0] > 0


folder, trouble = Path(sys.argv[1]), sys.argv[2]
first = session(folder / "first", trouble)
deadline = time.monotonic() + 20
while daemon._address(os.getpid())[1:] not in Path("/proc/net/unix").read_text():
    assert time.monotonic() < deadline
    time.sleep(0.02)
print(json.dumps([first, session(folder / "second", "pass"), session(folder / "third", "pass")]))
"""


def sessions(folder: Path, trouble: str) -> tuple[Any, str]:
    """Have a daemon for each of three sessions, one after the other, of which each takes its folder with it.

    Args:
        folder: Where their folders are.
        trouble: Python that makes trouble in the fork server, which the first leaves behind.

    Returns:
        Whether the daemons came up, and what they said.
    """
    done = subprocess.run(
        [sys.executable, "-c", JVM, str(folder), trouble], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout), done.stderr


def test_the_fork_server_needs_no_folder_of_a_session_that_is_over(tmp_path: Path) -> None:
    came_up, said = sessions(tmp_path, "pass")
    assert came_up == [True] * 3
    assert said == ""


@pytest.mark.parametrize("what", ["_become", "_is_ours"])
def test_what_fails_in_the_fork_server_is_said_and_the_daemon_comes_up_all_the_same(tmp_path: Path, what: str) -> None:
    trouble = f"daemon.{what} = lambda *_, **__: open('/no/such/file')"
    came_up, said = sessions(tmp_path, trouble)
    assert came_up == [True] * 3
    assert "No such file or directory: '/no/such/file'" in said
    assert "this one imports the packages itself" in said


def test_the_fork_server_serves_its_own_user_only_and_no_daemon_trusts_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fork() -> int:
        raise AssertionError("a daemon was forked for a stranger")

    monkeypatch.setattr(os, "fork", fork)
    address = f"\0kafka_lake_test/{os.getpid()}"
    monkeypatch.setattr(kafka_lake_daemon, "_address", lambda jvm: address)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as asking:
        listener.bind(address)
        listener.listen()
        asking.connect(address)
        with pytest.raises(AssertionError, match="stranger"):
            kafka_lake_daemon._fork_daemon(listener, "")
        monkeypatch.setattr(os, "getuid", lambda: 4711)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(address)
            kafka_lake_daemon._fork_daemon(listener, "")
            assert stranger.recv(1) == b"", "the connection is closed without an answer"
        assert not kafka_lake_daemon._forked_by_server(1)
        theirs, _ = listener.accept()
        with theirs:
            assert theirs.recv(1) == b"", "nothing of the environment is told to a stranger"
