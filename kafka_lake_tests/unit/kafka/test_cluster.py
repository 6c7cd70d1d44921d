"""Questions to a cluster, answered by a client that stands for librdkafka's."""

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import IsolationLevel

from kafka_lake.kafka.cluster import KafkaCluster

LOW, STABLE, HIGH = 0, 7, 9


def reported(answer: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(answer)
    return future


class Client:
    """Brokers with one topic of one partition, in which a transaction is open."""

    def __init__(self) -> None:
        self.settings: Mapping[str, Any] = {}

    def poll(self, _: float) -> int:
        return 0

    def describe_cluster(self, **_: Any) -> "Future[Any]":
        return reported(SimpleNamespace(cluster_id="c"))

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, "Future[Any]"]:
        return {"pizzas": reported(SimpleNamespace(topic_id="t", partitions=[SimpleNamespace(id=0)]))}

    def list_offsets(self, asked: Mapping[Any, Any], isolation_level: Any, **_: Any) -> dict[Any, "Future[Any]"]:
        end = STABLE if isolation_level == IsolationLevel.READ_COMMITTED else HIGH
        offsets = {"EarliestSpec": LOW, "LatestSpec": end, "OffsetSpec": end}
        return {
            member: reported(SimpleNamespace(offset=offsets[type(spec).__name__], leader_epoch=3))
            for member, spec in asked.items()
        }


class Cluster(KafkaCluster):
    """A cluster whose clients are no real ones."""

    def __init__(self, **settings: Any) -> None:
        super().__init__({"bootstrap.servers": "nowhere:9092"}, **settings)
        self.client, self.made_with = Client(), {}

    def made(self, client: type[Any], settings: Mapping[str, Any]) -> Any:
        self.made_with = dict(settings)
        return self.client


@pytest.mark.parametrize(("committed", "end"), [(True, STABLE), (False, HIGH)])
def test_ends_are_those_of_the_records_that_are_read(committed: bool, end: int) -> None:
    now = Cluster(read_committed=committed).watermarks_of("pizzas")
    assert (now.low, now.end, now.epochs) == ({0: LOW}, {0: end}, {0: 3})


@pytest.mark.parametrize(("committed", "level"), [(True, "read_committed"), (False, "read_uncommitted")])
def test_consumers_read_what_the_ends_count(committed: bool, level: str) -> None:
    cluster = Cluster(read_committed=committed)
    cluster.consumer({"group.id": "g"})
    assert cluster.made_with == {"group.id": "g", "enable.auto.commit": False, "isolation.level": level}
