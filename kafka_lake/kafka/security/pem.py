"""PEM: reads certificates and private keys, and writes keys as PKCS#8, the only form that the Java client takes."""

import re
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.dsa import DSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.security.settings import setting

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
# The last are those that OpenSSL makes: hashes of subjects, and a number.
_ENDING = re.compile(r"\.(?:pem|crt|cer|cert|[0-9]+)", re.IGNORECASE)
_KEY = re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----.*?-----END (?:[A-Z]+ )*PRIVATE KEY-----", re.DOTALL)


def read(name: str, location: str) -> str:
    """Return the text of a file.

    Args:
        name: The property that names the file.

    Raises:
        ConfigurationError: If it can't be read.
    """
    try:
        return Path(location).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise ConfigurationError(
            f"{setting(name)}: {location} can't be read: {error.strerror}.", "Correct the path, or the file's mode."
        ) from error


def read_folder(name: str, location: str) -> str:
    """Return the certificates in a folder's files, each once, as text.

    Args:
        name: The property that names the folder.

    Raises:
        ConfigurationError: If a file can't be read, or none has a certificate.
    """
    try:
        files = sorted(file for file in Path(location).iterdir() if _ENDING.fullmatch(file.suffix) and file.is_file())
    except OSError as error:
        raise ConfigurationError(
            f"{setting(name)}: {location} can't be read: {error.strerror}.", "Correct the path, or the folder's mode."
        ) from error
    if found := dict.fromkeys(each for file in files for each in _CERTIFICATE.findall(read(name, str(file)))):
        return "\n".join(found)
    raise ConfigurationError(
        f"{setting(name)}: the folder {location} has no certificate in PEM form.",
        "Its files must end in .pem, .crt, .cer, .cert or a number, with lines -----BEGIN CERTIFICATE-----.",
    )


def certificates(text: str, name: str) -> str:
    """Return the certificates in a text, without what is between them.

    Args:
        name: The property that it comes from.

    Raises:
        ConfigurationError: If there is none.
    """
    if found := _CERTIFICATE.findall(text):
        return "\n".join(found)
    raise ConfigurationError(
        f"{setting(name)} has no certificate in PEM form.",
        "It must have lines -----BEGIN CERTIFICATE-----. openssl x509 -inform der -in FILE -out FILE.pem converts DER.",
    )


def pkcs8(text: str, password: str, name: str) -> str:
    """Return a private key as PKCS#8, without encryption.

    Args:
        text: A private key in any PEM form: PKCS#1, SEC1, PKCS#8, encrypted or not; other PEM parts are ignored.
        name: The property that it comes from.

    Raises:
        ConfigurationError: If there is none, its password is wrong, or the Java client can't use its kind.
    """
    found = _KEY.search(text)
    if found is None:
        raise ConfigurationError(
            f"{setting(name)} has no private key in PEM form.", "It must have a line that ends in PRIVATE KEY-----."
        )
    block = found[0]
    encrypted = "ENCRYPTED" in block
    if encrypted and not password:
        raise ConfigurationError(
            f"{setting(name)} has an encrypted private key.", f"Set {setting('ssl.key.password')} to its password."
        )
    try:
        key = load_pem_private_key(block.encode(), password.encode() if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        wrong = (
            f"Check {setting('ssl.key.password')}." if encrypted else "Check the file: openssl pkey -in FILE -check."
        )
        # What the library says may quote the key.
        raise ConfigurationError(f"{setting(name)} has a private key that can't be read.", wrong) from error
    if not isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey | DSAPrivateKey):
        raise ConfigurationError(
            f"{setting(name)} has a private key of a kind that the Java client can't use.", "Use an RSA or EC key."
        )
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
