"""What Spark must be told of an Iceberg catalog, as plain data: `lake` gives it, `spark` takes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SparkCatalog:
    """A catalog as Spark knows it.

    Args:
        name: Its name, in Spark too.
        conf: Spark settings that make it known there; secrets may be among them.
        needed_classes: Java classes that Spark needs for it beside Iceberg's, and by whose jar each comes.
        ca_bundle: File with the certificates, as PEM, by which the catalog's server is trusted; empty for those that
            everybody trusts.
    """

    name: str
    conf: Mapping[str, str] = field(repr=False)
    needed_classes: Mapping[str, str]
    ca_bundle: str = ""
