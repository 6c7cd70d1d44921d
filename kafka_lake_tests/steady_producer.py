"""A producer that writes continuously in the background, and the ledger of what the broker has acknowledged."""

import json
import threading
import time
from collections import Counter
from typing import Any, Self

from confluent_kafka import Producer
from pyiceberg.table import Table

Row = tuple[int, str]


class SteadyProducer:
    """Writes ``{"id": n, "name": "name n"}`` round robin to some partitions; a context manager.

    Args:
        bootstrap: The brokers.
        topic: The topic.
        partitions: How many of its partitions get records.
        per_second: Records a second.

    Attributes:
        acknowledged: What the broker has, as rows.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, per_second: int = 200) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 5})
        self._topic = topic
        self._partitions = partitions
        self._pause = 1 / per_second
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._problems: list[Any] = []
        self.acknowledged: list[Row] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Write no more, and wait until the broker has what was written."""
        self._end.set()
        self._thread.join(30)
        assert self._producer.flush(30) == 0
        assert not self._problems, self._problems

    def await_count(self, count: int, seconds: float = 30) -> None:
        """Wait until so many records are acknowledged."""
        deadline = time.monotonic() + seconds
        while len(self.acknowledged) < count:
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {count} records"
            time.sleep(0.02)

    def _run(self) -> None:
        number = 0
        while not self._end.wait(self._pause):
            row = number, f"name {number}"
            value = json.dumps({"id": row[0], "name": row[1]}).encode()
            self._producer.produce(
                self._topic, value, partition=number % self._partitions, on_delivery=self._delivered(row)
            )
            self._producer.poll(0)
            number += 1

    def _delivered(self, row: Row) -> Any:
        def reported(error: Any, _message: Any) -> None:
            if error is None:
                self.acknowledged.append(row)
            else:
                self._problems.append(error)

        return reported


def rows_of(table: Table) -> Counter[Row]:
    """Return the rows of a table as PyIceberg reads them, and how often each is there."""
    found = table.refresh().scan(selected_fields=("id", "name")).to_arrow().to_pylist()
    return Counter((row["id"], row["name"]) for row in found)
