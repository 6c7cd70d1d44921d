"""The certificates that Java trusts beside those that everybody trusts: of the private CA of a catalog or a network."""

import hashlib
import os
import shlex
import warnings
from pathlib import Path

import certifi
from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.utils import CryptographyDeprecationWarning

from kafka_lake.common.catalog_variables import catalog_variable
from kafka_lake.common.home import cache
from kafka_lake.common.spark_catalog import SparkCatalog
from kafka_lake.errors import ConfigurationError


def trust_options(catalog: SparkCatalog) -> str:
    """Return the JVM's options for trusting a catalog's CA, whose trust store is made if it isn't there.

    Java has one store for all that it connects to. So the certificates that Python's requests trusts are in it too.

    Args:
        catalog: With the path of its CA's certificates.

    Raises:
        ConfigurationError: If that file can't be read, or has no certificates.
    """
    try:
        own = Path(catalog.ca_bundle).read_bytes()
        certificates = _certificates(own)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"Catalog {catalog.name}: the certificates {catalog.ca_bundle} can't be read: {_reason(error)}.",
            f"Correct {catalog_variable(catalog.name, 'ssl.cabundle')}.",
        ) from error
    return _options(own, certificates)


def network_trust_options() -> list[str]:
    """Return the JVM's options for trusting what ``$SSL_CERT_FILE`` has, as pip and uv do; none if it isn't set.

    Raises:
        ConfigurationError: If that file can't be read, or has no certificates.
    """
    if not (file := os.environ.get("SSL_CERT_FILE")):
        return []
    try:
        own = Path(file).read_bytes()
        certificates = _certificates(own)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"The certificates {file} can't be read: {_reason(error)}.", "Correct SSL_CERT_FILE or unset it."
        ) from error
    return shlex.split(_options(own, certificates))


def _reason(error: OSError | ValueError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else "it has no certificates as PEM"


def _certificates(pem: bytes) -> list[x509.Certificate]:
    with warnings.catch_warnings():
        # Of serial numbers that a CA of everybody's has had for decades.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        return x509.load_pem_x509_certificates(pem)


def _options(own: bytes, certificates: list[x509.Certificate]) -> str:
    everybodys = Path(certifi.where()).read_bytes()
    store = cache() / "truststores" / f"{hashlib.sha256(own + everybodys).hexdigest()[:16]}.p12"
    if not store.is_file():
        held = dict.fromkeys([*certificates, *_certificates(everybodys)])
        named = [PKCS12Certificate(each, str(number).encode()) for number, each in enumerate(held)]
        store.parent.mkdir(parents=True, exist_ok=True)
        partial = store.with_name(f"{store.name}.{os.getpid()}")
        partial.write_bytes(serialize_java_truststore(named, NoEncryption()))
        partial.replace(store)
    # Without a password: there is nothing secret in it.
    return f'"-Djavax.net.ssl.trustStore={store}" -Djavax.net.ssl.trustStoreType=PKCS12'
