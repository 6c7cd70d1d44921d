"""A password that is changed while a run goes on: the run ends with one clear error, and the next one loses nothing."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AclOperation

from kafka_lake.errors import AuthenticationError
from kafka_lake.ingest.continuous import ContinuousRun, Stop, feed_of
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Context, Observer
from kafka_lake.spec.continuous import Continuous
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.decoding import SparkDecoding
from kafka_lake_tests.conftest import View
from kafka_lake_tests.contract.kafka_security.broker import SecureBroker
from kafka_lake_tests.contract.kafka_security.conftest import Secured
from kafka_lake_tests.contract.kafka_security.modes import Clients

pytestmark = [pytest.mark.integration, pytest.mark.contract]

OLD, NEW = "old-hush", "new-hush"


def test_a_password_that_is_changed_during_a_continuous_run(
    clients: Clients,
    secure_broker: SecureBroker,
    secured: Secured,
    topic: str,
    view: Callable[[TopicTable], View],
    capfd: pytest.CaptureFixture[str],
) -> None:
    secure_broker.set_password("rotated", OLD)
    secure_broker.grant("rotated", AclOperation.READ, topic)
    secure_broker.send(topic, [b'{"id": %d}' % number for number in range(10)])
    spec = TopicTable(topic, "security", schema="id bigint")
    warnings, changed = list[str](), list[float]()

    def change(*_: object) -> None:
        if not changed:
            secure_broker.set_password("rotated", NEW)
            secure_broker.send(topic, [b'{"id": %d}' % number for number in range(10, 20)])
            changed.append(time.monotonic())

    context = Context(
        spec,
        secured(clients.sasl("SCRAM-SHA-512", user="rotated", password=OLD)),
        "run-1",
        Observer(on_commit=change, warn=warnings.append),
        decoding=SparkDecoding(),
    )
    settings, stop = Continuous(trigger=0.3, time_limit=600, idle=300, compact_every=None, report_every=1), Stop()
    continuous = ContinuousRun([feed_of(context, stop)], settings, stop)
    # Clients that are connected go on until the brokers ask them again who they are.
    with pytest.raises(AuthenticationError, match="user rotated") as failed:
        list(continuous.reports())
    assert time.monotonic() - changed[0] < 60
    reported = str(failed.value) + "".join(warnings) + "".join(capfd.readouterr())
    assert "hush" not in reported
    assert view(spec).ids() in (list(range(10)), list(range(20)))

    connections = secured(clients.sasl("SCRAM-SHA-512", user="rotated", password=NEW))
    ingest(spec, connections, "run-2")
    assert view(spec).ids() == list(range(20))
