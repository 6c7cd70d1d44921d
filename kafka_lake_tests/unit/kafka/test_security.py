"""Environment variables become client properties, for both clients, and secrets don't show."""

import pytest
from confluent_kafka import Consumer

from kafka_lake.errors import ConfigurationError, KafkaError
from kafka_lake.kafka.auth.properties import (
    RENAMED,
    SAME_IN_BOTH,
    client_properties,
    java_properties,
    properties_from_env,
)
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource

SECRET = "s3cr3t-never-shown"


def test_variables_become_properties():
    found = properties_from_env(
        {
            "KAFKA_LAKE_BOOTSTRAP_SERVERS": "broker:9093",
            "KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "KAFKA_LAKE_KAFKA_SSL_CA_LOCATION": "/ca.pem",
            "KAFKA_LAKE_HOME": "/elsewhere",
        }
    )
    assert found == {
        "bootstrap.servers": "broker:9093",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/ca.pem",
    }


@pytest.mark.parametrize(
    ("environ", "servers"),
    [
        ({}, "127.0.0.1:19092"),
        ({"KAFKA_LAKE_BROKER_PORT": "20092"}, "127.0.0.1:20092"),
        ({"KAFKA_LAKE_BOOTSTRAP_SERVERS": ""}, "127.0.0.1:19092"),
        ({"KAFKA_LAKE_KAFKA_BOOTSTRAP_SERVERS": "a:1"}, "a:1"),
        ({"KAFKA_LAKE_KAFKA_BOOTSTRAP_SERVERS": "a:1", "KAFKA_LAKE_BOOTSTRAP_SERVERS": "b:2"}, "b:2"),
    ],
)
def test_bootstrap_servers(environ, servers):
    assert properties_from_env(environ) == {"bootstrap.servers": servers}


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ("one", "one:9092"),
        (" one:1 , two ,,three_3:3, ", "one:1,two:9092,three_3:3"),
        ("[::1],[fe80::1%eth0]:9093", "[::1]:9092,[fe80::1%eth0]:9093"),
        ("10.0.0.1", "10.0.0.1:9092"),
    ],
)
def test_both_clients_get_the_same_addresses(given, reported):
    properties = {"bootstrap.servers": given, "security.protocol": "ssl"}
    assert client_properties(properties)["bootstrap.servers"] == reported
    assert java_properties(properties)["bootstrap.servers"] == reported
    alone = {"bootstrap.servers": "other:1", "java.bootstrap.servers": given, "security.protocol": "SSL"}
    assert java_properties(alone)["bootstrap.servers"] == reported


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "has no address"),
        (" , ", "has no address"),
        ("::1", "in brackets"),
        ("fe80::1:9092", "in brackets"),
        ("[::1", "in brackets"),
        ("one:b", "is not host:port"),
        ("one:", "is not host:port"),
        ("one:0", "is not host:port"),
        ("one:65536", "is not host:port"),
        ("one:-1", "is not host:port"),
        (":9092", "is not host:port"),
        ("one:1;two:2", "Separate addresses by commas"),
        ("one:1 two:2", "Separate addresses by commas"),
        ("b\xfccher:9092", "xn--"),
        ("one:\u0661", "is not host:port"),
        ("SSL://one:1", "is not host:port"),
        (f"http://bob:{SECRET}@one:1", "the address 'one:1'"),
    ],
)
def test_what_is_no_address_to_both_clients_is_refused(given, said):
    for function in (client_properties, java_properties):
        with pytest.raises(ConfigurationError, match=said) as refused:
            function({"bootstrap.servers": given})
        assert "bootstrap.servers (KAFKA_LAKE_BOOTSTRAP_SERVERS)" in refused.value.message
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("scram-sha-512", "scram.ScramLoginModule"),
    ],
)
@pytest.mark.parametrize("spelling", ["sasl.mechanism", "sasl.mechanisms"])
def test_jaas(mechanism, module, spelling):
    java = java_properties(
        {
            "bootstrap.servers": "b:1",
            "security.protocol": "SASL_SSL",
            spelling: mechanism,
            "sasl.username": "bob",
            "sasl.password": 'a"b\\c',
            "librdkafka.message.max.bytes": "7",
        }
    )
    assert java == {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism.upper(),
        "sasl.jaas.config": f'org.apache.kafka.common.security.{module} required username="bob" password="a\\"b\\\\c";',
    }


def test_tls():
    java = java_properties(
        {
            "bootstrap.servers": "b:1",
            "security.protocol": "SSL",
            "ssl.ca.location": "/ca.pem",
            "ssl.keystore.location": "/me.p12",
            "ssl.keystore.password": SECRET,
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert java == {
        "bootstrap.servers": "b:1",
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": "/me.p12",
        "ssl.keystore.password": SECRET,
        "ssl.endpoint.identification.algorithm": "",
    }


def test_a_resource_reads_the_environment_late_and_shows_no_secret(monkeypatch):
    resource = KafkaResource(properties={"client.id": "me"})
    monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("KAFKA_LAKE_KAFKA_SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("KAFKA_LAKE_KAFKA_SASL_USERNAME", "bob")
    monkeypatch.setenv("KAFKA_LAKE_KAFKA_SASL_PASSWORD", SECRET)
    options = resource.spark_options()
    assert SECRET in options["kafka.sasl.jaas.config"]
    assert options["kafka.client.id"] == "me"
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["kafka.allow.auto.create.topics"] == "false"
    own = KafkaResource(properties={"allow.auto.create.topics": "true"})
    assert own.spark_options()["kafka.allow.auto.create.topics"] == "true"
    assert KafkaResource(read_committed=False).spark_options()["kafka.isolation.level"] == "read_uncommitted"
    assert resource.cluster().properties["sasl.password"] == SECRET
    assert SECRET not in repr(resource) + str(resource) + resource.model_dump_json()
    assert SECRET not in repr(resource.cluster())


def test_errors_of_a_cluster_that_does_not_answer_show_no_secret():
    cluster = KafkaCluster(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "bob",
            "sasl.password": SECRET,
        },
        timeout=0.2,
    )
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1.*BOOTSTRAP_SERVERS") as failed:
        cluster.topics()
    assert SECRET not in str(failed.value)


def test_the_catalog_resource_shows_no_secret(monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "http://127.0.0.1:1")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__CREDENTIAL", SECRET)
    resource = CatalogResource(name="lake")
    assert resource.open().properties["credential"] == SECRET
    assert SECRET not in repr(resource) + str(resource) + resource.model_dump_json() + repr(resource.open())


EVERYWHERE = dict.fromkeys(SAME_IN_BOTH, "2000") | {
    "client.dns.lookup": "resolve_canonical_bootstrap_servers_only",
    "allow.auto.create.topics": "true",
    "check.crcs": "true",
    "enable.metrics.push": "false",
    "fetch.max.bytes": "2000000",
}


EVERYWHERE_RENAMED = dict.fromkeys(RENAMED, "1000") | {"socket.timeout.ms": "3000"}


def test_what_concerns_both_clients_reaches_both():
    given = {"bootstrap.servers": "127.0.0.1:1", **EVERYWHERE, **EVERYWHERE_RENAMED}
    assert client_properties(given) == given
    # librdkafka knows each of them: another name would be refused here.
    Consumer({**client_properties(given), "group.id": "x", "log_level": 0}).close()
    assert java_properties(given) == {
        "bootstrap.servers": "127.0.0.1:1",
        **EVERYWHERE,
        **dict.fromkeys(RENAMED.values(), "1000"),
        "request.timeout.ms": "3000",
    }


def test_idle_connections_that_stay_open_are_minus_one_to_java():
    given = {"bootstrap.servers": "b:1", "connections.max.idle.ms": "0"}
    assert client_properties(given) == given
    assert java_properties(given) == {"bootstrap.servers": "b:1", "connections.max.idle.ms": "-1"}


@pytest.mark.parametrize("name", ["clinet.rack", "socket.nagle.disable", "statistics.interval.ms", "debug"])
def test_what_one_client_alone_has_is_refused_with_what_to_write_instead(name):
    given = {"bootstrap.servers": "b:1", name: "1"}
    with pytest.raises(ConfigurationError, match=f"no equivalent of Kafka property {name}") as refused:
        java_properties(given)
    assert f"set librdkafka.{name} instead" in refused.value.remedy
    alone = {"bootstrap.servers": "b:1", f"librdkafka.{name}": "1"}
    assert (client_properties(alone)[name], java_properties(alone)) == ("1", {"bootstrap.servers": "b:1"})


def test_what_java_does_anyway_and_settings_of_groups_are_for_librdkafka_alone():
    given = {"bootstrap.servers": "b:1", "session.timeout.ms": "45000", "socket.keepalive.enable": "true"}
    assert java_properties(given) == {"bootstrap.servers": "b:1"}
    assert client_properties(given) == given


@pytest.mark.parametrize(
    ("name", "instead"), [("isolation.level", "read_committed:"), ("group.id", "kafka-lake.<namesp")]
)
def test_what_is_not_for_users_to_set_is_refused_with_the_setting(name, instead):
    with pytest.raises(ConfigurationError, match=f"Kafka property {name} .* can't be set") as refused:
        java_properties({"bootstrap.servers": "b:1", name: "x"})
    assert instead in refused.value.remedy
