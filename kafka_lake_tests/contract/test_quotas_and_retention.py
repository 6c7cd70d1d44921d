"""Brokers that slow a client down, and topics whose records have gone before anybody has read them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View

pytestmark = [pytest.mark.integration, pytest.mark.contract]

NewTopic = Callable[..., Topic]
NewView = Callable[[TopicTable], View]

SLOW = "slow-reader"
BYTES_A_SECOND = 50_000


def limit(jvm: Any, broker: EmbeddedBroker, client_id: str) -> None:
    """Set a quota, which Python's admin client can't."""
    address = jvm.java.util.HashMap({"bootstrap.servers": broker.bootstrap_servers})
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(address)
    quota = jvm.org.apache.kafka.common.quota
    entity = quota.ClientQuotaEntity(jvm.java.util.HashMap({"client-id": client_id}))
    operation = getattr(quota, "ClientQuotaAlteration$Op")("consumer_byte_rate", float(BYTES_A_SECOND))
    alteration = quota.ClientQuotaAlteration(entity, jvm.java.util.List.of(operation))
    admin.alterClientQuotas(jvm.java.util.List.of(alteration)).all().get()
    admin.close()


def throttled(broker: EmbeddedBroker, topic: Topic, client_id: str) -> list[float]:
    """Return for how many seconds the broker held back a client that reads a topic to its end."""
    reported: list[float] = []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": client_id,
            "group.id": "unused",
            "fetch.max.bytes": 100_000,
            "message.max.bytes": 100_000,
            "enable.partition.eof": True,
            "throttle_cb": lambda event: reported.append(event.throttle_time),
        }
    )
    consumer.assign([TopicPartition(topic.name, 0, 0)])
    while (message := consumer.poll(60)) is not None and message.error() is None:
        pass
    consumer.close()
    return reported


def test_a_reader_that_the_brokers_slow_down_gets_through(
    broker: EmbeddedBroker,
    new_topic: NewTopic,
    connections: Callable[..., Connections],
    view: NewView,
    spark_resource: SparkResource,
) -> None:
    topic = new_topic()
    for number in range(30):
        topic.send({"id": number, "text": "x" * 40_000})
    limit(spark_resource.spark_session._jvm, broker, SLOW)
    assert not throttled(broker, topic, "another")
    assert max(throttled(broker, topic, SLOW)) > 0, "the quota holds for this client"
    kafka = KafkaResource(properties={"bootstrap.servers": broker.bootstrap_servers, "client.id": SLOW})
    slow = replace(connections(), cluster=kafka.cluster(), kafka_options=kafka.spark_options())
    assert slow.kafka_options["kafka.client.id"] == SLOW
    spec = topic.spec("id bigint, text string")
    ingest(spec, slow, "run-1")
    view(spec).assert_exactly_once(topic.ledger)
    assert [(row["id"], len(row["text"])) for row in sorted(view(spec).rows(), key=lambda row: row["id"])] == [
        (number, 40_000) for number in range(30)
    ]


def test_topic_with_expired_records_starts_at_the_next_record(
    new_topic: NewTopic, connections: Callable[..., Connections], view: NewView
) -> None:
    topic = new_topic(**{"retention.ms": "0"})
    topic.send_ids(range(5))
    # What the broker does too, but only every five minutes.
    cut = TopicPartition(topic.name, 0, 5)
    topic.admin.delete_records([cut])[cut].result(20)
    spec = topic.spec()
    assert ingest(spec, connections(), "run-1").total("records") == 0
    topic.send_ids([9])
    report = ingest(spec, connections(), "run-2")
    assert all(finding.passed for finding in report.findings()), "nobody has lost what nobody had"
    (row,) = view(spec).rows()
    assert (row["id"], row["_kafka"]["offset"]) == (9, 5)
    assert view(spec).position() == {0: 6}
