"""A keyed table to be changed: its topic, its rows, and what it must hold in the end."""

import hashlib
import json
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.table import Table

from benchmarks.meter import cpu_seconds
from benchmarks.ours import NAMESPACE, Engine, catalog_in
from kafka_lake.catalog.positions import read_state
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable

PARTITIONS = 4
TEXT_KEY = ("text",)
_TOPIC = "changes"
_DDL = "id bigint not null, value bigint, text string"
_BATCH_ROWS = 1_000_000


@dataclass
class KeyedTable:
    """A topic and its keyed table, whose ids are 0, 1, 2 …; a key's records are all in one Kafka partition.

    Args:
        spec: The topic's settings.
        connections: What runs work with.
        bootstrap: The brokers, ``host:port``.
        produced: The newest value of each key.
        sent: When each record was produced, by Kafka partition and offset; seconds of the system's monotonic clock.
    """

    spec: TopicTable
    connections: Connections
    bootstrap: str
    produced: Any
    sent: list["array[float]"] = field(default_factory=lambda: [array("d") for _ in range(PARTITIONS)])
    _producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20, "compression.type": "lz4"})

    @property
    def _has_text_keys(self) -> bool:
        return self.spec.key == TEXT_KEY

    @property
    def table(self) -> Table:
        """Return the table."""
        table = self.connections.catalog.table(self.spec.identifier)
        if table is None:
            raise KafkaLakeError(f"Table {'.'.join(self.spec.identifier)} isn't there.")
        return table

    def produce(self, keys: Iterable[int]) -> None:
        """Change rows: each key's value grows by one. They are delivered when this returns."""
        for key in keys:
            self.send(key)
        assert self._producer.flush(60) == 0

    def send(self, key: int) -> None:
        """Change one row; `produce` with nothing delivers it."""
        self.produced[key] += 1
        text = (
            hashlib.md5(str(key).encode(), usedforsecurity=False).hexdigest() if self._has_text_keys else f"{key:0100d}"
        )
        value = json.dumps({"id": key, "value": int(self.produced[key]), "text": text})
        while True:
            try:
                self._producer.produce(_TOPIC, value, str(key), partition=key % PARTITIONS)
                self.sent[key % PARTITIONS].append(time.monotonic())
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(0.1)

    def ingest(self, name: str) -> None:
        """Bring the table up to date, by a run with this name."""
        ingest(self.spec, self.connections, name)

    def fill(self) -> None:
        """Write rows for all keys by Spark itself, as a first commit would leave them: fast enough for many millions.

        The first records of each Kafka partition are there by a run of ours, so that table and position are its own;
        the other rows say that they came with those.
        """
        self.produce(range(PARTITIONS))
        self.ingest("first")
        self.produced[:] = 0
        spark, name = self.connections.spark(), self.connections.catalog.spark_name(self.spec.identifier)
        text = "md5(string(id))" if self._has_text_keys else "lpad(string(id), 100, '0')"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW first AS SELECT id AS first_id, _kafka FROM {name}")
        for begin in range(PARTITIONS, len(self.produced), _BATCH_ROWS):
            end = min(len(self.produced), begin + _BATCH_ROWS)
            spark.sql(
                f"INSERT INTO {name} (id, value, text, _kafka) "
                f"SELECT id, 0L, {text}, _kafka FROM range({begin}, {end}) "
                f"JOIN first ON id % {PARTITIONS} = first_id ORDER BY id"
            )

    def ends(self) -> dict[int, int]:
        """Return the table's position: by Kafka partition the offset that comes next."""
        position = read_state(self.table).position
        return dict(position.offsets) if position else {}

    def differing(self) -> int:
        """Return how many keys' rows are not what was produced: missing, there twice, or with another value."""
        return differing(self.table.scan(selected_fields=("id", "value")).to_arrow_batch_reader(), self.produced)


def differing(batches: Iterable[pa.RecordBatch], expected: Any) -> int:
    """Return how many keys' rows, of id and value, are missing, there twice, or without the expected value."""
    found, value = np.zeros(len(expected), dtype=np.int32), np.full(len(expected), -1, dtype=np.int64)
    for batch in batches:
        keys = batch["id"].to_numpy()
        np.add.at(found, keys, 1)
        value[keys] = batch["value"].to_numpy()
    return int(((found != 1) | (value != expected)).sum())


@contextmanager
def keyed_table(
    folder: Path, rows: int, engine: Engine, properties: Mapping[str, str], *, key: tuple[str, ...] = ("id",)
) -> Iterator[KeyedTable]:
    """Give a topic and the settings of its table while a broker and a Spark run.

    The key `TEXT_KEY` has 32 characters.
    """
    from kafka_lake.devstack.servers import EmbeddedBroker

    with EmbeddedBroker(folder / "broker", heap="512m") as broker:
        address = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(address)
        admin.create_topics([NewTopic(_TOPIC, PARTITIONS, 1)])[_TOPIC].result(20)
        catalog = catalog_in(folder)
        spark = SparkResource(spark_config=engine.spark_config(), catalog=catalog)
        kafka = KafkaResource(properties=address)
        connections = Connections(kafka.cluster(), kafka.spark_options(), catalog.open(), lambda: spark.spark_session)
        spec = TopicTable(_TOPIC, NAMESPACE, "keyed", schema=_DDL, write="upsert", key=key, table_properties=properties)
        try:
            yield KeyedTable(spec, connections, broker.bootstrap_servers, np.full(rows, -1, dtype=np.int64))
        finally:
            spark.stop()


def own_cpu() -> float:
    """Return the CPU seconds of this process and all that it has started; the broker rests while a run reads little."""
    return cpu_seconds(os.getpid())
