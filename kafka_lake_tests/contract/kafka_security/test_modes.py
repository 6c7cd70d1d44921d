"""A whole ingest with each way to authenticate, by librdkafka and by Spark's Java client."""

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AclOperation

from kafka_lake.ingest.run import ingest
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake_tests.conftest import View
from kafka_lake_tests.contract.kafka_security.broker import SecureBroker
from kafka_lake_tests.contract.kafka_security.conftest import Secured
from kafka_lake_tests.contract.kafka_security.modes import Clients
from kafka_lake_tests.lanes import contract

pytestmark = pytest.mark.integration

VALUES = [b'{"id": %d, "name": "n%d"}' % (number, number) for number in range(20)]
ROWS = [(number, f"n{number}") for number in range(20)]


@pytest.mark.parametrize(
    "name",
    [
        "SCRAM-SHA-512",
        contract("PLAINTEXT"),
        contract("SSL"),
        contract("SSL CA inline"),
        contract("mTLS PKCS8"),
        contract("mTLS PKCS1"),
        contract("mTLS encrypted"),
        contract("mTLS inline"),
        contract("mTLS PKCS12"),
        contract("PLAIN"),
        contract("SCRAM-SHA-256"),
        contract("OAUTHBEARER"),
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
    spec = TopicTable(topic, "security", schema="id bigint, name string", consumer_group=None)
    assert ingest(spec, connections, "run-1").total("rows") == 15
    secure_broker.send(topic, VALUES[15:])
    assert ingest(spec, connections, "run-2").total("rows") == 5
    assert sorted((row["id"], row["name"]) for row in view(spec).rows()) == ROWS
