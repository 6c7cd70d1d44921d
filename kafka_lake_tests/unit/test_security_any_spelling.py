"""Whatever a person writes: both clients take what they are given, or an error says what is wrong with it."""

import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import event, example, given
from hypothesis import strategies as st

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.security.properties import RENAMED, ZERO_IS_OFF, client_properties, java_properties
from kafka_lake.kafka.security.spelling import BOOLEANS, CREDENTIALS, ENUMERATIONS, NUMBERS
from kafka_lake_tests.contract.kafka_security.certificates import Authority

SECRET = "s3cr3t-never-shown"

INT, LONG = 2**31 - 1, 2**63 - 1
# Types and validators of Kafka 3.9: ConsumerConfig, SslConfigs, SaslConfigs.
JAVA_NUMBERS = {
    "connections.max.idle.ms": (-LONG, LONG),
    "fetch.max.bytes": (0, INT),
    "fetch.max.wait.ms": (0, INT),
    "fetch.min.bytes": (0, INT),
    "max.partition.fetch.bytes": (0, INT),
    "metadata.max.age.ms": (0, LONG),
    "receive.buffer.bytes": (-1, INT),
    "reconnect.backoff.max.ms": (0, LONG),
    "reconnect.backoff.ms": (0, LONG),
    "request.timeout.ms": (0, INT),
    "retry.backoff.max.ms": (0, LONG),
    "retry.backoff.ms": (0, LONG),
    "sasl.kerberos.min.time.before.relogin": (-LONG, LONG),
    "send.buffer.bytes": (-1, INT),
    "socket.connection.setup.timeout.max.ms": (-LONG, LONG),
    "socket.connection.setup.timeout.ms": (-LONG, LONG),
}
JAVA_BOOLEANS = {"allow.auto.create.topics", "check.crcs", "enable.metrics.push"}
JAVA_WORDS = {
    "client.dns.lookup": {"use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"},
    "security.protocol": {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"},
    "ssl.endpoint.identification.algorithm": {"", "https"},
    "ssl.keystore.type": {"PEM", "PKCS12"},
    "ssl.truststore.type": {"PEM"},
}
JAVA_TEXTS = {
    "client.id",
    "client.rack",
    "sasl.client.callback.handler.class",
    "sasl.jaas.config",
    "sasl.kerberos.service.name",
    "sasl.login.callback.handler.class",
    "sasl.mechanism",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
}
_ADDRESS = r"(?:[0-9A-Za-z._-]+|\[[0-9a-f:]+\]):[1-9][0-9]{0,4}"


def is_taken_by_java(name: str, value: Any) -> bool:
    """Return whether Kafka 3.9's ConfigDef takes a property, and gets the same as was meant, not a trimmed text."""
    if not isinstance(value, str):
        return False
    if name == "bootstrap.servers":
        return bool(re.fullmatch(f"{_ADDRESS}(?:,{_ADDRESS})*", value))
    if name in JAVA_NUMBERS:
        least, most = JAVA_NUMBERS[name]
        return bool(re.fullmatch("-?[0-9]+", value)) and least <= int(value) <= most
    if name in JAVA_BOOLEANS:
        return value in ("true", "false")
    if name in JAVA_WORDS:
        return value in JAVA_WORDS[name]
    return name in JAVA_TEXTS and value == value.strip()


SOUND = {
    **{name: st.sampled_from(["true", "T", 1, True, " False", "0"]) for name in BOOLEANS},
    **{
        name: st.integers(least, min(most, least + 5000)).flatmap(
            lambda number: st.sampled_from([number, f"{number}", f" +{number}\n", f"0{number}"])
        )
        for name, (least, most) in NUMBERS.items()
    },
    **{
        name: st.sampled_from([spelled for each in words for spelled in (each, each.upper(), f" {each.title()} ")])
        for name, words in ENUMERATIONS.items()
    },
    **{name: st.sampled_from([SECRET, f"{SECRET} ", f'{SECRET}"\\ä']) for name in CREDENTIALS},
    "bootstrap.servers": st.sampled_from(["b", "b:1, [::1],", "plaintext://b", "SASL_SSL://b:1,c", "[::1]:9093"]),
    "sasl.mechanism": st.sampled_from(["plain", "SCRAM-SHA-256", " Scram-Sha-512", "oauthbearer", "GSSAPI"]),
    "sasl.mechanisms": st.sampled_from(["PLAIN", "plain"]),
    "sasl.oauthbearer.token.endpoint.url": st.just(" https://127.0.0.1:1/token"),
    "client.id": st.sampled_from(["me", " me ", 7, True]),
    "client.rack": st.sampled_from(["a", " b "]),
    "ssl.ca.location": st.sampled_from(["probe", "PROBE", "{folder}", "{file}", " {file} "]),
    "https.ca.location": st.sampled_from(["probe", "{folder}", "{file}"]),
    "ssl.ca.pem": st.just("{pem}"),
}
FOR_ONE = {
    "java.allow.auto.create.topics": SOUND["check.crcs"],
    "java.bootstrap.servers": SOUND["bootstrap.servers"],
    "java.client.id": st.sampled_from(["", "java"]),
    "java.sasl.mechanism": SOUND["sasl.mechanism"],
    "java.security.protocol": SOUND["security.protocol"],
    "java.ssl.endpoint.identification.algorithm": SOUND["ssl.endpoint.identification.algorithm"],
    "librdkafka.check.crcs": SOUND["check.crcs"],
    "librdkafka.ssl.ca.location": SOUND["ssl.ca.location"],
}
ODD = st.sampled_from(
    [
        None,
        "",
        " ",
        True,
        False,
        0,
        1,
        -1,
        1.5,
        2**31,
        "-1",
        "0x10",
        "1e3",
        "yes",
        "None",
        "null",
        "x",
        "a,b",
        "none",
        "HTTPS",
        "probe",
        "::1",
        "a:b",
        "http://a",
        "\0",
        "\udc80",
        "ä",
        "9" * 5000,
        "x" * 5000,
        "\x1c1",
    ]
)
MODES = st.sampled_from(
    [
        {},
        {"security.protocol": "ssl"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "plain"},
        {"security.protocol": "sasl_ssl", "sasl.mechanism": "scram-sha-512"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "OIDC"},
    ]
)
LOGIN = {
    "sasl.username": "bob",
    "sasl.password": SECRET,
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": SECRET,
    "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/token",
}
_NAMES = st.sampled_from(sorted(SOUND.keys() | FOR_ONE.keys()))


@st.composite
def written(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what a person may write: mostly sound, at times odd."""
    names = draw(st.lists(_NAMES, max_size=6, unique=True))
    found = {"bootstrap.servers": "b:1", **LOGIN, **draw(MODES)}
    found |= {name: draw((SOUND | FOR_ONE)[name]) for name in names}
    for name in draw(st.lists(_NAMES, max_size=2)):
        found[name] = draw(ODD)
    for name in draw(st.lists(st.sampled_from(CREDENTIALS), max_size=1)):
        found[name] = draw(st.sampled_from([f" {SECRET}", f"{SECRET}\0", f"{SECRET}\udc80", f"{SECRET}\n"]))
    return found


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("authorities")
    file = Authority(folder).file
    return {"{folder}": str(folder), "{file}": file, "{pem}": Path(file).read_text()}


def told(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]] | ConfigurationError:
    """Return what each client is told and takes, or the error; any other exception is raised."""
    try:
        python, java = client_properties(given), java_properties(given)
        KafkaCluster(python, 1.0).consumer({"group.id": "x"}).close()
    except ConfigurationError as error:
        return error
    AdminClient({**python, "log_level": 0})
    return python, java


@given(given=written())
@example(given={"bootstrap.servers": "b:1", "java.client.id": "\x1c1"})
@example(given={"bootstrap.servers": "b:1", "socket.timeout.ms": 10, "fetch.wait.max.ms": 10})
def test_both_clients_take_what_they_get_or_an_error_says_what_is_wrong(
    given: dict[str, Any], places: dict[str, str]
) -> None:
    for place, path in places.items():
        given = {name: v.replace(place, path) if isinstance(v, str) else v for name, v in given.items()}
    found = told(given)
    if isinstance(found, ConfigurationError):
        event("refused")
        assert SECRET not in str(found)
        assert found.remedy
        return
    event("taken")
    python, java = found
    if java.get("security.protocol", "").startswith("SASL"):
        assert java["sasl.mechanism"] in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
    assert [(name, value) for name, value in java.items() if not is_taken_by_java(name, value)] == []
    for name in NUMBERS.keys() & given.keys() & python.keys():
        # What is about a mechanism that isn't used isn't told.
        in_java = java.get(RENAMED.get(name, name), python[name])
        wanted = -1 if name in ZERO_IS_OFF and python[name] == "0" else int(python[name], 0)
        if name == "socket.timeout.ms" and (wait := int(python.get("fetch.wait.max.ms", "0"), 0)) >= wanted:
            # librdkafka waits for the one beside the other.
            wanted += wait
        assert int(in_java) == wanted
    for name in ({"bootstrap.servers", "client.id", "client.rack"} | JAVA_BOOLEANS) & python.keys() & java.keys():
        assert python[name] == java[name] or f"java.{name}" in given or f"librdkafka.{name}" in given
