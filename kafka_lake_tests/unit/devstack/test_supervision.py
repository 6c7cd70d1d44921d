"""The servers of a local stack are started again when they end, and the stack ends once one ends too often."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from kafka_lake.devstack.dagster_servers import CodeServer, Program
from kafka_lake.devstack.supervision import MAX_DEATHS, Supervision
from kafka_lake.errors import KafkaLakeError

pytestmark = pytest.mark.processes

SLEEP = ["sleep", "600"]
WITH_A_CHILD = ["sh", "-c", "sleep 601 & echo $!; exec sleep 602"]


def program(folder: Path, name: str, command: list[str] = SLEEP, *, keeps_children: bool = False) -> Program:
    return Program(command, folder / f"{name}.log", lambda: True, 5.0, keeps_children=keeps_children)


@contextmanager
def supervised(said: list[str], **programs: Program) -> Iterator[Supervision]:
    supervision = Supervision(said.append)
    try:
        for name, item in programs.items():
            supervision.add(name, item.start())
        yield supervision
    finally:
        supervision.stop()


def killed(server: Program, number: int = signal.SIGKILL) -> int:
    pid = server.pid
    assert pid is not None
    os.kill(pid, number)
    until(lambda: not server.alive(), "the process to end")
    return pid


def until(condition: Callable[[], object], what: str, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)


def is_back(supervision: Supervision, said: list[str], name: str) -> Callable[[], bool]:
    def looked() -> bool:
        supervision.check()
        return said[-1:] == [f"{name} runs again."]

    return looked


def test_killed_server_is_started_again_and_named(tmp_path: Path) -> None:
    said: list[str] = []
    first, other = program(tmp_path, "first"), program(tmp_path, "other")
    with supervised(said, First=first, Other=other) as supervision:
        supervision.check()
        assert said == []
        others, before = other.pid, killed(first)
        until(is_back(supervision, said, "First"), "the server to be back", 5)
        assert said[0] == (f"First ended unexpectedly by SIGKILL; restarting it. Its log: {tmp_path / 'first.log'}")
        assert first.alive()
        assert first.pid != before
        assert other.pid == others
    assert not first.alive()
    assert not other.alive()


def test_third_death_in_a_minute_ends_it_with_reason(tmp_path: Path) -> None:
    said: list[str] = []
    first, other = program(tmp_path, "first"), program(tmp_path, "other")
    with supervised(said, First=first, Other=other) as supervision:
        for _ in range(MAX_DEATHS - 1):
            killed(first, signal.SIGTERM)
            until(is_back(supervision, said, "First"), "the server to be back")
            said.clear()
        killed(first)
        with pytest.raises(KafkaLakeError, match=r"First ended unexpectedly by SIGKILL. It has ended 3 times") as ended:
            supervision.check()
        assert str(tmp_path / "first.log") in str(ended.value)
        assert other.alive()


def test_server_that_cannot_start_again_ends_it(tmp_path: Path) -> None:
    said: list[str] = []
    flag = tmp_path / "flag"
    flag.touch()
    once = program(tmp_path, "once", ["sh", "-c", f"test -e {flag} && exec sleep 600; echo no flag; exit 3"])
    never_ready = Program(["sleep", "600"], tmp_path / "late.log", flag.exists, 0.3)
    for server, why in ((once, "Once ended unexpectedly with exit code 3"), (never_ready, "wasn't ready after 0 s")):
        flag.touch()
        said.clear()
        with supervised(said, Once=server) as supervision:
            flag.unlink()
            killed(server)
            with pytest.raises(KafkaLakeError, match="It has ended 3 times within a minute"):
                until(lambda now=supervision: now.check(), "the end")
            assert why in " ".join(said)


def test_children_that_are_kept_outlive_it_until_the_stop(tmp_path: Path) -> None:
    said: list[str] = []
    keeping = program(tmp_path, "keeping", WITH_A_CHILD, keeps_children=True)
    ending = program(tmp_path, "ending", WITH_A_CHILD)
    with supervised(said, Keeping=keeping, Ending=ending) as supervision:
        children = {}
        for name, server in (("Keeping", keeping), ("Ending", ending)):
            until(server.log.read_text, "the child's number")
            children[name] = psutil.Process(int(server.log.read_text().split()[0]))
            killed(server)
            until(is_back(supervision, said, name), "the server to be back")
        assert children["Keeping"].is_running()
        psutil.wait_procs([children["Ending"]], 5)
        assert not children["Ending"].is_running()
    psutil.wait_procs([children["Keeping"]], 5)
    assert not children["Keeping"].is_running()


def test_code_server_is_dead_without_its_loader(tmp_path: Path) -> None:
    said: list[str] = []
    # A stand-in: what loads the definitions is the child that has the word grpc in its command line.
    command = ["sh", "-c", "sh -c 'sleep 600; true' grpc & echo $!; exec sleep 602"]
    code = CodeServer(command, tmp_path / "code.log", (tmp_path / "code.log").read_text, 5.0, keeps_children=True)
    with supervised(said, Code=code) as supervision:
        until(code.alive, "the child's own command line")
        loader = psutil.Process(int(code.log.read_text().split()[0]))
        before = code.pid
        loader.kill()
        until(is_back(supervision, said, "Code"), "the code server to be back")
        assert said[0].startswith("Code ended unexpectedly; restarting it")
        assert code.pid != before
        assert not psutil.pid_exists(before or 0)
        until(code.alive, "the new child's own command line")
