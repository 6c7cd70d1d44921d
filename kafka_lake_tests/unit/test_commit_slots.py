"""Commit slots of a machine: given in order, a few at once; nobody waits for the dead, for the slow, or forever."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.spark.commit_slots import CommitSlots


class Waiting:
    """Somebody who waits for a turn in a thread of its own, until told to give it back."""

    def __init__(self, pool: ThreadPoolExecutor, commit_slots: CommitSlots, order: list[str], name: str) -> None:
        self.waits, self.has_turn, self.done = threading.Event(), threading.Event(), threading.Event()
        self.deadline = time.monotonic() + 30
        self.result: Future[bool] = pool.submit(self._run, commit_slots, order, name)

    def _run(self, commit_slots: CommitSlots, order: list[str], name: str) -> bool:
        with commit_slots.take(self._sleep) as waited:
            order.append(name)
            self.has_turn.set()
            assert self.done.wait(30)
            return waited

    def _sleep(self, _: float) -> None:
        assert time.monotonic() < self.deadline, "no turn in 30 s"
        self.waits.set()
        # As in life, but shorter: others need a moment to come and go.
        self.has_turn.wait(0.001)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as threads:
        yield threads


def test_as_many_commits_at_once_as_there_are_slots_and_the_others_in_order_of_arrival(tmp_path, pool):
    commit_slots, order = CommitSlots(tmp_path / "commit_slots", 2), []
    first, second = (Waiting(pool, commit_slots, order, name) for name in ("first", "second"))
    assert first.has_turn.wait(30)
    assert second.has_turn.wait(30)
    later = []
    for name in ("third", "fourth", "fifth"):
        later.append(Waiting(pool, commit_slots, order, name))
        assert later[-1].waits.wait(30)
    assert len(order) == 2
    second.done.set()
    for one, following in zip(later, [*later[1:], None], strict=True):
        assert one.has_turn.wait(30)
        assert following is None or not following.has_turn.is_set()
        one.done.set()
    first.done.set()
    assert order[2:] == ["third", "fourth", "fifth"]
    assert [each.result.result(30) for each in (first, second, *later)] == [False, False, True, True, True]
    assert list((tmp_path / "commit_slots").iterdir()) == []


def test_a_slot_that_is_held_too_long_keeps_nobody_waiting(tmp_path):
    commit_slots = CommitSlots(tmp_path, 1, longest=5)
    naps = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            touched = held.stat().st_mtime - 6
            os.utime(held, (touched, touched))

    with commit_slots.take():
        (held,) = tmp_path.iterdir()
        with commit_slots.take(sleep) as waited:
            assert waited
    assert len(naps) == 3
    assert list(tmp_path.iterdir()) == []


def test_the_slot_of_a_dead_process_is_freed_and_its_ticket_removed(tmp_path):
    script = (
        "import os, pathlib, sys\n"
        "from kafka_lake.spark.commit_slots import CommitSlots\n"
        "with CommitSlots(pathlib.Path(sys.argv[1]), 1).take():\n"
        "    os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    (left,) = tmp_path.iterdir()
    naps = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        touched = left.stat().st_mtime - 3600
        os.utime(left, (touched, touched))

    with CommitSlots(tmp_path, 1).take(sleep) as waited:
        assert waited
        assert left not in tmp_path.iterdir()
    assert len(naps) == 1


def test_a_wait_that_is_broken_off_leaves_no_ticket(tmp_path):
    def give_up(_: float) -> None:
        raise InterruptedError

    commit_slots = CommitSlots(tmp_path, 1)
    with commit_slots.take():
        with pytest.raises(InterruptedError), commit_slots.take(give_up):
            pytest.fail("Somebody else's turn.")
        assert len(list(tmp_path.iterdir())) == 1


def test_where_nothing_can_be_written_nobody_waits(tmp_path):
    (tmp_path / "file").touch()
    commit_slots = CommitSlots(tmp_path / "file" / "commit_slots", 1)
    with ExitStack() as open_turns:
        assert not any(open_turns.enter_context(commit_slots.take()) for _ in range(3))


@pytest.mark.parametrize(
    ("remote", "master", "taken"),
    [
        ("", "", True),
        ("", "local[4]", True),
        ("", "spark://10.0.0.1:7077", False),
        ("", "yarn", False),
        ("sc://127.0.0.1:15002", "", True),
        ("sc://localhost:15002/;session_id=x", "yarn", True),
        ("sc://spark.example:443/;use_ssl=true;token=secret", "", False),
    ],
)
def test_slots_are_for_spark_on_this_machine(remote, master, taken, monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_REMOTE", remote)
    monkeypatch.setenv("KAFKA_LAKE_SPARK_MASTER", master)
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path))
    commit_slots = SparkResource(spark_config={}, catalog=CatalogResource()).commit_slots()
    assert (commit_slots is not None) is taken
    if commit_slots is not None:
        assert commit_slots.folder == tmp_path / "commit_slots"
        assert commit_slots.places == (os.cpu_count() or 1) + 1
