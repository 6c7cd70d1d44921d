"""A catalog's properties: where they are found, what of them is on this machine, and how PyIceberg takes them.

PyIceberg reads its configuration when `pyiceberg.catalog` is imported, and an error of its parser shows the line, which
may have a password in it. So this package reads it first, and reports errors without their content.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pyiceberg.utils.config import PYICEBERG, PYICEBERG_HOME, PYICEBERG_YML, Config
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from kafka_lake.catalog.backends import (
    BACKENDS,
    FOR_PYTHON,
    FOR_SPARK,
    Backend,
    check_addresses,
    java_properties,
    needed_classes,
    sqlite_address,
)
from kafka_lake.common import environment
from kafka_lake.common.environment import SparkCatalog, catalog_variable
from kafka_lake.common.files import home
from kafka_lake.common.logs import SECRET_NAME
from kafka_lake.errors import ConfigurationError

CA_BUNDLE = "ssl.cabundle"
"""The property that names the certificates by which a catalog's server is trusted: a file, as PEM."""
_FILE = "file://"
_NESTED = ("ssl.", "auth.")
# Java's default; Python has none, and a service account's key needs one.
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_SECRET = re.compile(SECRET_NAME)
_HARMLESS = re.compile(r"(server-uri|endpoint|uri|type|region)$")
_T = TypeVar("_T")


def catalog_name() -> str:
    """Return the catalog's name: ``$KAFKA_LAKE_CATALOG``, or ``lake``."""
    return environment.CATALOG.value()


def check_configuration() -> None:
    """Read PyIceberg's configuration."""
    _without_content(Config)


def properties_from_environment(name: str, given: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the catalog's properties as PyIceberg finds them, or those of the embedded SQLite catalog.

    PyIceberg's own places count: ``PYICEBERG_CATALOG__<NAME>__<PROPERTY>`` and ``.pyiceberg.yaml``
    (https://py.iceberg.apache.org/configuration/).
    """

    def configuration_of(known: str) -> Mapping[str, Any] | None:
        return _without_content(lambda: Config().get_catalog_config(known))

    # In a variable's name PyIceberg takes each underscore for a hyphen.
    configured = configuration_of(name) or configuration_of(name.replace("_", "-"))
    if configured or {"type", "uri"} & set(given):
        return {**_flat(configured or {}), **given}
    database = URL.create("sqlite", database=str(home() / "catalog.db")).render_as_string(hide_password=False)
    return {"type": "sql", "uri": database, "warehouse": f"{_FILE}{home() / 'warehouse'}", **given}


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the nested properties of ``.pyiceberg.yaml`` with dots in their names instead."""
    flat: dict[str, str] = {}
    for key, value in nested.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": str(value)}
    return flat


def python_properties(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return a catalog's properties as PyIceberg takes them: those of TLS and log-in are nested.

    The names within ``auth`` are arguments of Python, which have no hyphens; PyIceberg makes each underscore of a
    variable's name one.

    >>> python_properties({"ssl.cabundle": "/ca.pem", "python.uri": "http://here", "spark.uri": "http://there"})
    {'ssl': {'cabundle': '/ca.pem'}, 'uri': 'http://here'}
    """
    python = {key.removeprefix(FOR_PYTHON): value for key, value in properties.items() if key.startswith(FOR_PYTHON)}
    nested: dict[str, Any] = {}
    for key, value in (dict(properties) | python).items():
        if key.startswith((FOR_SPARK, FOR_PYTHON)):
            continue
        *groups, name = key.split(".") if key.startswith(_NESTED) else [key]
        place = nested
        for group in groups:
            place = place.setdefault(group, {})
        place[name.replace("-", "_") if groups[:1] == ["auth"] else name] = value
    if nested.get("auth", {}).get("type") == "google":
        google = nested["auth"].setdefault("google", {})
        google["scopes"] = google.get("scopes", _GOOGLE_SCOPE).split(",")
    if "s3.signer" in nested:
        # PyArrow signs by itself only.
        nested.setdefault("py-io-impl", "pyiceberg.io.fsspec.FsspecFileIO")
    return nested


def on_this_machine(name: str, kind: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return a catalog's properties with absolute paths: PyIceberg and Spark may run in different folders."""
    result = dict(properties)
    warehouse = result.get("warehouse", "")
    if kind == "sql" and not urlsplit(warehouse).scheme and "DEFAULT_SCHEME" not in result:
        warehouse = result["warehouse"] = f"{_FILE}{Path(warehouse).absolute()}"
    # PyIceberg ends a path at ? and #, and takes file://./w for a relative one; Hadoop does neither.
    if warehouse.startswith(_FILE) and (urlsplit(warehouse).netloc or {"?", "#"} & set(warehouse)):
        raise ConfigurationError(
            f"Catalog {name}: PyIceberg and Spark would resolve the warehouse {warehouse} to different folders.",
            f"Set {catalog_variable(name, 'warehouse')}, or KAFKA_LAKE_HOME, to an absolute path without ? and #.",
        )
    database = _sqlite_file(result.get("uri", "")) if kind == "sql" else ""
    if database:
        absolute = make_url(result["uri"]).set(database=str(Path(database).absolute()))
        result["uri"] = absolute.render_as_string(hide_password=False)
    return result


def _type(name: str, properties: Mapping[str, str]) -> str:
    """Return a catalog's type, which PyIceberg infers from its address if it isn't given; empty for none."""
    if (given := properties.get("type", "").lower()) or "uri" not in properties:
        return given
    # Importing it takes longer than the commands that only show the settings.
    from pyiceberg.catalog import infer_catalog_type

    try:
        inferred = infer_catalog_type(name, dict(properties))
    except ValueError:
        # PyIceberg's message has the address with the password.
        inferred = None
    if inferred is None:
        raise ConfigurationError(
            f"Catalog {name}: its type can't be inferred from its address.",
            f"Set {catalog_variable(name, 'type')} to one of {', '.join(BACKENDS)}.",
        )
    return inferred.value


class CatalogSettings:
    """A catalog's name, type and properties, and how Spark takes them. No catalog is asked.

    Raises:
        ConfigurationError: If the type isn't sql, rest, glue or hive, or if a property is missing or no valid address.
    """

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self.name = name
        # Empty properties count as unset, as environment variables do.
        self.properties = {key: value for key, value in properties.items() if value != ""}
        self.type = _type(name, self.properties)
        if self.type not in BACKENDS:
            raise ConfigurationError(
                f"Catalog {name}: type {self.type or '(none)'} is not one of {', '.join(BACKENDS)}.",
                f"Set {catalog_variable(name, 'type')}.",
            )
        if missing := [key for key in self.backend.required if not self.properties.get(key)]:
            raise ConfigurationError(
                f"Catalog {name} of type {self.type} lacks {', '.join(missing)}.",
                f"Set {catalog_variable(name, missing[0])}.",
            )
        check_addresses(name, self.properties)
        self.properties = on_this_machine(name, self.type, self.properties)

    @property
    def backend(self) -> Backend:
        """Return what its kind of catalog needs and can do."""
        return BACKENDS[self.type]

    def sqlite_address(self) -> str:
        """Return the JDBC address of its SQLite database; empty for other databases."""
        return sqlite_address(self.name, self.properties["uri"]) if self.type == "sql" else ""

    def for_spark(self) -> SparkCatalog:
        """Return this catalog's configuration for Spark; raises `ConfigurationError` as `spark_conf` does."""
        return SparkCatalog(
            self.name, self.spark_conf(), self.needed_classes(), ca_bundle=self.properties.get(CA_BUNDLE, "")
        )

    def needed_classes(self) -> dict[str, str]:
        """Return the Java classes that Spark needs beside Iceberg's, with the jar that has each."""
        return needed_classes(java_properties(self.name, self.type, self.properties))

    def spark_conf(self) -> dict[str, str]:
        """Return the Spark settings of this catalog, which has the same name there.

        Raises:
            ConfigurationError: If a property can't be translated.
        """
        prefix = f"spark.sql.catalog.{self.name}"
        properties = java_properties(self.name, self.type, self.properties)
        conf = {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            # A cached table would hide what other writers did meanwhile.
            f"{prefix}.cache-enabled": "false",
        }
        conf |= {f"{prefix}.{key}": value for key, value in properties.items()}
        return conf


def local_folders(properties: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders of this machine that a catalog needs: its SQLite file's, and its warehouse."""
    if database := _sqlite_file(properties.get("uri", "")):
        yield Path(database).parent
    if (warehouse := properties.get("warehouse", "")).startswith(_FILE):
        yield Path(urlsplit(warehouse).path)


def _sqlite_file(uri: str) -> str:
    """Return the file of an SQLite database; empty if there is none."""
    try:
        file = (make_url(uri).database or "") if uri.startswith("sqlite") else ""
    except (ArgumentError, ValueError):
        return ""
    return "" if file == ":memory:" or file.startswith("file:") else file


def _without_content(read: Callable[[], _T]) -> _T:
    try:
        return read()
    except Exception as error:
        wrong = _explained(error)
    # Outside of the block, so that no log shows PyIceberg's error as its cause.
    raise wrong


def _explained(error: Exception) -> ConfigurationError:
    # PyIceberg looks in these folders, in this order.
    folders = (os.environ.get(PYICEBERG_HOME), Path.home(), Path.cwd())
    files = [Path(folder, PYICEBERG_YML) for folder in folders if folder]
    file = next((file for file in files if file.is_file()), Path(PYICEBERG_YML))
    if mark := getattr(error, "context_mark", None) or getattr(error, "problem_mark", None):
        return ConfigurationError(
            f"{file}, line {mark.line + 1}: PyIceberg can't read this YAML.",
            "PyIceberg's parser supports no {…}, […], tags, anchors and repeated names. Both quotes of a text must "
            "be on one line.",
        )
    prefix = f"{PYICEBERG}catalog"
    catalogs = [name for name in os.environ if name.lower().startswith(prefix)]
    short = [name for name in catalogs if len(name.lower().removeprefix(PYICEBERG).split("__", maxsplit=2)) < 3]
    if isinstance(error, ValueError) and not isinstance(error, UnicodeDecodeError) and short:
        return ConfigurationError(
            f"The environment variable {short[0]} doesn't name a catalog and a property.",
            f"Unset it, and set a variable with both names, such as {prefix.upper()}__LAKE__URI.",
        )
    return ConfigurationError(
        f"{file} can't be read as PyIceberg's configuration ({type(error).__name__}).",
        "The file must be readable UTF-8. Write catalog:, below it the catalog's name, and below the name its "
        "properties.",
    )


def is_secret(name: str, value: str) -> bool:
    """Return whether a catalog's property is secret: by its name, or by a password in its address.

    >>> is_secret("credential", "id:key"), is_secret("uri", "postgresql://me:word@db/lake"), is_secret("uri", "x://db")
    (True, True, False)
    >>> is_secret("s3.secret-access-key", "k"), is_secret("oauth2-server-uri", "https://id/token")
    (True, False)
    """
    if urlsplit(value).password:
        return True
    return bool(_SECRET.search(name.lower())) and not _HARMLESS.search(name.lower())
