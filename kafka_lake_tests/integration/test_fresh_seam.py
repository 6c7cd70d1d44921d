"""The seam of a fresh read: while runs commit, compact and expire, each answer has every acknowledged record once."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from kafka_lake.fresh.table import FreshTable
from kafka_lake.ingest.run import ingest
from kafka_lake.maintenance.policy import Limits
from kafka_lake.maintenance.procedures import compact, expire
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

PARTITIONS, KEYS = 3, 50
Ledger = dict[int, int]
"""The newest acknowledged number of each key, and under -1 how many numbers from 0 on are acknowledged."""


class Numbers:
    """Produces ``{"id": n % KEYS, "n": n}`` for n from 0 on, in order, and knows which are acknowledged."""

    def __init__(self, topic: Topic) -> None:
        self._topic, self.acknowledged = topic, 0

    def produce(self, stop: threading.Event) -> None:
        def delivered(error: Any, _: Any) -> None:
            assert error is None, error
            self.acknowledged += 1

        for number in count():
            if stop.wait(0.002):
                break
            value = json.dumps({"id": number % KEYS, "n": number}).encode()
            # One batch after another: what is acknowledged has no gap.
            self._topic.producer.produce(
                self._topic.name, value, partition=number % KEYS % PARTITIONS, on_delivery=delivered
            )
            if number % 20 == 19:
                assert self._topic.producer.flush(20) == 0
        assert self._topic.producer.flush(20) == 0


@contextmanager
def in_thread(work: Callable[[threading.Event], None]) -> Iterator[list[BaseException]]:
    """Do something during the block; what it raised is in the list."""
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join()


def check_append(table: FreshTable, numbers: Numbers) -> None:
    """Read, and compare with what was acknowledged before."""
    before = numbers.acknowledged - numbers.acknowledged % 20
    found = table.query("SELECT n FROM this").column("n").to_pylist()
    assert len(found) == len(set(found)), "a record occurs twice"
    missing = set(range(before)) - set(found)
    assert not missing, f"{len(missing)} of {before} records are missing, the first is {min(missing)}"


def check_upsert(table: FreshTable, numbers: Numbers) -> None:
    """Read, and compare each key with its newest acknowledged change."""
    before = numbers.acknowledged - numbers.acknowledged % 20
    rows = table.query("SELECT id, n FROM this").to_pylist()
    found = {row["id"]: row["n"] for row in rows}
    assert len(found) == len(rows), "a key occurs twice"
    old = {n % KEYS: n for n in range(max(0, before - KEYS), before) if found.get(n % KEYS, -1) < n}
    assert not old, f"keys with an older value than acknowledged, and that: {old}; found {found}"


@pytest.mark.parametrize(
    ("write", "seconds"),
    [("append", 7), ("upsert", 7), exhaustive("append", 60, id="append for a minute"), exhaustive("upsert", 60)],
)
def test_every_answer_has_each_acknowledged_record_once(
    new_topic: Callable[..., Topic], connections: Callable[[], Connections], write: Any, seconds: float
) -> None:
    topic = new_topic(PARTITIONS)
    keyed: dict[str, Any] = {"write": "upsert", "key": ("id",)} if write == "upsert" else {}
    spec: TopicTable = topic.spec("id bigint, n bigint", **keyed)
    numbers, check, answers = Numbers(topic), check_upsert if keyed else check_append, []
    topic.wait_for(lambda: topic.partitions() == PARTITIONS)
    with in_thread(numbers.produce) as of_producer:
        topic.wait_for(lambda: numbers.acknowledged > 0)
        ingest(spec, connections(), "run-first")

        def read(stop: threading.Event) -> None:
            with FreshTable(spec, connections()) as table:
                while not stop.is_set():
                    check(table, numbers)
                    answers.append(numbers.acknowledged)

        with in_thread(read) as of_reader:
            until, compacted, expired = time.monotonic() + seconds, 0, 0
            for run in count():
                ingest(spec, connections(), f"run-{run}")
                if run % 2:
                    systems = connections()
                    compacted += compact(systems.spark(), systems.catalog, spec.identifier).before
                    limits = Limits(int(time.time() * 1000), 1, None)
                    expired += expire(systems.spark(), systems.catalog, spec.identifier, limits)
                late = time.monotonic() - until
                # A busy machine needs longer for the first compaction and expiry.
                if (late > 0 and compacted and expired) or late > 60 or of_reader or of_producer:
                    break
    assert not of_producer
    assert not of_reader, of_reader
    assert len(answers) > 2
    assert compacted
    assert expired
