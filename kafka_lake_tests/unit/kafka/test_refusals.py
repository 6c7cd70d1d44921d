"""A refused client: who was refused what is told, and what a broker's certificate lacks, without a broker."""

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError as ClientError

from kafka_lake.cli.commands import doctor
from kafka_lake.error_classification import files_out_of_reach, refused_by_kafka
from kafka_lake.errors import AuthenticationError, AuthorizationError, ConfigurationError, KafkaError
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.explain import Failure, Right, distrust, explained, identity, principal, speaks_tls
from kafka_lake_tests.contract.kafka_security.certificates import Authority, Identity
from kafka_lake_tests.unit.runtime.test_retry import py4j

BOB = {"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", "sasl.username": "bob"}


@contextmanager
def tls_server(me: Identity) -> Iterator[dict[str, str]]:
    """Run a server that does no more than TLS's handshake; give the properties of a client of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(me.certificate_file, me.key_file())

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        yield {"bootstrap.servers": address, "security.protocol": "SSL"}
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.mark.slow
def test_a_certificate_of_an_unknown_ca_is_told_with_its_issuer(authority: Authority, tmp_path: Path) -> None:
    with tls_server(authority.issue("broker")) as given:
        reported = distrust(given | {"ssl.ca.location": Authority(tmp_path, "foreign").file})
        assert reported.startswith(
            "The broker's certificate CN=broker, issued by CN=ca, is refused: unable to get local"
        )
        assert distrust(given | {"ssl.ca.location": authority.file}) == ""
        assert distrust(given | {"ssl.ca.pem": authority.identity.certificate_pem}) == ""


def test_a_certificate_that_has_expired_or_is_not_valid_yet_is_told_with_the_date(authority: Authority) -> None:
    with tls_server(authority.issue("broker", last_day=-1)) as given:
        assert "CN=ca, expired on 20" in distrust(given | {"ssl.ca.location": authority.file})
    with tls_server(authority.issue("broker", last_day=30)) as given:
        assert "CN=ca, is not valid before 20" in distrust(given | {"ssl.ca.location": authority.file})


def test_a_port_that_wants_tls_is_told_apart_from_one_that_does_not_answer(authority: Authority) -> None:
    silent = Failure("Asking", None, waited=4)
    with tls_server(authority.issue("broker")) as given:
        assert speaks_tls(given)
        reported = explained(silent, given | {"security.protocol": "PLAINTEXT"})
        assert type(reported) is AuthenticationError
        assert "this port requires TLS, and security.protocol is PLAINTEXT" in reported.message
    reported = explained(silent, {"bootstrap.servers": "127.0.0.1:1"})
    assert type(reported) is KafkaError
    assert "didn't answer within 4 s" in reported.message


@pytest.mark.parametrize(
    "text",
    [
        "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?",
        "Disconnected: SSL connection closed by peer",
        "Disconnected: connection reset by peer",
        "Disconnected: connection closed by peer",
    ],
)
def test_closed_tls_connection_suggests_plaintext(text: str) -> None:
    reported = explained(Failure("Topic t", ClientError._TRANSPORT, text), BOB)
    assert reported.message == "Topic t: the cluster at b:1 closed the TLS connection."
    assert "must be PLAINTEXT or SASL_PLAINTEXT" in reported.remedy
    without_tls = explained(Failure("Topic t", ClientError._TRANSPORT, text), {**BOB, "security.protocol": "PLAINTEXT"})
    assert "TLS connection" not in without_tls.message


def test_a_missing_right_is_told_with_the_command_that_grants_it() -> None:
    failure = Failure("Topic t", ClientError.TOPIC_AUTHORIZATION_FAILED, "no", right=Right("WRITE", "topic", "t"))
    reported = explained(failure, BOB)
    assert type(reported) is AuthorizationError
    assert reported.message == "Topic t: the cluster at b:1 doesn't allow WRITE on topic t to user bob: no."
    command = "kafka-acls.sh --bootstrap-server b:1 --add --allow-principal User:bob --operation WRITE --topic t"
    assert command in reported.remedy


@pytest.mark.parametrize(
    ("given", "who", "named"),
    [
        (BOB, "user bob", "User:bob"),
        ({"security.protocol": "sasl_ssl", "sasl.oauthbearer.client.id": "app"}, "client app", "User:app"),
        ({"security.protocol": "SASL_SSL", "sasl.kerberos.principal": "a/b@C"}, "principal a/b@C", "User:NAME"),
        ({"security.protocol": "SASL_SSL"}, "this client", "User:NAME"),
        ({"security.protocol": "SSL", "sasl.username": "bob"}, "this client", "User:NAME"),
    ],
)
def test_who_a_client_is(given: Mapping[str, str], who: str, named: str) -> None:
    assert (identity(given), principal(given)) == (who, named)


def test_a_client_may_be_its_certificate(authority: Authority) -> None:
    given = {"security.protocol": "SSL", "ssl.certificate.location": authority.issue("reader").certificate_file}
    assert identity(given) == "certificate CN=reader"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [orders]",
            AuthorizationError,
            "doesn't allow READ on topic orders to user bob",
        ),
        (
            "org.apache.kafka.common.errors.GroupAuthorizationException: Not authorized to access group: spark-1",
            AuthorizationError,
            "doesn't allow READ on group spark-1 to user bob",
        ),
        (
            "org.apache.kafka.common.errors.SaslAuthenticationException: invalid credentials",
            AuthenticationError,
            "refused user bob: invalid credentials",
        ),
        (
            "org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed",
            AuthenticationError,
            "refused user bob: SSL handshake failed",
        ),
        (
            "org.apache.kafka.common.KafkaException: Failed to load PEM SSL keystore /ca.pem",
            ConfigurationError,
            "Failed to load PEM SSL keystore /ca.pem",
        ),
    ],
)
def test_what_spark_is_refused_is_told_as_for_python_s_client(text: str, kind: type[Exception], said: str) -> None:
    reported = refused_by_kafka(py4j(text), "orders", KafkaCluster(BOB))
    assert type(reported) is kind
    assert said in str(reported)


@pytest.mark.parametrize("error", [py4j("java.lang.OutOfMemoryError: heap"), ValueError("TopicAuthorizationException")])
def test_other_errors_are_not_the_brokers(error: Exception) -> None:
    assert refused_by_kafka(error, "orders", KafkaCluster(BOB)) is None


def test_doctor_finds_what_spark_s_client_can_t_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    monkeypatch.setenv("KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("KAFKA_LAKE_KAFKA_SSL_CRL_LOCATION", "/crl.pem")
    monkeypatch.setattr(doctor, "check_java", lambda: "17")
    monkeypatch.setattr(doctor, "check_jars", lambda tell_user: "7")
    for part in ("check_catalog", "check_warehouse", "check_spark"):
        monkeypatch.setattr(doctor, part, lambda catalog: "there")
    (reported,) = [check for check in doctor.check_all(lambda _: None) if not check.passed]
    assert reported.part == "Brokers"
    assert "no equivalent of Kafka property ssl.crl.location" in reported.message
    assert "librdkafka.ssl.crl.location" in reported.remedy


@pytest.mark.parametrize(
    ("scheme", "remedy"),
    [
        ("s3", "Set PYICEBERG_CATALOG__LAKE__S3__REGION"),
        ("abfss", "Set PYICEBERG_CATALOG__LAKE__IO_IMPL=org.apache.iceberg.azure.adlsv2.ADLSFileIO"),
        ("gs", "Set PYICEBERG_CATALOG__LAKE__IO_IMPL=org.apache.iceberg.gcp.gcs.GCSFileIO"),
        ("hdfs2", "the Java class"),
    ],
)
def test_files_that_spark_has_no_client_for(scheme: str, remedy: str) -> None:
    cause = f'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "{scheme}"'
    reported = files_out_of_reach(py4j(f"o.S: Lost task\nCaused by: {cause}"), "shop.orders", "lake")
    assert reported is not None
    assert (
        reported.message == f"Table shop.orders: its files are at {scheme}://, and Spark has no client for this scheme."
    )
    assert remedy in reported.remedy


def test_a_region_that_spark_was_not_told() -> None:
    error = "SdkClientException: Unable to load region from any of the providers in the chain x"
    reported = files_out_of_reach(py4j(f"software.amazon.awssdk.core.exception.{error}"), "shop.orders", "lake")
    assert reported is not None
    assert reported.message == "Table shop.orders: Spark doesn't know the S3 region of its files."
    assert reported.remedy.startswith("Set PYICEBERG_CATALOG__LAKE__S3__REGION.")


def test_other_errors_are_not_about_files() -> None:
    assert files_out_of_reach(py4j("org.apache.hadoop.fs.PathIOException: x"), "shop.orders", "lake") is None
    assert files_out_of_reach(ValueError('No FileSystem for scheme "s3"'), "shop.orders", "lake") is None
