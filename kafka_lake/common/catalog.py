"""A catalog's environment variables, and what Spark has to know of a catalog. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SparkCatalog:
    """A catalog as Spark knows it.

    Args:
        name: Its name, in Spark too.
        conf: Spark settings that make it known there; secrets may be among them.
        needed_classes: Java classes that Spark needs for it beside Iceberg's, each with the artifact that has it.
        ca_bundle: File with the certificates of the catalog's server, as PEM; empty for public ones.
    """

    name: str
    conf: Mapping[str, str] = field(repr=False)
    needed_classes: Mapping[str, str]
    ca_bundle: str = ""


def catalog_variable(catalog: str, name: str = "") -> str:
    """Return the variable of a catalog's property, by PyIceberg's convention; without a name, the prefix of all.

    >>> catalog_variable("my-lake", "s3.access-key-id"), catalog_variable("lake")
    ('PYICEBERG_CATALOG__MY_LAKE__S3__ACCESS_KEY_ID', 'PYICEBERG_CATALOG__LAKE__')
    """
    parts = (part.upper().replace(".", "__").replace("-", "_") for part in (catalog, name))
    return "__".join(["PYICEBERG_CATALOG", *parts])
