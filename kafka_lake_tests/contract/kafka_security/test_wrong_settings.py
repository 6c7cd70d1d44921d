"""Wrong settings: one clear error each, within seconds, which says who was refused and what to do, and no secret."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation

from kafka_lake.errors import AuthenticationError, ConfigurationError, KafkaError
from kafka_lake.orchestration.resources import KafkaResource
from kafka_lake_tests.contract.kafka_security.broker import SecureBroker
from kafka_lake_tests.contract.kafka_security.certificates import Authority, Identity
from kafka_lake_tests.contract.kafka_security.conftest import Secured
from kafka_lake_tests.contract.kafka_security.modes import Clients

pytestmark = [pytest.mark.integration, pytest.mark.contract]

SECONDS = 8.0
WRONG = "wrong-hush"
Wrong = Callable[["Wrongs"], Mapping[str, str]]


class Wrongs:
    """Settings that are wrong in one respect."""

    def __init__(self, clients: Clients, broker: SecureBroker, folder: Path) -> None:
        self.clients = clients
        self.broker = broker
        self.foreign = Authority(folder, "foreign")

    def certificate(self, own: Identity) -> dict[str, str]:
        return self.clients.mtls(ssl_certificate_location=own.certificate_file, ssl_key_location=own.key_file())


CASES: list[tuple[str, Wrong, type[KafkaError] | type[ConfigurationError], str, str]] = [
    (
        "a wrong password with SCRAM",
        lambda w: w.clients.sasl("SCRAM-SHA-512", password=WRONG),
        AuthenticationError,
        r"refused the credentials of user reader: .*invalid credentials",
        "KAFKA_LAKE_KAFKA_SASL_PASSWORD",
    ),
    (
        "a wrong password with PLAIN",
        lambda w: w.clients.sasl("PLAIN", password=WRONG),
        AuthenticationError,
        r"refused the credentials of user reader: .*Invalid username or password",
        "KAFKA_LAKE_KAFKA_SASL_PASSWORD",
    ),
    (
        "a user that the brokers don't know",
        lambda w: w.clients.sasl("SCRAM-SHA-256", user="nobody"),
        AuthenticationError,
        "refused the credentials of user nobody",
        "KAFKA_LAKE_KAFKA_SASL_USERNAME",
    ),
    (
        "a mechanism for a port that has none",
        lambda w: w.clients.sasl("PLAIN") | {"bootstrap.servers": w.broker.address("SSL")},
        AuthenticationError,
        "SASL PLAIN mechanism handshake failed",
        "KAFKA_LAKE_KAFKA_SASL_MECHANISM",
    ),
    (
        "a wrong client secret",
        lambda w: w.clients.oauth(WRONG),
        AuthenticationError,
        r"127\.0\.0\.1:\d+/token didn't issue one to client reader-oauth: .*invalid_client",
        "KAFKA_LAKE_KAFKA_SASL_OAUTHBEARER_CLIENT_ID",
    ),
    (
        "a token endpoint that isn't there",
        lambda w: w.clients.oauth(WRONG) | {"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token"},
        KafkaError,
        r"http://127\.0\.0\.1:1/token didn't issue one: Failed to connect",
        "KAFKA_LAKE_KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL",
    ),
    (
        "another CA",
        lambda w: w.clients.tls("SSL", "SSL") | {"ssl.ca.location": w.foreign.file},
        AuthenticationError,
        "The broker's certificate CN=broker, issued by CN=ca, is refused: unable to get local issuer certificate",
        "KAFKA_LAKE_KAFKA_SSL_CA_LOCATION",
    ),
    (
        "a broker's certificate that has expired",
        lambda w: w.clients.tls("EXPIRED", "SSL"),
        AuthenticationError,
        r"The broker's certificate CN=broker, issued by CN=ca, expired on \d{4}-",
        "If it has expired",
    ),
    (
        "no certificate where the brokers want one",
        lambda w: w.clients.mtls(),
        AuthenticationError,
        "requires a client certificate, and none is set",
        "KAFKA_LAKE_KAFKA_SSL_CERTIFICATE_LOCATION",
    ),
    (
        "a certificate that has expired",
        lambda w: w.certificate(w.broker.authority.issue("reader-mtls", last_day=-1)),
        AuthenticationError,
        r"refused the certificate CN=reader-mtls of this client, which expired on \d{4}-",
        "KAFKA_LAKE_KAFKA_SSL_CERTIFICATE_LOCATION",
    ),
    (
        "a certificate of another CA",
        lambda w: w.certificate(w.foreign.issue("reader-mtls")),
        AuthenticationError,
        "refused the certificate CN=reader-mtls of this client",
        "this certificate is signed by CN=foreign",
    ),
    (
        "a key of another certificate",
        lambda w: (
            w.certificate(w.broker.authority.issue("reader-mtls"))
            | {"ssl.key.location": w.foreign.issue("other").key_file()}
        ),
        ConfigurationError,
        "ssl.key.location failed: .*key values mismatch",
        "KAFKA_LAKE_KAFKA_",
    ),
    (
        "no TLS where the port wants it",
        lambda w: w.clients.sasl("PLAIN") | {"security.protocol": "SASL_PLAINTEXT"},
        AuthenticationError,
        "this port requires TLS, and security.protocol is SASL_PLAINTEXT",
        "KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL to SASL_SSL",
    ),
    (
        "TLS where the port has none",
        lambda w: w.clients.tls("PLAINTEXT", "SSL"),
        KafkaError,
        "closed the TLS connection",
        "KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL must be PLAINTEXT",
    ),
    (
        "Kerberos with a client that has none",
        lambda w: w.clients.tls("SASL_SSL", "SASL_SSL") | {"sasl.mechanism": "GSSAPI"},
        ConfigurationError,
        "No provider for SASL mechanism GSSAPI",
        "pip install --no-binary confluent-kafka",
    ),
]


@pytest.fixture
def wrongs(clients: Clients, secure_broker: SecureBroker, tmp_path: Path) -> Wrongs:
    return Wrongs(clients, secure_broker, tmp_path)


@pytest.mark.parametrize(
    ("settings", "kind", "said", "remedy"),
    [
        pytest.param(*case[1:], id=case[0])
        for case in CASES
    ],
)  # fmt: skip
def test_wrong_kafka_settings_are_reported(
    settings: Wrong,
    kind: type[KafkaError] | type[ConfigurationError],
    said: str,
    remedy: str,
    wrongs: Wrongs,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, value in settings(wrongs).items():
        variable = f"KAFKA_LAKE_KAFKA_{name.upper().replace('.', '_')}"
        monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS" if name == "bootstrap.servers" else variable, value)
    began = time.monotonic()
    with pytest.raises(kind, match=said) as failed:
        KafkaResource().cluster().watermarks_of(topic)
    assert time.monotonic() - began < SECONDS
    assert type(failed.value) is kind
    assert remedy in failed.value.remedy
    assert "hush" not in str(failed.value) + repr(failed.value.__cause__) + "".join(capfd.readouterr())


def test_changed_password_ends_spark_read_with_clear_error(
    clients: Clients, secure_broker: SecureBroker, secured: Secured, topic: str
) -> None:
    from kafka_lake.error_classification import refused_by_kafka

    secure_broker.grant("reader", AclOperation.READ, topic)
    connections = secured(clients.sasl("SCRAM-SHA-512", password=WRONG))
    options = {**connections.kafka_options, "assign": f'{{"{topic}": [0]}}', "startingOffsets": "earliest"}
    session = connections.spark()
    began = time.monotonic()
    with pytest.raises(Exception) as failed:
        session.read.format("kafka").options(**options).load().collect()
    assert time.monotonic() - began < 4 * SECONDS
    reported = refused_by_kafka(failed.value, topic, connections.cluster)
    assert type(reported) is AuthenticationError
    assert f"Reading topic {topic} in Spark" in reported.message
    assert "refused user reader" in reported.message
    assert "restart this process with the new one" in reported.remedy
    assert "hush" not in str(reported)
