"""The certificates that Spark's driver trusts beside those that everybody trusts: a private CA's, of a catalog."""

import hashlib
import os
import warnings
from pathlib import Path

import certifi
from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.utils import CryptographyDeprecationWarning

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.common.home import cache
from kafka_lake.common.spark_catalog import SparkCatalog


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
        certificates = x509.load_pem_x509_certificates(own)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it has no certificates as PEM"
        raise ConfigurationError(
            f"Catalog {catalog.name}: the certificates {catalog.ca_bundle} can't be read: {reason}.",
            f"Correct PYICEBERG_CATALOG__{catalog.name.upper()}__SSL__CABUNDLE.",
        ) from error
    everybodys = Path(certifi.where()).read_bytes()
    store = cache() / "truststores" / f"{hashlib.sha256(own + everybodys).hexdigest()[:16]}.p12"
    if not store.is_file():
        with warnings.catch_warnings():
            # Of serial numbers that a CA of everybody's has had for decades.
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            certificates += x509.load_pem_x509_certificates(everybodys)
        named = [PKCS12Certificate(each, str(number).encode()) for number, each in enumerate(certificates)]
        store.parent.mkdir(parents=True, exist_ok=True)
        partial = store.with_name(f"{store.name}.{os.getpid()}")
        partial.write_bytes(serialize_java_truststore(named, NoEncryption()))
        partial.replace(store)
    # Without a password: there is nothing secret in it.
    return f'"-Djavax.net.ssl.trustStore={store}" -Djavax.net.ssl.trustStoreType=PKCS12'
