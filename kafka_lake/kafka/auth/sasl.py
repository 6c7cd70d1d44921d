"""SASL: librdkafka's user, token endpoint, keytab or AWS account become the Java client's JAAS line and handlers."""

import re
from collections.abc import Mapping
from typing import Any

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.auth import tls
from kafka_lake.kafka.auth.spelling import SERVERS, needed, setting

_KERBEROS = "sasl.kerberos."
_OAUTH = "sasl.oauthbearer."
_SECURITY = "org.apache.kafka.common.security"
_MSK = "AWS_MSK_IAM"
_MSK_CLASSES = "software.amazon.msk.auth.iam"
# A property of this project: the region of a cluster whose address doesn't have it.
_REGION = "aws.region"
_MSK_ADDRESS = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")

TRANSLATED = (
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    f"{_KERBEROS}service.name",
    f"{_KERBEROS}principal",
    f"{_KERBEROS}keytab",
    # How librdkafka gets tickets; Java needs no command for it.
    f"{_KERBEROS}kinit.cmd",
    f"{_OAUTH}method",
    f"{_OAUTH}client.id",
    f"{_OAUTH}client.secret",
    f"{_OAUTH}scope",
    f"{_OAUTH}extensions",
    f"{_OAUTH}token.endpoint.url",
    "https.ca.location",
    "https.ca.pem",
    _REGION,
)
"""The properties that `for_java` knows."""


def for_java(given: Mapping[str, str], java: Mapping[str, str]) -> dict[str, str]:
    """Return the Java client's SASL properties."""
    mechanism = java.get("sasl.mechanism") or given.get("sasl.mechanism", "")
    if "sasl.jaas.config" in java:
        return {"sasl.mechanism": mechanism} if mechanism else {}
    translate = {
        "PLAIN": _password,
        "SCRAM-SHA-256": _password,
        "SCRAM-SHA-512": _password,
        "OAUTHBEARER": _oauthbearer,
        "GSSAPI": _gssapi,
        _MSK: _msk,
    }.get(mechanism)
    if translate is None:
        raise ConfigurationError(
            f"{setting('sasl.mechanism')} is {mechanism or 'not set'}.",
            "Set it to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI or AWS_MSK_IAM. For another mechanism, "
            "set KAFKA_LAKE_KAFKA_JAVA_SASL_JAAS_CONFIG (property java.sasl.jaas.config) to the JAAS line it needs.",
        )
    return {"sasl.mechanism": mechanism, **translate({**given, "sasl.mechanism": mechanism})}


def _password(given: Mapping[str, str]) -> dict[str, str]:
    mechanism = given["sasl.mechanism"]
    options = {name: needed(given, f"sasl.{name}", f"SASL {mechanism}") for name in ("username", "password")}
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return {"sasl.jaas.config": _jaas(f"{_SECURITY}.{module}", options)}


def _oauthbearer(given: Mapping[str, str]) -> dict[str, str]:
    if given.get(f"{_OAUTH}method", "default").lower() != "oidc":
        raise ConfigurationError(
            f"SASL OAUTHBEARER needs {setting(f'{_OAUTH}method')}=oidc.",
            "Set it, with the properties client.id, client.secret and token.endpoint.url beside it. For another way, "
            "set KAFKA_LAKE_KAFKA_JAVA_SASL_JAAS_CONFIG (property java.sasl.jaas.config) to the JAAS line it needs.",
        )
    why = "SASL OAUTHBEARER with method oidc"
    options = {
        "clientId": needed(given, f"{_OAUTH}client.id", why),
        "clientSecret": needed(given, f"{_OAUTH}client.secret", why),
    }
    if scope := given.get(f"{_OAUTH}scope"):
        options["scope"] = scope
    for extension in filter(None, given.get(f"{_OAUTH}extensions", "").split(",")):
        name, _, value = extension.strip().partition("=")
        options[f"extension_{name}"] = value
    return {
        "sasl.oauthbearer.token.endpoint.url": needed(given, f"{_OAUTH}token.endpoint.url", why),
        "sasl.login.callback.handler.class": f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": _jaas(
            f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule", options | tls.truststore(given, "https.ca")
        ),
    }


def _gssapi(given: Mapping[str, str]) -> dict[str, str]:
    options = {"doNotPrompt": "true"}
    if keytab := given.get(f"{_KERBEROS}keytab"):
        principal = needed(given, f"{_KERBEROS}principal", "A keytab for SASL GSSAPI")
        options |= {"useKeyTab": "true", "storeKey": "true", "keyTab": keytab, "principal": principal}
    else:
        options["useTicketCache"] = "true"
        if name := given.get(f"{_KERBEROS}principal"):
            options["principal"] = name
    return {
        # librdkafka's default; Java has none.
        f"{_KERBEROS}service.name": given.get(f"{_KERBEROS}service.name", "kafka"),
        "sasl.jaas.config": _jaas("com.sun.security.auth.module.Krb5LoginModule", options),
    }


def _msk(given: Mapping[str, str]) -> dict[str, str]:
    # The classes are in the jar aws-msk-iam-auth.
    return {
        "sasl.jaas.config": f"{_MSK_CLASSES}.IAMLoginModule required;",
        "sasl.client.callback.handler.class": f"{_MSK_CLASSES}.IAMClientCallbackHandler",
    }


def _jaas(module: str, options: Mapping[str, str]) -> str:
    return f"{module} required {' '.join(f'{_option(name)}={_quoted(v)}' for name, v in options.items())};"


def _option(name: str) -> str:
    return name if name.isidentifier() else _quoted(name)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def for_librdkafka(given: Mapping[str, str]) -> dict[str, Any]:
    """Return librdkafka's properties; for AWS_MSK_IAM a callback that signs tokens with AWS's usual credentials."""
    own: dict[str, Any] = {name: value for name, value in given.items() if name != _REGION}
    if given.get("sasl.mechanism") != _MSK or not given.get("security.protocol", "").startswith("SASL"):
        return own
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError as error:
        raise ConfigurationError(
            f"SASL {_MSK} needs the Python package aws-msk-iam-sasl-signer-python.",
            "Install it: pip install 'kafka-lake[msk]'.",
        ) from error
    match = _MSK_ADDRESS.search(given[SERVERS])
    region = given.get(_REGION) or (match and match[1])
    if not region:
        raise ConfigurationError(
            f"SASL {_MSK}: the address {given[SERVERS]} doesn't name the region.",
            f"Set {setting(_REGION)}, to eu-west-1 for instance.",
        )

    def token(_: str) -> tuple[str, float]:
        signed, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
        return signed, expires_ms / 1000

    return {**own, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token}
