"""Each way to authenticate is understood by both clients, whatever its values are; what Java lacks is refused."""

import re
import string
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.auth.properties import client_properties, java_properties
from kafka_lake_tests.contract.kafka_security.certificates import PASSWORD, Authority, Identity

SECRET = "s3cr3t-never-shown"
# What a person may choose; white space around it is refused.
TEXT = st.text(string.ascii_letters + string.digits + " \"'\\;=,$%#äß", min_size=1, max_size=20).filter(
    lambda text: text == text.strip()
)
NAME = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=20)


@pytest.fixture(scope="module")
def me(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return Authority(tmp_path_factory.mktemp("pem")).issue("me")


def jaas_options(line: str) -> dict[str, str]:
    """Read a JAAS line as Java's StreamTokenizer does: quoted text with backslash escapes."""
    quoted = re.compile(r'"?([\w.]+)"?="((?:[^"\\]|\\.)*)"')
    escapes = {"n": "\n", "r": "\r"}
    return {
        name: re.sub(r"\\(.)", lambda found: escapes.get(found[1], found[1]), value)
        for name, value in quoted.findall(line.partition(" required ")[2])
    }


def secured(**given: str) -> dict[str, str]:
    base = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT"}
    return base | {name.replace("_", "."): value for name, value in given.items()}


PASSWORDS = st.builds(
    secured,
    sasl_mechanism=st.sampled_from(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]),
    sasl_username=TEXT,
    sasl_password=TEXT,
)
OIDC = st.builds(
    secured,
    sasl_mechanism=st.just("OAUTHBEARER"),
    sasl_oauthbearer_method=st.just("oidc"),
    sasl_oauthbearer_client_id=TEXT,
    sasl_oauthbearer_client_secret=TEXT,
    sasl_oauthbearer_scope=NAME,
    sasl_oauthbearer_extensions=st.just("logicalCluster=lkc-1,identityPoolId=pool-1"),
    sasl_oauthbearer_token_endpoint_url=st.just("http://127.0.0.1:1/token"),
)


@settings(max_examples=60)
@given(given=PASSWORDS | OIDC)
def test_both_clients_get_the_same_names_and_secrets(given: dict[str, str]) -> None:
    AdminClient({**client_properties(given), "log_level": 0})
    java = java_properties(given)
    options = jaas_options(java["sasl.jaas.config"])
    assert java["sasl.mechanism"] == given["sasl.mechanism"]
    if given["sasl.mechanism"] != "OAUTHBEARER":
        assert options == {"username": given["sasl.username"], "password": given["sasl.password"]}
        return
    assert java["sasl.oauthbearer.token.endpoint.url"] == given["sasl.oauthbearer.token.endpoint.url"]
    assert options == {
        "clientId": given["sasl.oauthbearer.client.id"],
        "clientSecret": given["sasl.oauthbearer.client.secret"],
        "scope": given["sasl.oauthbearer.scope"],
        "extension_logicalCluster": "lkc-1",
        "extension_identityPoolId": "pool-1",
    }


def test_kerberos_with_a_keytab() -> None:
    java = java_properties(
        secured(sasl_mechanism="GSSAPI", sasl_kerberos_principal="me@LAKE", sasl_kerberos_keytab="/etc/me.keytab")
    )
    assert java["sasl.kerberos.service.name"] == "kafka"
    assert java["sasl.jaas.config"].startswith("com.sun.security.auth.module.Krb5LoginModule required ")
    assert jaas_options(java["sasl.jaas.config"]) == {
        "doNotPrompt": "true",
        "useKeyTab": "true",
        "storeKey": "true",
        "keyTab": "/etc/me.keytab",
        "principal": "me@LAKE",
    }


def test_kerberos_without_a_keytab_takes_the_tickets_that_are_there() -> None:
    given = secured(sasl_mechanism="gssapi", sasl_kerberos_service_name="broker")
    java = java_properties(given)
    assert java["sasl.kerberos.service.name"] == "broker"
    assert jaas_options(java["sasl.jaas.config"]) == {"doNotPrompt": "true", "useTicketCache": "true"}
    assert client_properties(given)["sasl.mechanism"] == "GSSAPI"


@pytest.mark.parametrize("mechanism", ["PLAIN", "scram-sha-256"])
def test_java_may_have_a_mechanism_of_its_own(mechanism: str) -> None:
    given = secured(java_sasl_mechanism=mechanism, sasl_username="bob", sasl_password=SECRET)
    for more in ({}, {"sasl.mechanism": "SCRAM-SHA-512"}):
        java = java_properties(given | more)
        assert java["sasl.mechanism"] == mechanism.upper()
        assert jaas_options(java["sasl.jaas.config"]) == {"username": "bob", "password": SECRET}
        assert ("Plain" in java["sasl.jaas.config"]) == (mechanism == "PLAIN")


def test_a_mechanism_of_java_alone_lacks_what_it_would_lack_in_both() -> None:
    with pytest.raises(ConfigurationError, match=r"SASL PLAIN needs Kafka property sasl\.username"):
        java_properties(secured(java_sasl_mechanism="PLAIN"))


@pytest.mark.slow
@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("password", ["", PASSWORD])
@pytest.mark.parametrize("inline", [True, False])
def test_a_key_of_any_pem_form_becomes_pkcs8(form: Any, password: str, inline: bool, me: Identity) -> None:
    key, certificate = me.key_pem(form, password), me.certificate_pem
    tls = {"ssl.certificate.pem": f"a comment\n{certificate}", "ssl.key.pem": key}
    if not inline:
        tls = {"ssl.certificate.location": me.certificate_file, "ssl.key.location": me.key_file(form, password)}
    given = secured(security_protocol="ssl") | tls | ({"ssl.key.password": password} if password else {})
    if not inline:
        AdminClient({**client_properties(given), "log_level": 0})
    java = java_properties(given)
    assert java["ssl.keystore.type"] == "PEM"
    assert java["ssl.keystore.certificate.chain"] == certificate.strip()
    assert java["ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY-----")
    found = load_pem_private_key(java["ssl.keystore.key"].encode(), None)
    assert found.private_numbers() == me.key.private_numbers()  # type: ignore[union-attr]


def test_pem_in_one_line_is_pem_with_lines(me: Identity) -> None:
    given = secured(security_protocol="SSL") | {"ssl.ca.pem": me.certificate_pem.replace("\n", "\\n")}
    assert client_properties(given)["ssl.ca.pem"] == me.certificate_pem
    assert java_properties(given)["ssl.truststore.certificates"] == me.certificate_pem.strip()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ssl.certificate.location": "{cert}"}, "ssl.key.location .* is not set"),
        ({"ssl.key.location": "{key}"}, "ssl.certificate.location .* is not set"),
        ({"ssl.key.location": "/nowhere.pem", "ssl.certificate.location": "{cert}"}, "/nowhere.pem can't be read"),
        ({"ssl.key.location": "{cert}", "ssl.certificate.location": "{cert}"}, "has no private key in PEM form"),
        ({"ssl.key.location": "{key}", "ssl.certificate.location": "{key}"}, "has no certificate in PEM form"),
        ({"ssl.key.location": "{locked}", "ssl.certificate.location": "{cert}"}, "has an encrypted private key"),
        (
            {"ssl.key.location": "{locked}", "ssl.certificate.location": "{cert}", "ssl.key.password": SECRET},
            "KAFKA_LAKE_KAFKA_SSL_KEY_PASSWORD",
        ),
        ({"enable.ssl.certificate.verification": "false"}, "which the Java client doesn't allow"),
        ({"ssl.crl.location": "/crl.pem"}, r"no equivalent of Kafka property ssl\.crl\.location"),
        ({"ssl.cipher.suites": "ECDHE"}, r"java\.ssl\.cipher\.suites"),
        ({"ssl.truststore.location": "/ca.jks"}, r"ssl\.ca\.location takes"),
        ({"security.protocol": "TLS"}, "Set it to one of PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism .* is not set.*KAFKA_JAVA_SASL_JAAS_CONFIG"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "DIGEST"}, "is DIGEST"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "needs Kafka property sasl.username"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "sasl.oauthbearer.method .*=oidc",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            },
            "no equivalent of Kafka property sasl.oauthbearer.grant.type",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", "sasl.kerberos.keytab": "/k"},
            "needs Kafka property sasl.kerberos.principal",
        ),
    ],
)
def test_what_java_can_t_be_told_is_refused(more: dict[str, str], said: str, me: Identity) -> None:
    files = {
        "{cert}": me.certificate_file,
        "{key}": me.key_file(),
        "{locked}": me.key_file(password=PASSWORD),
    }
    given = secured(security_protocol="SSL") | {name: files.get(value, value) for name, value in more.items()}
    with pytest.raises(ConfigurationError, match=said) as refused:
        java_properties(given)
    assert SECRET not in str(refused.value)


def test_a_property_may_be_for_one_client_alone() -> None:
    given = secured(security_protocol="SSL") | {
        "librdkafka.ssl.crl.location": "/crl.pem",
        "ssl.cipher.suites": "ECDHE",
        "java.ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
    }
    assert client_properties(given)["ssl.crl.location"] == "/crl.pem"
    java = java_properties(given)
    assert java["ssl.cipher.suites"] == "TLS_AES_256_GCM_SHA384"
    assert not any("crl" in name for name in java)
    other = secured(sasl_mechanism="DIGEST-MD5") | {"java.sasl.jaas.config": "module;"}
    assert java_properties(other)["sasl.jaas.config"] == "module;"


def test_java_s_own_stores_replace_what_would_be_translated(me: Identity) -> None:
    given = secured(security_protocol="SSL", ssl_ca_location="/ca.pem", ssl_certificate_location="/nowhere") | {
        "java.ssl.truststore.location": "/ca.jks",
        "java.ssl.keystore.location": "/me.jks",
    }
    java = java_properties(given)
    assert (java["ssl.truststore.location"], java["ssl.keystore.location"]) == ("/ca.jks", "/me.jks")
    assert "ssl.truststore.type" not in java


def test_a_key_that_java_cannot_use_is_refused(me: Identity) -> None:
    key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    given = secured(security_protocol="SSL") | {"ssl.certificate.pem": me.certificate_pem, "ssl.key.pem": key}
    with pytest.raises(ConfigurationError, match=r"Java client can't use.*RSA or EC"):
        java_properties(given)
