"""What is translated for the Java client is what that client understands: its own parsers read it, in Spark's JVM."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import PrivateFormat
from hypothesis import HealthCheck, given, settings

from kafka_lake.kafka.auth.properties import java_properties
from kafka_lake.orchestration.resources import SparkResource
from kafka_lake_tests.contract.kafka_security.certificates import PASSWORD, Authority
from kafka_lake_tests.unit.kafka.test_security import EVERYWHERE, EVERYWHERE_RENAMED
from kafka_lake_tests.unit.kafka.test_security_modes import OIDC, PASSWORDS, jaas_options, secured

pytestmark = [pytest.mark.integration, pytest.mark.contract]


@pytest.fixture(scope="module")
def jvm(spark_resource: SparkResource) -> Any:
    return spark_resource.spark_session._jvm


def options_in_java(jvm: Any, properties: dict[str, str]) -> dict[str, str]:
    """Return the JAAS options as Java parses them, once Java has taken the properties for a consumer's."""
    consumer = {"key.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer"}
    consumer["value.deserializer"] = consumer["key.deserializer"]
    config = jvm.org.apache.kafka.clients.consumer.ConsumerConfig(jvm.java.util.HashMap(properties | consumer))
    context = jvm.org.apache.kafka.common.security.JaasContext.loadClientContext(config.values())
    (entry,) = context.configurationEntries()
    jvm.java.lang.Class.forName(
        entry.getLoginModuleName(), False, jvm.java.lang.Thread.currentThread().getContextClassLoader()
    )
    for name in ("sasl.login.callback.handler.class",):
        if name in properties:
            assert config.getClass(name).getName() == properties[name]
    return {str(name): str(value) for name, value in dict(entry.getOptions()).items()}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=PASSWORDS | OIDC)
def test_names_and_secrets_arrive_as_they_are(given: dict[str, str], jvm: Any) -> None:
    java = java_properties(given)
    assert options_in_java(jvm, java) == jaas_options(java["sasl.jaas.config"])


def test_kerberos(jvm: Any) -> None:
    java = java_properties(secured(sasl_mechanism="GSSAPI", sasl_kerberos_principal="a/b@C", sasl_kerberos_keytab="/k"))
    assert options_in_java(jvm, java)["keyTab"] == "/k"


def test_shared_kafka_settings_have_their_java_names(jvm: Any) -> None:
    java = java_properties({"bootstrap.servers": "127.0.0.1:1", **EVERYWHERE, **EVERYWHERE_RENAMED})
    known = set(jvm.org.apache.kafka.clients.consumer.ConsumerConfig.configNames())
    assert java.keys() - known == set()
    more = {"key.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer"}
    more["value.deserializer"] = more["key.deserializer"]
    config = jvm.org.apache.kafka.clients.consumer.ConsumerConfig(jvm.java.util.HashMap(java | more))
    assert config.getString("client.rack") == EVERYWHERE["client.rack"]
    assert config.getString("client.dns.lookup") == EVERYWHERE["client.dns.lookup"]
    assert config.getInt("request.timeout.ms") == int(EVERYWHERE_RENAMED["socket.timeout.ms"])


@pytest.mark.parametrize("elliptic", [False, True])
@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("password", ["", PASSWORD])
@pytest.mark.parametrize("inline", [False, True])
def test_keys_and_certificates_make_a_client(
    elliptic: bool, form: Any, password: str, inline: bool, jvm: Any, authority: Authority
) -> None:
    me = authority.issue("me", elliptic=elliptic)
    tls = {"ssl.certificate.location": me.certificate_file, "ssl.key.location": me.key_file(form, password)}
    ca = {"ssl.ca.location": authority.file}
    if inline:
        tls = {"ssl.certificate.pem": me.certificate_pem, "ssl.key.pem": me.key_pem(form, password)}
        ca = {"ssl.ca.pem": authority.identity.certificate_pem}
    given = secured(security_protocol="SSL") | tls | ca | ({"ssl.key.password": password} if password else {})
    # Making a client loads its stores.
    client = jvm.org.apache.kafka.clients.admin.AdminClient.create(jvm.java.util.HashMap(java_properties(given)))
    client.close(jvm.java.time.Duration.ZERO)
