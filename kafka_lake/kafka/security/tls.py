"""TLS: librdkafka's CA, certificate and key become the Java client's trust store and key store."""

from collections.abc import Mapping
from pathlib import Path

from kafka_lake.errors import ConfigurationError
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

_PROBE = "probe"
_JKS = b"\xfe\xed\xfe\xed"


def for_java(given: Mapping[str, str], java: Mapping[str, str]) -> dict[str, str]:
    """Return the Java client's TLS properties.

    Args:
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
        told |= truststore(given, "ssl.ca")
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


def with_authorities(given: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return properties whose CA certificates are in a file or a text, not in a folder.

    Java reads no folder. librdkafka gives it to OpenSSL, which looks at no file there but those that are named by the
    hash of a subject. Both get the text of all certificates in it.

    Raises:
        ConfigurationError: If the folder has none, or if there is a location and a text: librdkafka reads the
            location alone, or refuses both (``Mutually exclusive with https.ca.pem``).
    """
    location, text = f"{kind}.location", f"{kind}.pem"
    if location not in given:
        return dict(given)
    if text in given:
        raise ConfigurationError(f"{setting(location)} and {setting(text)} are both set.", "Remove one of them.")
    if not _is_folder(given[location]):
        return dict(given)
    rest = {name: value for name, value in given.items() if name != location}
    return {**rest, text: pem.read_folder(location, given[location])}


def truststore(given: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return the Java client's trust store; empty for the CAs that it trusts without any.

    With ``probe``, as without a location, librdkafka trusts the operating system's CAs (CONFIGURATION.md: ``a list of
    standard paths will be probed and the first one found will be used``), and Java those of its runtime.

    Raises:
        ConfigurationError: As `with_authorities`, and if a text has no certificate.
    """
    found = with_authorities(given, kind)
    if text := found.get(f"{kind}.pem"):
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem.certificates(text, f"{kind}.pem")}
    location = found.get(f"{kind}.location", _PROBE)
    return {} if location == _PROBE else {"ssl.truststore.type": "PEM", "ssl.truststore.location": location}


def _is_folder(location: str) -> bool:
    try:
        return Path(location).is_dir()
    except OSError:
        # Whether it must be on this machine, or on Spark's, the clients know.
        return False


def _keystore(given: Mapping[str, str]) -> dict[str, str]:
    for one, other in (("ssl.certificate.location", "ssl.certificate.pem"), ("ssl.key.location", "ssl.key.pem")):
        if one in given and other in given:
            # librdkafka reads both, and then has the text's; which one is meant nobody knows.
            raise ConfigurationError(f"{setting(one)} and {setting(other)} are both set.", "Remove one of them.")
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
