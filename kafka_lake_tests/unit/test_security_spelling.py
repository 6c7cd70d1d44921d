"""Booleans, numbers and names reach both clients in one spelling, whatever each of them would make of the user's."""

import pytest
from confluent_kafka import Consumer, KafkaException

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.security.properties import client_properties, java_properties
from kafka_lake.kafka.security.spelling import NUMBERS

SECRET = "s3cr3t-never-shown"
SERVERS = {"bootstrap.servers": "b:1"}


def told(name, value, in_java=None):
    """Return what both clients get of one property."""
    given = {**SERVERS, name: value}
    return client_properties(given).get(name), java_properties(given).get(in_java or name)


@pytest.mark.parametrize("name", ["allow.auto.create.topics", "check.crcs", "enable.metrics.push"])
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("1", "true"),
        ("T", "true"),
        (" True ", "true"),
        (True, "true"),
        (0, "false"),
        ("f", "false"),
        ("FALSE", "false"),
    ],
)
def test_booleans(name, given, meant):
    assert told(name, given) == (meant, meant)
    assert java_properties({**SERVERS, f"java.{name}": given})[name] == meant


@pytest.mark.parametrize("given", ["yes", "on", "2", "truee"])
def test_what_no_client_takes_for_a_boolean_is_refused(given):
    for function in (client_properties, java_properties):
        with pytest.raises(ConfigurationError, match=r"check\.crcs \(KAFKA_LAKE_KAFKA_CHECK_CRCS\).*true or false"):
            function({**SERVERS, "check.crcs": given})


@pytest.mark.parametrize("given", ["1", "true", "T", True])
def test_a_certificate_that_is_checked_is_fine_to_java(given):
    java_properties({**SERVERS, "security.protocol": "SSL", "enable.ssl.certificate.verification": given})


@pytest.mark.parametrize("given", ["0", "f", False])
def test_a_certificate_that_is_not_checked_is_not(given):
    with pytest.raises(ConfigurationError, match="is false, which the Java client doesn't allow"):
        java_properties({**SERVERS, "security.protocol": "SSL", "enable.ssl.certificate.verification": given})


@pytest.mark.parametrize(("given", "meant"), [("+500", "500"), (" 500\n", "500"), ("0500", "500"), (500, "500")])
def test_numbers(given, meant):
    assert told("fetch.wait.max.ms", given, "fetch.max.wait.ms") == (meant, meant)


@pytest.mark.parametrize("given", ["0x10", "1e3", "10.5", "1_000", "10 ms", "\u0661", "-1", "300001", "9" * 5000, True])
def test_what_is_no_number_to_both_clients_is_refused(given):
    for function in (client_properties, java_properties):
        with pytest.raises(ConfigurationError, match=r"fetch\.wait\.max\.ms .*no whole number from 0 to 300000"):
            function({**SERVERS, "fetch.wait.max.ms": given})


@pytest.mark.parametrize("name", sorted(NUMBERS.keys() - {"reconnect.backoff.max.ms"}))
def test_the_ranges_are_those_of_librdkafka(name):
    base = {"bootstrap.servers": "127.0.0.1:1", "group.id": "x", "log_level": 0}
    # It demands that these are not less than others.
    base |= {"reconnect.backoff.max.ms": "3600000", "receive.message.max.bytes": "2147483647"}
    base |= {"message.max.bytes": "1000"}
    least, most = NUMBERS[name]
    for allowed in (max(least, 1000) if name == "fetch.max.bytes" else least, most):
        Consumer({**base, name: str(allowed)}).close()
    for outside in (least - 1, most + 1):
        with pytest.raises(KafkaException, match="outside allowed range"):
            Consumer({**base, name: str(outside)})


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("security.protocol", "Plaintext", "PLAINTEXT"),
        ("client.dns.lookup", " USE_ALL_DNS_IPS", "use_all_dns_ips"),
        ("client.id", "  me ", "me"),
        ("client.id", 7, "7"),
        ("client.rack", "a b\t", "a b"),
    ],
)
def test_names(name, given, meant):
    assert told(name, given) == (meant, meant)


@pytest.mark.parametrize("given", ["none", " NONE"])
def test_host_names_are_not_checked_by_none(given):
    name = "ssl.endpoint.identification.algorithm"
    properties = {**SERVERS, "security.protocol": "ssl", name: given}
    assert (client_properties(properties)[name], java_properties(properties)[name]) == ("none", "")
    alone = {**SERVERS, "security.protocol": "ssl", f"java.{name}": given}
    assert java_properties(alone)[name] == ""


def test_host_names_are_checked_by_https():
    name = "ssl.endpoint.identification.algorithm"
    properties = {**SERVERS, "security.protocol": "SSL", name: "HTTPS"}
    assert (client_properties(properties)[name], java_properties(properties)[name]) == ("https", "https")


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("security.protocol", "TLS", "one of PLAINTEXT, SSL"),
        ("client.dns.lookup", "default", "use_all_dns_ips"),
        ("ssl.endpoint.identification.algorithm", "ldaps", "none, https"),
        ("ssl.endpoint.identification.algorithm", " ", "none or https"),
        ("java.ssl.endpoint.identification.algorithm", "ldaps", "none, https"),
        ("sasl.oauthbearer.method", "x", "default, oidc"),
    ],
)
def test_other_names_are_refused_with_those_that_there_are(name, given, said):
    for function in (client_properties, java_properties):
        with pytest.raises(ConfigurationError, match=said) as refused:
            function({**SERVERS, name: given})
        assert f"Kafka property {name} (KAFKA_LAKE_KAFKA_" in refused.value.message


@pytest.mark.parametrize("given", ["", " ", None])
@pytest.mark.parametrize("name", ["check.crcs", "fetch.min.bytes", "client.dns.lookup", "client.id", "sasl.mechanism"])
def test_what_is_empty_is_not_set(name, given):
    assert told(name, given) == (None, None)


@pytest.mark.parametrize("name", ["security.protocol", "sasl.mechanism", "check.crcs", "bootstrap.servers"])
def test_what_is_empty_for_java_alone_is_not_set_there(name):
    given = {**SERVERS, "security.protocol": "PLAINTEXT", "check.crcs": "false", "client.id": "me"}
    assert java_properties({**given, f"java.{name}": " ", "java.client.id": ""}) == {**given, "client.id": ""}


@pytest.mark.parametrize(
    "name", ["sasl.password", "sasl.username", "sasl.oauthbearer.client.secret", "librdkafka.ssl.key.password"]
)
def test_white_space_before_credentials_is_refused_and_after_them_is_part_of_them(name):
    with pytest.raises(ConfigurationError, match=f"{name} .* white space") as refused:
        client_properties({**SERVERS, name: f" {SECRET}"})
    assert SECRET not in str(refused.value)
    assert client_properties({**SERVERS, name: f"{SECRET} "})[name.removeprefix("librdkafka.")] == f"{SECRET} "


def test_java_would_trim_the_password_of_a_key_store():
    with pytest.raises(ConfigurationError, match=r"ssl\.keystore\.password .* white space"):
        client_properties({**SERVERS, "ssl.keystore.password": f"{SECRET}\n"})


@pytest.mark.parametrize("given", [f"{SECRET}\0", f"{SECRET}\udc80"])
def test_what_is_no_text_is_refused(given):
    for function in (client_properties, java_properties):
        with pytest.raises(ConfigurationError, match=r"sasl\.password .* no text") as refused:
            function({**SERVERS, "sasl.password": given})
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("sasl.mechanism", "sasl.mechanisms"),
        ("fetch.message.max.bytes", "max.partition.fetch.bytes"),
        ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret"),
        ("bootstrap.servers", "metadata.broker.list"),
    ],
)
def test_two_names_of_one_property_must_agree(one, other):
    for function in (client_properties, java_properties):
        with pytest.raises(ConfigurationError, match="are two names of one property") as refused:
            function({**SERVERS, one: "77", other: "78"})
        assert one in refused.value.message
        assert other in refused.value.message
    assert client_properties({**SERVERS, one: "77", other: "77"})[
        one if other != "max.partition.fetch.bytes" else other
    ]


def test_an_alias_reaches_java():
    assert java_properties({**SERVERS, "fetch.message.max.bytes": "77"})["max.partition.fetch.bytes"] == "77"


@pytest.mark.parametrize("name", ["java.isolation.level", "librdkafka.isolation.level", "librdkafka.group.id"])
def test_what_would_be_overwritten_is_refused(name):
    for function in (client_properties, java_properties):
        with pytest.raises(ConfigurationError, match=f"Kafka property {name} .* can't be set"):
            function({**SERVERS, name: "read_uncommitted"})


def test_spark_may_be_told_a_group():
    assert java_properties({**SERVERS, "java.group.id": "allowed"})["group.id"] == "allowed"
