"""A catalog's properties: where they are found, and how PyIceberg takes them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kafka_lake.common import environment
from kafka_lake.common.files import home
from kafka_lake.lake.local_places import embedded_catalog
from kafka_lake.lake.pyiceberg_configuration import catalog_configuration

_NESTED = ("ssl.", "auth.")


def catalog_name() -> str:
    """Return the catalog's name: ``$KAFKA_LAKE_CATALOG``, or ``lake``."""
    return environment.CATALOG.value()


def properties_from_environment(name: str, given: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the catalog's properties as PyIceberg finds them, or those of the embedded SQLite catalog.

    PyIceberg's own places count: ``PYICEBERG_CATALOG__<NAME>__<PROPERTY>`` and ``.pyiceberg.yaml``
    (https://py.iceberg.apache.org/configuration/).

    Args:
        given: Properties that are known already. They win; and where they say what catalog it is, nothing of the
            embedded one goes with them.

    Raises:
        ConfigurationError: If PyIceberg's configuration can't be read, or the embedded catalog can't be in its folder.
    """
    # Of a variable's name PyIceberg takes each underscore for a hyphen.
    found = catalog_configuration(name) or catalog_configuration(name.replace("_", "-"))
    if found or {"type", "uri"} & set(given):
        return {**flat_properties(found or {}), **given}
    return {**embedded_catalog(home()), **given}


def flat_properties(found: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return properties that may be nested, as ``.pyiceberg.yaml`` has them, with dots in their names instead.

    >>> flat_properties({"type": "rest", "ssl": {"cabundle": "/ca.pem"}})
    {'type': 'rest', 'ssl.cabundle': '/ca.pem'}
    """
    flat: dict[str, str] = {}
    for key, value in found.items():
        flat |= (
            flat_properties(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": str(value)}
        )
    return flat


def python_properties(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return a catalog's properties as PyIceberg takes them: TLS and log-in nested, and files that a signer works with.

    PyIceberg's `RestCatalog` reads ``self.properties.get("auth")`` and ``.get("ssl")``, which are mappings: what is
    flat is nothing to it. The names within ``auth`` are arguments of Python, which have no hyphens; of a variable's
    name PyIceberg makes each underscore one.

    >>> python_properties({"ssl.cabundle": "/ca.pem", "ssl.client.cert": "/me.pem"})
    {'ssl': {'cabundle': '/ca.pem', 'client': {'cert': '/me.pem'}}}
    """
    told: dict[str, Any] = {}
    for key, value in properties.items():
        *groups, name = key.split(".") if key.startswith(_NESTED) else [key]
        place = told
        for group in groups:
            place = place.setdefault(group, {})
        place[name.replace("-", "_") if groups[:1] == ["auth"] else name] = value
    if "s3.signer" in told:
        # PyArrow signs by itself only.
        told.setdefault("py-io-impl", "pyiceberg.io.fsspec.FsspecFileIO")
    return told
