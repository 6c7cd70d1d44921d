"""TLS: librdkafka's CA, certificate and key become the Java client's trust store and key store."""

import re
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.auth.spelling import setting

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

_CA = "It is a name of the Java client: ssl.ca.location takes the CA's certificates as PEM."
HINTS = {
    "ssl.cipher.suites": "Java names cipher suites differently: java.ssl.cipher.suites sets them.",
    "ssl.truststore.location": _CA,
    "ssl.truststore.password": _CA,
    "ssl.truststore.type": _CA,
    "ssl.keystore.type": "It is a name of the Java client: ssl.keystore.location takes PKCS#12 files.",
    "sasl.jaas.config": "It is a name of the Java client: sasl.mechanism, sasl.username and sasl.password replace it.",
}
"""What to use instead of properties that only one of the clients has."""

_PROBE = "probe"
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_KEY = re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----.*?-----END (?:[A-Z]+ )*PRIVATE KEY-----", re.DOTALL)


def for_java(given: Mapping[str, str], java: Mapping[str, str]) -> dict[str, str]:
    """Return the Java client's TLS properties."""
    if given.get("enable.ssl.certificate.verification", "").lower() == "false":
        raise ConfigurationError(
            f"{setting('enable.ssl.certificate.verification')} is false, which the Java client doesn't allow.",
            "Remove it, and set ssl.ca.location to the certificate of the CA that signed the brokers' certificates.",
        )
    translated: dict[str, str] = {}
    if not any(name.startswith("ssl.truststore.") for name in java):
        translated |= truststore(given, "ssl.ca")
    if not any(name.startswith("ssl.keystore.") for name in java):
        translated |= _keystore(given)
    if algorithm := given.get("ssl.endpoint.identification.algorithm"):
        translated["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    return translated


def truststore(given: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return the Java client's trust store; empty for the CAs that its runtime trusts.

    With ``probe``, as without a location, librdkafka trusts the operating system's CAs.
    """
    location, text = given.get(f"{kind}.location", _PROBE), given.get(f"{kind}.pem")
    if location != _PROBE and text:
        _refuse_both(f"{kind}.location", f"{kind}.pem")
    if text:
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _certificates(text, f"{kind}.pem")}
    if location == _PROBE:
        return {}
    if Path(location).is_dir():
        raise ConfigurationError(
            f"{setting(f'{kind}.location')}: {location} is a folder, which Spark's Java client can't read.",
            "Name one PEM file with all certificates: cat FOLDER/*.pem > ca.pem.",
        )
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": location}


def certificate_of(given: Mapping[str, str]) -> str:
    """Return the client's own certificates as PEM; empty if it has none, or only a PKCS#12 file."""
    text, name = _text(given, "ssl.certificate")
    return _certificates(text, name) if text else ""


def _keystore(given: Mapping[str, str]) -> dict[str, str]:
    if location := given.get("ssl.keystore.location"):
        password = given.get("ssl.keystore.password", "")
        return {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": location,
            "ssl.keystore.password": password,
        }
    certificate, (key, name) = certificate_of(given), _text(given, "ssl.key")
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
        "ssl.keystore.key": _pkcs8(key, given.get("ssl.key.password", ""), name),
    }


def _text(given: Mapping[str, str], kind: str) -> tuple[str, str]:
    """Return PEM, and the property that has it or names its file."""
    location, text = f"{kind}.location", f"{kind}.pem"
    if location not in given:
        return given.get(text, ""), text
    if text in given:
        _refuse_both(location, text)
    try:
        return Path(given[location]).read_text(encoding="ascii", errors="replace"), location
    except OSError as error:
        raise ConfigurationError(
            f"{setting(location)}: {given[location]} can't be read: {error.strerror}.",
            "Correct the path, or the file's mode.",
        ) from error


def _refuse_both(one: str, other: str) -> None:
    raise ConfigurationError(f"{setting(one)} and {setting(other)} are both set.", "Remove one of them.")


def _certificates(text: str, name: str) -> str:
    """Return the certificates in a text, without what is between them."""
    if certificates := _CERTIFICATE.findall(text):
        return "\n".join(certificates)
    raise ConfigurationError(
        f"{setting(name)} has no certificate in PEM form.",
        "It must have lines -----BEGIN CERTIFICATE-----. openssl x509 -inform der -in FILE -out FILE.pem converts DER.",
    )


def _pkcs8(text: str, password: str, name: str) -> str:
    """Return a private key in any PEM form as unencrypted PKCS#8, the only form that the Java client takes."""
    match = _KEY.search(text)
    if match is None:
        raise ConfigurationError(
            f"{setting(name)} has no private key in PEM form.", "It must have a line that ends in PRIVATE KEY-----."
        )
    encrypted = "ENCRYPTED" in match[0]
    if encrypted and not password:
        raise ConfigurationError(
            f"{setting(name)} has an encrypted private key.", f"Set {setting('ssl.key.password')} to its password."
        )
    try:
        key = load_pem_private_key(match[0].encode(), password.encode() if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        check = (
            f"Check {setting('ssl.key.password')}." if encrypted else "Check the file: openssl pkey -in FILE -check."
        )
        # The library's message may quote the key.
        raise ConfigurationError(f"{setting(name)} has a private key that can't be read.", check) from error
    if not isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey):
        raise ConfigurationError(
            f"{setting(name)} has a private key of a kind that the Java client can't use.", "Use an RSA or EC key."
        )
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
