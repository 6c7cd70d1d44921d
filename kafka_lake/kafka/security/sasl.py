"""SASL: librdkafka's user, token endpoint or keytab become the Java client's JAAS line and handlers."""

from collections.abc import Mapping

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.security import msk, tls
from kafka_lake.kafka.security.settings import FOR_LIBRDKAFKA, needed, setting

_KERBEROS = "sasl.kerberos."
_OAUTH = "sasl.oauthbearer."
_SECURITY = "org.apache.kafka.common.security"

TRANSLATED = (
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    f"{_KERBEROS}service.name",
    f"{_KERBEROS}principal",
    f"{_KERBEROS}keytab",
    # How librdkafka gets tickets, which Java does by itself.
    f"{_KERBEROS}kinit.cmd",
    f"{_KERBEROS}min.time.before.relogin",
    f"{_OAUTH}method",
    f"{_OAUTH}client.id",
    f"{_OAUTH}client.secret",
    f"{_OAUTH}grant.type",
    f"{_OAUTH}scope",
    f"{_OAUTH}extensions",
    f"{_OAUTH}token.endpoint.url",
    "https.ca.location",
    "https.ca.pem",
    msk.REGION,
)
"""The properties that `for_java` knows."""


def is_used(given: Mapping[str, str]) -> bool:
    """Return whether the client authenticates by SASL."""
    return given.get("security.protocol", "").upper().startswith("SASL")


def for_java(given: Mapping[str, str], java: Mapping[str, str]) -> dict[str, str]:
    """Return the Java client's SASL properties.

    Args:
        java: What the user sets for the Java client.

    Raises:
        ConfigurationError: If the mechanism needs a property that is missing, or has no translation and there is no
            ``java.sasl.jaas.config``.
    """
    mechanism = java.get("sasl.mechanism") or given.get("sasl.mechanism", "")
    if "sasl.jaas.config" in java:
        return {"sasl.mechanism": mechanism} if mechanism else {}
    translate = {
        "PLAIN": _password,
        "SCRAM-SHA-256": _password,
        "SCRAM-SHA-512": _password,
        "OAUTHBEARER": _oauthbearer,
        "GSSAPI": _gssapi,
        msk.MECHANISM: msk.for_java,
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
    if given.get(f"{_OAUTH}method", "default") != "oidc":
        raise ConfigurationError(
            f"SASL OAUTHBEARER needs {setting(f'{_OAUTH}method')}=oidc.",
            "Set it, with the properties client.id, client.secret and token.endpoint.url beside it. For another way, "
            "set KAFKA_LAKE_KAFKA_JAVA_SASL_JAAS_CONFIG (property java.sasl.jaas.config) to the JAAS line it needs.",
        )
    if (grant := given.get(f"{_OAUTH}grant.type", "client_credentials")) != "client_credentials":
        raise ConfigurationError(
            f"{setting(f'{_OAUTH}grant.type')} is {grant}, which Spark's Java client 3.9 doesn't have.",
            "Use client_credentials, or set KAFKA_LAKE_KAFKA_JAVA_SASL_JAAS_CONFIG for your own login module.",
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
    options |= tls.truststore(given, "https.ca")
    return {
        "sasl.oauthbearer.token.endpoint.url": needed(given, f"{_OAUTH}token.endpoint.url", why),
        "sasl.login.callback.handler.class": f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": _jaas(f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule", options),
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
    told = {
        # librdkafka's default; Java has none.
        f"{_KERBEROS}service.name": given.get(f"{_KERBEROS}service.name", "kafka"),
        "sasl.jaas.config": _jaas("com.sun.security.auth.module.Krb5LoginModule", options),
    }
    relogin = f"{_KERBEROS}min.time.before.relogin"
    if given.get(relogin) == "0":
        # To librdkafka: Disable automatic key refresh by setting this property to 0. To Java: no pause between two.
        raise ConfigurationError(
            f"{setting(relogin)} is 0, and Java's client can't be told to renew no ticket.",
            f"Set {FOR_LIBRDKAFKA}{relogin} instead, which is for Python's client alone.",
        )
    return {**told, relogin: given[relogin]} if given.get(relogin) else told


def _jaas(module: str, options: Mapping[str, str]) -> str:
    return f"{module} required {' '.join(f'{_option(name)}={_quoted(v)}' for name, v in options.items())};"


def _option(name: str) -> str:
    return name if name.isidentifier() else _quoted(name)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
