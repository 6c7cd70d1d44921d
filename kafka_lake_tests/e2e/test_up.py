"""`kafka-lake up`: each of its processes is killed; its successor comes by itself, and so do new records."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from examples.pizza_shop.orders import TOPIC
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import read_state
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake_tests.e2e.test_demo import COMMAND, PROJECT, deployment_in, processes_of

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(900)]

SECONDS = 300
TABLE = ("pizza", "completed_pizzas")
PARTS = {
    "broker": "Kafka",
    "registry": "The schema registry",
    "code-server-kafka_lake": "The code server of kafka_lake",
    "daemon": "Dagster's daemon",
    "webserver": "Dagster's web server",
}


@dataclass(frozen=True)
class Up:
    """A local stack that runs."""

    process: "subprocess.Popen[bytes]"
    environment: dict[str, str]
    log: Path

    def home(self) -> Path:
        return Path(self.environment["KAFKA_LAKE_HOME"])

    def pids(self) -> dict[str, int]:
        pids: dict[str, int] = json.loads((self.home() / "running.json").read_text())["pids"]
        return pids

    def said(self) -> str:
        return " ".join(self.log.read_text().split())

    def until(self, condition: Callable[[], object], what: str) -> float:
        """Return how long it took, in seconds."""
        began = time.monotonic()
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < began + SECONDS, f"waited for {what}: {self.log.read_text()}"
            time.sleep(0.1)
        return time.monotonic() - began

    def in_table(self) -> int:
        folder = self.home()
        properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        table = LakeCatalog("lake", {"type": "sql", **properties}).table(TABLE)
        position = read_state(table).position if table else None
        return sum(position.offsets.values()) if position else 0

    def in_topic(self) -> int:
        broker = f"127.0.0.1:{self.environment['KAFKA_LAKE_BROKER_PORT']}"
        return sum(KafkaCluster({"bootstrap.servers": broker}).watermarks_of(TOPIC).end.values())

    def kill(self, pid: int) -> Callable[[], bool]:
        """Kill a process; return what tells whether the table has records that came later."""
        before = self.in_topic()
        os.kill(pid, signal.SIGKILL)
        return lambda: self.in_table() > before


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    environment = deployment_in(tmp_path_factory.mktemp("up"))
    log = tmp_path_factory.mktemp("log") / "up.log"
    with log.open("wb") as output:
        command = [*COMMAND, "live"]
        process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=output, stderr=output)
    stack = Up(process, environment, log)
    try:
        stack.until(lambda: "All is up" in log.read_text(), "the stack")
        stack.until(stack.in_table, "the first commit")
        yield stack
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 128 + signal.SIGINT
        assert processes_of(environment) == []
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("part", PARTS)
def test_killed_part_is_started_again_and_commits_go_on(up: Up, part: str) -> None:
    before = up.pids()
    has_news = up.kill(before[part])
    named = f"{PARTS[part]} ended unexpectedly by SIGKILL; restarting it"
    noticed = up.until(lambda: named in up.said(), "the line that names it")
    back = up.until(lambda: f"{PARTS[part]} runs again." in up.said(), "its successor")
    fresh = up.until(has_news, "records that came later")
    print(f"{part}: named and started after {noticed:.1f} s, ready {back:.1f} s later, news {fresh:.1f} s later")
    assert noticed < 5
    after = up.pids()
    assert after.keys() == before.keys()
    assert {name for name, pid in after.items() if before[name] != pid} == {part}


def test_killed_loader_of_definitions_has_a_successor(up: Up) -> None:
    part = "code-server-kafka_lake"
    before = up.pids()[part]
    (loader,) = [child for child in psutil.Process(before).children() if "grpc" in child.cmdline()]
    has_news = up.kill(loader.pid)
    back = up.until(lambda: up.pids().get(part, before) != before, "its successor")
    print(f"loader: successor after {back:.1f} s, news {up.until(has_news, 'records that came later'):.1f} s later")
    assert not psutil.pid_exists(before)


def test_killed_connect_server_has_a_successor(up: Up) -> None:
    before = up.pids()["connect"]
    has_news = up.kill(before)
    noticed = up.until(lambda: "Spark Connect ended unexpectedly by SIGKILL; restarting it" in up.said(), "its line")
    back = up.until(lambda: up.pids().get("connect", before) != before, "its successor")
    fresh = up.until(has_news, "records that came later")
    print(f"connect: named after {noticed:.1f} s, its successor {back:.1f} s later, news {fresh:.1f} s later")
    assert noticed < 5


def test_killed_run_has_a_successor(up: Up) -> None:
    def runs() -> list[psutil.Process]:
        mine = [process for process in psutil.process_iter() if is_run(process, up.environment["KAFKA_LAKE_HOME"])]
        return sorted(mine, key=lambda item: item.create_time())

    up.until(runs, "a run")
    has_news = up.kill(runs()[-1].pid)
    print(f"run: news after {up.until(has_news, 'records that came later'):.1f} s")


def is_run(process: psutil.Process, home: str) -> bool:
    try:
        return process.environ().get("KAFKA_LAKE_HOME") == home and "spawn_main(" in " ".join(process.cmdline())
    except psutil.Error:
        return False
