"""Rights: the least that a run needs, and what is told for each that is missing."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from kafka_lake.errors import AuthorizationError, KafkaLakeError
from kafka_lake.ingest.run import ingest
from kafka_lake.kafka.records import Sampler
from kafka_lake.kafka.topics import create_topic, produce
from kafka_lake.orchestration.resources import KafkaResource
from kafka_lake.runtime.context import Observer
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import View
from kafka_lake_tests.contract.kafka_security.broker import SecureBroker
from kafka_lake_tests.contract.kafka_security.conftest import Secured
from kafka_lake_tests.contract.kafka_security.modes import Clients

pytestmark = pytest.mark.integration

SECONDS = 30.0


def spec_of(topic: str) -> TopicTable:
    return TopicTable(topic, "security", schema="id bigint")


def refused(call: Callable[[], object]) -> KafkaLakeError:
    began = time.monotonic()
    with pytest.raises(KafkaLakeError) as failed:
        call()
    assert time.monotonic() - began < SECONDS
    assert "hush" not in str(failed.value)
    return failed.value


def no_spark() -> object:
    raise AssertionError("Spark was touched")


@pytest.fixture
def stranger(clients: Clients, secure_broker: SecureBroker, topic: str, secured: Secured) -> object:
    """Return the connections of a user who has no right at all; the topic has four records."""
    secure_broker.revoke("stranger")
    secure_broker.send(topic, [b'{"id": %d}' % number for number in range(4)])
    return secured(clients.sasl("SCRAM-SHA-512", user="stranger"))


@pytest.mark.exhaustive
def test_rights_to_read_topic_and_group_are_enough(
    stranger, topic: str, secure_broker: SecureBroker, view: Callable[[TopicTable], View]
) -> None:
    secure_broker.grant("stranger", AclOperation.READ, topic)
    secure_broker.grant("stranger", AclOperation.READ, spec_of(topic).group, ResourceType.GROUP)
    # By such a limit records are looked at before each commit.
    spec, warnings = replace(spec_of(topic), max_bytes_per_commit=1_000_000), list[str]()
    for run in range(1, 4):
        ingest(spec, stranger, f"run-{run}", observer=Observer(warn=warnings.append))
        assert view(spec).position() == {0: 2 * run, 1: 2 * run}
        assert (
            stranger.cluster.cut_off(view(spec).carried_by(view(spec).table.current_snapshot().snapshot_id), [0, 1])
            == {}
        )
        secure_broker.send(topic, [b'{"id": %d}' % (4 * run + number) for number in range(4)])
    with Sampler(stranger.cluster) as sampler:
        assert len(sampler.newest(stranger.cluster.watermarks_of(topic), 100).records) == 16
    assert view(spec).ids() == list(range(12))
    assert warnings == []


@pytest.mark.contract
def test_missing_group_right_fails_only_the_lag_report(
    stranger, topic: str, secure_broker: SecureBroker, view: Callable[[TopicTable], View]
) -> None:
    secure_broker.grant("stranger", AclOperation.READ, topic)
    spec, warnings = spec_of(topic), list[str]()
    ingest(spec, stranger, "run-1", observer=Observer(warn=warnings.append))
    assert len(view(spec).rows()) == 4
    (reported,) = warnings
    group = spec.group
    assert f"doesn't allow READ on group {group} to user stranger" in reported
    assert f"--allow-principal User:stranger --operation READ --group {group}" in reported

    secure_broker.grant("stranger", AclOperation.READ, group, ResourceType.GROUP)
    secure_broker.send(topic, [b'{"id": 9}'])
    ingest(spec, stranger, "run-2", observer=Observer(warn=warnings.append))
    assert len(warnings) == 1


@pytest.mark.contract
def test_missing_topic_right_is_reported_by_name(stranger, topic: str) -> None:
    error = refused(lambda: ingest(spec_of(topic), stranger, "run-1"))
    assert type(error) is AuthorizationError
    assert f"doesn't allow READ on topic {topic} to user stranger" in error.message
    assert f"--allow-principal User:stranger --operation READ --topic {topic}" in error.remedy


@pytest.mark.contract
def test_describe_without_read_right_creates_no_table(
    stranger, topic: str, secure_broker: SecureBroker, catalog_resource
) -> None:
    secure_broker.grant("stranger", AclOperation.DESCRIBE, topic)
    spec = spec_of(topic)
    error = refused(lambda: ingest(spec, stranger, "run-1"))
    assert type(error) is AuthorizationError
    assert f"Reading topic {topic}" in error.message
    assert f"doesn't allow READ on topic {topic} to user stranger" in error.message
    assert catalog_resource.open().table(spec.identifier) is None


@pytest.mark.contract
def test_missing_read_right_is_reported_when_sampling(stranger, topic: str, secure_broker: SecureBroker) -> None:
    secure_broker.grant("stranger", AclOperation.DESCRIBE, topic)
    spec = replace(spec_of(topic), max_bytes_per_commit=1_000_000)
    error = refused(lambda: ingest(spec, replace(stranger, spark=no_spark), "run-1"))
    assert type(error) is AuthorizationError
    assert f"Reading topic {topic}:" in error.message
    assert f"doesn't allow READ on topic {topic} to user stranger" in error.message


@pytest.mark.contract
def test_topic_settings_are_omitted_without_describe_right(stranger, topic: str, secure_broker: SecureBroker) -> None:
    secure_broker.grant("stranger", AclOperation.READ, topic)
    assert stranger.cluster.cleanup_policies([topic]) == {}
    secure_broker.grant("stranger", AclOperation.DESCRIBE_CONFIGS, topic)
    assert stranger.cluster.cleanup_policies([topic]) == {topic: "delete"}


@pytest.mark.contract
def test_missing_create_or_write_right_is_reported(stranger, topic: str, secure_broker: SecureBroker) -> None:
    cluster = KafkaResource().cluster()
    error = refused(lambda: create_topic(cluster, f"{topic}-new", 1))
    assert type(error) is AuthorizationError
    assert f"doesn't allow CREATE on topic {topic}-new to user stranger" in error.message
    secure_broker.grant("stranger", AclOperation.DESCRIBE, topic)
    error = refused(lambda: produce(cluster, topic, [(None, b"{}")]))
    assert type(error) is AuthorizationError
    assert f"doesn't allow WRITE on topic {topic} to user stranger" in error.message
