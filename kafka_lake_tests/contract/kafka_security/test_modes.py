"""A whole ingest with each way to authenticate, by librdkafka and by Spark's Java client."""

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AclOperation

from kafka_lake.ingest.run import ingest
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import View
from kafka_lake_tests.contract.kafka_security.broker import SecureBroker
from kafka_lake_tests.contract.kafka_security.conftest import Secured
from kafka_lake_tests.contract.kafka_security.modes import Clients

pytestmark = [pytest.mark.integration, pytest.mark.contract]

VALUES = [b'{"id": %d, "name": "n%d"}' % (number, number) for number in range(20)]
ROWS = [(number, f"n{number}") for number in range(20)]


@pytest.mark.parametrize(
    "name",
    [
        "SCRAM-SHA-512",
        "PLAINTEXT",
        "SSL",
        "SSL CA inline",
        "mTLS PKCS8",
        "mTLS PKCS1",
        "mTLS encrypted",
        "mTLS inline",
        "mTLS PKCS12",
        "PLAIN",
        "SCRAM-SHA-256",
        "OAUTHBEARER",
    ],
)
def test_a_topic_becomes_a_table(
    name: str,
    topic: str,
    clients: Clients,
    secure_broker: SecureBroker,
    secured: Secured,
    view: Callable[[TopicTable], View],
) -> None:
    mode = clients[name]
    if mode.principal:
        secure_broker.grant(mode.principal, AclOperation.READ, topic)
    secure_broker.send(topic, VALUES[:15])
    connections = secured(mode.properties)
    spec = TopicTable(topic, "security", schema="id bigint, name string")
    assert ingest(spec, connections, "run-1").total("rows") == 15
    secure_broker.send(topic, VALUES[15:])
    assert ingest(spec, connections, "run-2").total("rows") == 5
    assert sorted((row["id"], row["name"]) for row in view(spec).rows()) == ROWS
