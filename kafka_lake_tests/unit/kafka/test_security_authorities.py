"""CA certificates mean the same to both clients: in a file or a text, or those that each trusts anyway."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.auth.properties import client_properties, java_properties
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.topics import RecordProducer, create_topic
from kafka_lake_tests.contract.kafka_security.certificates import Authority
from kafka_lake_tests.unit.kafka.test_security_modes import jaas_options, secured

OIDC = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": "s3cr3t",
    "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/token",
}
KINDS = [("ssl.ca", {"security.protocol": "SSL"}), ("https.ca", OIDC)]


def trusted_by_java(given: dict[str, str]) -> dict[str, str]:
    java = java_properties(given)
    every = jaas_options(java["sasl.jaas.config"]) if "sasl.jaas.config" in java else java
    return {name: value for name, value in every.items() if name.startswith("ssl.truststore.")}


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [Authority(tmp_path_factory.mktemp("one"), "one").issue("me").certificate_pem.strip()]


@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_a_file_is_a_file_to_both_clients(kind: str, mode: dict[str, str], pems: list[str], tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(pems[0])
    given = secured() | mode | {f"{kind}.location": str(tmp_path / "ca.pem")}
    assert client_properties(given)[f"{kind}.location"] == given[f"{kind}.location"]
    assert trusted_by_java(given) == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": given[f"{kind}.location"],
    }


@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_to_probe_is_what_java_does_without_a_trust_store(kind: str, mode: dict[str, str]) -> None:
    given = secured() | mode | {f"{kind}.location": "probe"}
    assert client_properties(given)[f"{kind}.location"] == "probe"
    assert trusted_by_java(given) == {}


@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_a_folder_or_two_places_are_refused(kind: str, mode: dict[str, str], pems: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"{kind}\.location .* is a folder.*cat FOLDER"):
        java_properties(secured() | mode | {f"{kind}.location": str(tmp_path)})
    with pytest.raises(ConfigurationError, match=rf"{kind}\.location .* {kind}\.pem .* both set"):
        java_properties(secured() | mode | {f"{kind}.location": "/ca.pem", f"{kind}.pem": pems[0]})


@pytest.mark.parametrize("kind", ["ssl.certificate", "ssl.key"])
def test_a_certificate_or_key_in_two_places_is_refused(kind: str) -> None:
    given = secured(security_protocol="SSL") | {f"{kind}.location": "/me.pem", f"{kind}.pem": "text"}
    with pytest.raises(ConfigurationError, match=rf"{kind}\.location .* {kind}\.pem .* both set"):
        java_properties(given)


def test_a_text_without_certificates_is_refused_for_a_token_endpoint() -> None:
    with pytest.raises(ConfigurationError, match=r"https\.ca\.pem .*no certificate"):
        java_properties(secured() | OIDC | {"https.ca.pem": "nothing"})


@pytest.mark.parametrize(
    "more", [{"ssl.ca.location": "/nowhere.pem"}, {"ssl.ca.pem": "x"}, {"ssl.keystore.location": "/no"}]
)
def test_a_wrong_file_of_tls_is_an_error_with_oauth_where_librdkafka_would_end_the_process(
    more: dict[str, str],
) -> None:
    python = client_properties(secured() | OIDC | {"security.protocol": "SASL_SSL"} | more)
    with pytest.raises(ConfigurationError, match=next(iter(more)).replace(".", r"\.")):
        KafkaCluster(python, 1.0).consumer({"group.id": "x"})


@pytest.mark.parametrize(
    "make", [lambda cluster: RecordProducer(cluster, "t"), lambda cluster: create_topic(cluster, "t", 1)]
)
def test_a_wrong_authority_beside_tokens_is_told_and_ends_no_process(
    make: Callable[[KafkaCluster], object], tmp_path: Path
) -> None:
    """librdkafka 2.16 aborts."""
    wrong = {**OIDC, "security.protocol": "SASL_SSL", "bootstrap.servers": "127.0.0.1:1"}
    cluster = KafkaCluster(client_properties({**wrong, "ssl.ca.location": str(tmp_path / "none.pem")}))
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location failed"):
        make(cluster)
