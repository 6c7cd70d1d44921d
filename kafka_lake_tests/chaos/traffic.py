"""Producers, with transactions and without, and the ledger of what the brokers acknowledged."""

import json
import random
import threading
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kafka_lake.spec.rule import Range, RuleEntry
from kafka_lake.spec.topic_table import Route, TopicTable, When

NAMESPACE = "chaos"
DECLARED = "id bigint NOT NULL, name string, amount double, tags array<string>, place struct<x:int,y:int>"
MOST_PARTITIONS = 8
# Arrow asks them, so that rows that break one are never written.
RULES = (RuleEntry(range=Range(column="amount", min=0)), RuleEntry(expression="id >= 0"))

_PATIENCE = 60.0


class Fate(Enum):
    """What is known of a record: whether it must be, may be or mustn't be in the topic."""

    COMMITTED = "committed"
    UNKNOWN = "unknown"
    ABORTED = "aborted"


@dataclass
class Sent:
    """A record that was given to a producer; its key is its own.

    Args:
        good: It must become a row; otherwise a dead letter, or nothing if it has no value.
    """

    key: str
    partition: int
    value: bytes | None
    good: bool
    offset: int = -1
    fate: Fate = Fate.UNKNOWN


@dataclass
class Topic:
    """A topic, its tables and the ledger of all that was sent to it.

    Args:
        tables: How many tables there are; a record's key decides which of them takes it.
        declared: Its columns are declared; otherwise inferred from the records.
        has_table: Whether there is a table yet.
        fields: What the records have besides the first columns; only those of a topic without declared columns.
        ledger: Records by key.
    """

    name: str
    declared: bool
    partitions: int
    tables: int = 1
    has_table: bool = False
    fields: list[str] = field(default_factory=list)
    ledger: dict[str, Sent] = field(default_factory=dict)

    @property
    def spec(self) -> TopicTable:
        own = TopicTable(
            self.name,
            NAMESPACE,
            self.name.replace("-", "_"),
            schema=DECLARED if self.declared else None,
            rules=RULES if self.declared else (),
            rules_fail_above=None,
            # Kafka loses nothing here: whoever goes on must never find a loss.
            on_data_loss="continue" if self.declared else "fail",
        )
        routes = (
            Route(When(sql=f"pmod(crc32(key), {self.tables}) = {number}"), replace(own, table=f"{own.table}_{number}"))
            for number in range(1, self.tables)
        )
        return replace(own, routes=tuple(routes))

    def table_of(self, key: str) -> int:
        """Return the number of the table that takes the record of a key."""
        return zlib.crc32(key.encode()) % self.tables


def record(topic: Topic, key: str, number: int, chance: random.Random, bad: float = 0.1) -> Sent:
    """Return the next record of a topic: mostly a row to be, now and then poison or a tombstone."""
    partition = chance.randrange(topic.partitions)
    if chance.random() < 0.05:
        return Sent(key, partition, None, good=False)
    if topic.declared:
        value: dict[str, Any] = {"id": number, "name": f"näme {number}", "amount": number / 8}
        value |= {"tags": [key, "t"], "place": {"x": number % 7, "y": -1}}
        poison = [
            b"{not json",
            json.dumps({**value, "id": "seven"}).encode(),
            json.dumps({**value, "id": None}).encode(),
            json.dumps({**value, "amount": -0.5}).encode(),
        ]
    else:
        value = {"n": number, "word": f"w{number}"} | dict.fromkeys(topic.fields, number)
        # Columns can't be inferred from a first batch that has other JSON than objects.
        poison = [b"\xff\xfe junk"] + ([b"[1, 2]", b'{"n": "seven"}'] if topic.has_table else [])
    if chance.random() < bad:
        return Sent(key, partition, chance.choice(poison), good=False)
    return Sent(key, partition, json.dumps(value).encode(), good=True)


class Traffic:
    """Producers in threads of their own that don't mind what happens to the brokers.

    Args:
        bootstrap_servers: The brokers' address.
        admin: Makes topics and partitions.
        replicas: Replication factor of new topics.
        seed: Makes the records; their order is the scheduler's.
    """

    def __init__(self, bootstrap_servers: str, admin: AdminClient, replicas: int, seed: int) -> None:
        self._servers = bootstrap_servers
        self._admin = admin
        self._replicas = replicas
        self._seed = seed
        self._lock = threading.Lock()
        self._number = 0
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._chance = random.Random(seed)
        self._producer: Producer | None = None
        self.topics: dict[str, Topic] = {}
        self.errors: list[str] = []
        self.refusals: Counter[str] = Counter()
        self.transactions = {"committed": 0, "aborted": 0, "unknown": 0}

    def new_topic(self, name: str, declared: bool, partitions: int, tables: int = 1) -> Topic:
        new = NewTopic(name, partitions, self._replicas, config={"retention.ms": "-1"})
        self._admin.create_topics([new])[name].result(30)
        topic = Topic(name, declared, partitions, tables)
        self.topics[name] = topic
        return topic

    def add_partition(self, topic: Topic) -> None:
        count = topic.partitions + 1
        self._admin.create_partitions([NewPartitions(topic.name, count)])[topic.name].result(30)
        topic.partitions = count

    def start(self, background: list[Topic]) -> None:
        for number in range(2):
            self._threads.append(threading.Thread(target=self._idempotent, args=(number, background), daemon=True))
            self._threads.append(threading.Thread(target=self._transactional, args=(number, background), daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop producing and wait until the last answers are there."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_PATIENCE * 2)
            if thread.is_alive():
                self.errors.append("a producer hangs")

    def burst(self, topic: Topic, count: int = 40) -> None:
        """Send records, bad ones among them, and return once they are acknowledged."""
        if self._producer is None:
            self._producer = self._new_producer()
        with self._lock:
            batch = self._records(topic, count - 2, self._chance, 0.2)
            batch.append(Sent(f"{topic.name}-b{self._number}", 0, b"{certainly poison", good=False))
            batch.append(Sent(f"{topic.name}-B{self._number}", 0, None, good=False))
            topic.ledger |= {sent.key: sent for sent in batch}
        if not self._send(self._producer, topic, batch, Fate.COMMITTED):
            self._producer = None

    def forget(self, topic: Topic) -> None:
        """Leave a topic to its fault: nobody verifies it. The next producer knows nothing of how long its log was."""
        del self.topics[topic.name]
        self._producer = None

    def _records(self, topic: Topic, count: int, chance: random.Random, bad: float) -> list[Sent]:
        made = []
        for _ in range(count):
            self._number += 1
            made.append(record(topic, f"{topic.name}-{self._number}", self._number, chance, bad))
        return made

    def _batch(self, topic: Topic, chance: random.Random) -> list[Sent]:
        with self._lock:
            batch = self._records(topic, chance.randint(1, 20), chance, 0.08)
            topic.ledger |= {sent.key: sent for sent in batch}
        return batch

    def _new_producer(self, **more: Any) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
                "message.timeout.ms": int(_PATIENCE * 1000),
                "topic.metadata.refresh.interval.ms": 2000,
                "reconnect.backoff.max.ms": 1000,
                **more,
            }
        )

    def _send(self, producer: Producer, topic: Topic, batch: list[Sent], fate: Fate) -> bool:
        def delivered(sent: Sent) -> Any:
            def done(error: Any, message: Any) -> None:
                if error is None:
                    sent.offset, sent.fate = message.offset(), fate

            return done

        try:
            for sent in batch:
                producer.produce(topic.name, sent.value, sent.key, sent.partition, on_delivery=delivered(sent))
            producer.flush(_PATIENCE + 5)
        except KafkaException:
            return False
        return all(sent.offset >= 0 for sent in batch)

    def _idempotent(self, number: int, topics: list[Topic]) -> None:
        chance = random.Random(f"{self._seed} idempotent {number}")
        producer = self._new_producer()
        while not self._stop.wait(chance.uniform(0.2, 1.0)):
            topic = chance.choice(topics)
            if not self._send(producer, topic, self._batch(topic, chance), Fate.COMMITTED):
                producer = self._new_producer()

    def _transactional(self, number: int, topics: list[Topic]) -> None:
        chance = random.Random(f"{self._seed} transactional {number}")
        producer: Producer | None = None
        while not self._stop.wait(chance.uniform(0.2, 1.0)):
            try:
                if producer is None:
                    # librdkafka wants a record's time to be no longer than its transaction's.
                    limits = {"transaction.timeout.ms": 10_000, "message.timeout.ms": 10_000}
                    producer = self._new_producer(**{"transactional.id": f"chaos-{number}", **limits})
                    producer.init_transactions(30)
                self._one_transaction(producer, topics, chance)
            except KafkaException as error:
                self.refusals[error.args[0].name()] += 1
                producer = None

    def _one_transaction(self, producer: Producer, topics: list[Topic], chance: random.Random) -> None:
        producer.begin_transaction()
        commit = chance.random() < 0.7
        batch: list[Sent] = []
        for topic in chance.sample(topics, chance.randint(1, len(topics))):
            part = self._batch(topic, chance)
            batch += part
            self._send(producer, topic, part, Fate.UNKNOWN)
        if chance.random() < 0.2:
            # The last stable offset stands still meanwhile.
            self._stop.wait(chance.uniform(0.5, 3))
        commit = commit and all(sent.offset >= 0 for sent in batch)
        fate = Fate.UNKNOWN
        try:
            fate = self._end(producer, commit)
        finally:
            self.transactions[fate.value] += 1
            for sent in batch:
                sent.fate = fate

    def _end(self, producer: Producer, commit: bool) -> Fate:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                if commit:
                    producer.commit_transaction(10)
                else:
                    producer.abort_transaction(10)
                return Fate.COMMITTED if commit else Fate.ABORTED
            except KafkaException as error:
                why = error.args[0]
                if commit and why.txn_requires_abort():
                    commit = False
                elif not why.retriable() or time.monotonic() > deadline:
                    raise


def consumed(bootstrap_servers: str, topic: Topic) -> dict[tuple[int, int], tuple[str, bytes | None]]:
    """Return key and value of every committed record by partition and offset, as a plain consumer sees them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "chaos-oracle",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    found: dict[tuple[int, int], tuple[str, bytes | None]] = {}
    try:
        open_ = set(range(topic.partitions))
        consumer.assign([TopicPartition(topic.name, p, 0) for p in open_])
        deadline = time.monotonic() + _PATIENCE
        while open_:
            if time.monotonic() > deadline:
                raise TimeoutError(f"partitions {sorted(open_)} of {topic.name} can't be read to their end")
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error():
                if message.error().name() == "_PARTITION_EOF":
                    open_.discard(message.partition())
                continue
            found[message.partition(), message.offset()] = (message.key().decode(), message.value())
    finally:
        consumer.close()
    return found
