"""Words reach both clients in one spelling; what the two would read differently is refused."""

import pytest

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.auth.properties import client_properties, java_properties

SECRET = "s3cr3t-never-shown"
SERVERS = {"bootstrap.servers": "b:1"}


@pytest.mark.parametrize(
    ("name", "given", "meant", "in_java"),
    [
        ("fetch.wait.max.ms", " 500\n", "500", "fetch.max.wait.ms"),
        ("security.protocol", "Plaintext", "PLAINTEXT", "security.protocol"),
        ("client.rack", " a b\t", "a b", "client.rack"),
    ],
)
def test_both_clients_get_one_spelling(name, given, meant, in_java):
    properties = {**SERVERS, name: given}
    assert client_properties(properties)[name] == meant
    assert java_properties(properties)[in_java] == meant


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("security.protocol", "TLS", "one of PLAINTEXT, SSL"),
        ("ssl.endpoint.identification.algorithm", "ldaps", "none, https"),
        ("sasl.password", f" {SECRET}", "white space"),
        ("sasl.oauthbearer.client.secret", f"{SECRET}\n", "white space"),
        ("ssl.keystore.password", f"{SECRET} ", "white space"),
    ],
)
def test_other_spellings_are_refused_with_the_property(name, given, said):
    for function in (client_properties, java_properties):
        with pytest.raises(ConfigurationError, match=said) as refused:
            function({**SERVERS, name: given})
        assert f"Kafka property {name} (KAFKA_LAKE_KAFKA_" in refused.value.message
        assert SECRET not in str(refused.value)


def test_host_names_that_are_not_checked_are_an_empty_word_in_java():
    name = "ssl.endpoint.identification.algorithm"
    properties = {**SERVERS, "security.protocol": "ssl", name: "NONE"}
    assert (client_properties(properties)[name], java_properties(properties)[name]) == ("none", "")


@pytest.mark.parametrize("given", ["", " "])
@pytest.mark.parametrize("name", ["check.crcs", "fetch.min.bytes", "client.id", "sasl.mechanism", "java.client.id"])
def test_what_is_empty_is_not_set(name, given):
    assert client_properties({**SERVERS, name: given}) == SERVERS
    assert java_properties({**SERVERS, name: given}) == SERVERS


@pytest.mark.parametrize("name", ["java.isolation.level", "librdkafka.isolation.level", "librdkafka.group.id"])
def test_what_would_be_overwritten_is_refused(name):
    for function in (client_properties, java_properties):
        with pytest.raises(ConfigurationError, match=f"Kafka property {name} .* can't be set"):
            function({**SERVERS, name: "read_uncommitted"})


def test_spark_may_be_told_a_group():
    assert java_properties({**SERVERS, "java.group.id": "allowed"})["group.id"] == "allowed"
