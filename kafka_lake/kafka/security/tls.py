"""TLS: librdkafka's CA, certificate and key become the Java client's trust store and key store."""

from collections.abc import Mapping
from pathlib import Path

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.kafka.security import pem
from kafka_lake.kafka.security.settings import setting

TRANSLATED = (
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
)
"""The properties that `for_java` knows."""

HINTS = {
    "ssl.cipher.suites": "Java names cipher suites differently: java.ssl.cipher.suites sets them.",
    "ssl.truststore.location": "It is a name of the Java client: ssl.ca.location takes the CA's certificates as PEM.",
    "ssl.truststore.password": "It is a name of the Java client: ssl.ca.location takes the CA's certificates as PEM.",
    "ssl.truststore.type": "It is a name of the Java client: ssl.ca.location takes the CA's certificates as PEM.",
    "ssl.keystore.type": "It is a name of the Java client: ssl.keystore.location takes PKCS#12 files.",
    "sasl.jaas.config": "It is a name of the Java client: sasl.mechanism, sasl.username and sasl.password replace it.",
}
"""What to use instead of properties that only one of the clients has."""

_JKS = b"\xfe\xed\xfe\xed"


def for_java(given: Mapping[str, str], java: Mapping[str, str]) -> dict[str, str]:
    """Return the Java client's TLS properties.

    Args:
        given: librdkafka's properties.
        java: What the user sets for the Java client; a store that is set there is not translated.

    Raises:
        ConfigurationError: If a file can't be read, or a key and its certificate are not both there.
    """
    told: dict[str, str] = {}
    if given.get("enable.ssl.certificate.verification") == "false":
        raise ConfigurationError(
            f"{setting('enable.ssl.certificate.verification')} is false, which the Java client doesn't allow.",
            "Remove it, and set ssl.ca.location to the certificate of the CA that signed the brokers' certificates.",
        )
    if not any(name.startswith("ssl.truststore.") for name in java):
        told |= _truststore(given)
    if not any(name.startswith("ssl.keystore.") for name in java):
        told |= _keystore(given)
    if algorithm := given.get("ssl.endpoint.identification.algorithm"):
        told["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    return told


def certificate_of(given: Mapping[str, str]) -> str:
    """Return the client's own certificates as PEM; empty if it has none, or only a PKCS#12 file.

    Raises:
        ConfigurationError: If the file can't be read or has none.
    """
    if location := given.get("ssl.certificate.location"):
        return pem.certificates(pem.read("ssl.certificate.location", location), "ssl.certificate.location")
    text = given.get("ssl.certificate.pem", "")
    return pem.certificates(text, "ssl.certificate.pem") if text else ""


def _truststore(given: Mapping[str, str]) -> dict[str, str]:
    location, text = given.get("ssl.ca.location", ""), given.get("ssl.ca.pem", "")
    if text:
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem.certificates(text, "ssl.ca.pem")}
    if not location or location == "probe":
        # The CAs that the operating system trusts, and in Java those that Java trusts.
        return {}
    if Path(location).is_dir():
        found = "\n".join(pem.read("ssl.ca.location", str(file)) for file in sorted(Path(location).glob("*.[cp]*")))
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem.certificates(found, "ssl.ca.location")}
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": location}


def _keystore(given: Mapping[str, str]) -> dict[str, str]:
    if location := given.get("ssl.keystore.location"):
        return _pkcs12(location, given.get("ssl.keystore.password", ""))
    certificate, key = certificate_of(given), given.get("ssl.key.pem", "")
    name = "ssl.key.pem"
    if location := given.get("ssl.key.location"):
        key, name = pem.read("ssl.key.location", location), "ssl.key.location"
    if bool(certificate) != bool(key):
        there, missing = ("certificate", "ssl.key.location") if certificate else ("key", "ssl.certificate.location")
        raise ConfigurationError(
            f"This client has a {there} for Kafka, but {setting(missing)} is not set.", "Set both or neither."
        )
    if not key:
        return {}
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate,
        "ssl.keystore.key": pem.pkcs8(key, given.get("ssl.key.password", ""), name),
    }


def _pkcs12(location: str, password: str) -> dict[str, str]:
    try:
        with Path(location).open("rb") as file:
            start = file.read(len(_JKS))
    except OSError:
        # Whether it must be on this machine, or on Spark's, the clients know.
        start = b""
    if start == _JKS:
        raise ConfigurationError(
            f"{setting('ssl.keystore.location')}: {location} is a JKS key store, which librdkafka can't read.",
            f"Convert it: keytool -importkeystore -srckeystore {location} -destkeystore client.p12 "
            "-deststoretype PKCS12.",
        )
    return {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": location,
        "ssl.keystore.password": password,
    }
