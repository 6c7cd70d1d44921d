"""A catalog's environment variables, and its settings for Spark. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SparkCatalog:
    """A catalog's settings for Spark.

    Args:
        conf: Spark settings, with secrets.
        needed_classes: Java classes beside Iceberg's, each with its artifact.
        ca_bundle: PEM file with the certificates of the catalog's server; empty for public ones.
    """

    name: str
    conf: Mapping[str, str] = field(repr=False)
    needed_classes: Mapping[str, str]
    ca_bundle: str = ""


def catalog_variable(catalog: str, name: str = "") -> str:
    """Return PyIceberg's variable of a catalog's property; without a name, the prefix of all variables.

    >>> catalog_variable("my-lake", "s3.access-key-id"), catalog_variable("lake")
    ('PYICEBERG_CATALOG__MY_LAKE__S3__ACCESS_KEY_ID', 'PYICEBERG_CATALOG__LAKE__')
    """
    parts = (part.upper().replace(".", "__").replace("-", "_") for part in (catalog, name))
    return "__".join(["PYICEBERG_CATALOG", *parts])
