"""Changes into a keyed table: what a merge costs, of recent keys and of keys at random, and each row in the end.

A topic fills the table once; then, batch after batch, changes are produced and a run merges them. Time and CPU are
those of the run alone, with Spark in this process. In the end the table is read by PyIceberg and compared with what was
produced, row by row.
"""

import json
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.meter import cpu_seconds
from benchmarks.ours import NAMESPACE, Engine, catalog_in
from benchmarks.results import document
from benchmarks.throughput import scratch
from kafka_lake.common.errors import KafkaLakeError
from kafka_lake.components.resources.kafka import KafkaResource
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.run import ingest
from kafka_lake.ingest.topic_table import TopicTable

HEADER = ("of keys", "changes", "seconds", "changes/s", "changes per CPU-second", "rows", "as produced")
_TOPIC, _PARTITIONS = "changes", 4
_DDL = "id bigint not null, value bigint, text string"
_SEED = 17
_RECENT = 20


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Args:
        rows: Of the table, before it changes.
        changes: Of each batch.
        batches: Of each kind of keys.
        engine: How Spark is set up.
    """

    rows: int
    changes: int = 100_000
    batches: int = 3
    engine: Engine = field(default_factory=Engine)


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Fill the table, change it, and return the result as JSON has it.

    Args:
        settings: What is measured.
        tell_user: Called with a line of progress.

    Raises:
        KafkaLakeError: If a run fails, or there is no table in the end.
    """
    from kafka_lake.local_stack.broker import EmbeddedBroker

    chance, produced = random.Random(_SEED), np.full(settings.rows, -1, dtype=np.int64)
    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        address = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(address)
        admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)])[_TOPIC].result(20)
        producer = Producer({**address, "linger.ms": 20, "compression.type": "lz4"})
        catalog = catalog_in(folder)
        spark = SparkResource(spark_config=settings.engine.spark_config(), catalog=catalog)
        kafka = KafkaResource(properties=address)
        connections = Connections(kafka.cluster(), kafka.spark_options(), catalog.open(), lambda: spark.spark_session)
        spec = TopicTable(_TOPIC, NAMESPACE, "keyed", schema=_DDL, write="upsert", key=("id",))
        batches = []
        try:
            tell_user(f"filling a table of {settings.rows:,} rows")
            _produce(producer, range(settings.rows), produced)
            batches.append(_merged(spec, connections, "all, new", settings.rows))
            for kind in ("recent", "random"):
                for number in range(settings.batches):
                    first = settings.rows - max(1, settings.rows // _RECENT) if kind == "recent" else 0
                    _produce(
                        producer, (chance.randrange(first, settings.rows) for _ in range(settings.changes)), produced
                    )
                    batches.append(_merged(spec, connections, kind, settings.changes))
                    tell_user(f"{kind} keys, batch {number + 1}: {batches[-1]['seconds']:.1f} s")
        finally:
            spark.stop()
        table = catalog.open().table(spec.identifier)
        if table is None:
            raise KafkaLakeError(f"Table {NAMESPACE}.keyed isn't there.")
        found = table.scan(selected_fields=("id", "value")).to_arrow().sort_by("id")
        exact = found["id"].to_pylist() == list(range(settings.rows)) and np.array_equal(found["value"], produced)
        return document("upsert", asdict(settings), batches=batches, rows=found.num_rows, exact=exact)


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the lines of the table that the terminal shows."""
    return [
        (
            each["keys"],
            f"{each['changes']:,}",
            f"{each['seconds']:.1f}",
            f"{each['changes'] / each['seconds']:,.0f}",
            f"{each['changes'] / each['cpu_seconds']:,.0f}",
            f"{result['rows']:,}",
            "yes" if result["exact"] else "NO",
        )
        for each in result["batches"]
    ]


def _produce(producer: Producer, numbers: Iterable[int], produced: Any) -> None:
    for number in numbers:
        produced[number] += 1
        row = {"id": number, "value": int(produced[number]), "text": f"{number:0100d}"}
        while True:
            try:
                producer.produce(_TOPIC, json.dumps(row), str(number))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


def _merged(spec: TopicTable, connections: Connections, keys: str, changes: int) -> dict[str, Any]:
    began, cpu = time.monotonic(), _own_cpu()
    ingest(spec, connections, f"bench-{keys.replace(', ', '-')}")
    return {"keys": keys, "changes": changes, "seconds": time.monotonic() - began, "cpu_seconds": _own_cpu() - cpu}


def _own_cpu() -> float:
    """Return the CPU seconds of this process and all that it has started; the broker rests while a run reads little."""
    return cpu_seconds(os.getpid())
