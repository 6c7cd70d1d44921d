"""Has PyIceberg's catalogs write metadata files by a function of ours."""

from pyiceberg.catalog import Catalog, MetastoreCatalog

from kafka_lake.common.tested_versions import is_tested
from kafka_lake.lake.metadata_writer import write_metadata


def take_over_writing(catalog: Catalog) -> None:
    """Let a catalog of PyIceberg's write by `write_metadata`; others of this process stay as they are.

    Private: ``MetastoreCatalog._write_metadata``, which is replaced on this object; there is no public way to say how
    metadata are written. Without it, or with a version that wasn't tested, PyIceberg writes itself. Tables of format
    versions 1 and 2 are the same then; version 3 is as far as that PyIceberg can write it, and nobody looks whether
    this machine's clock is behind that of an earlier commit.

    Args:
        catalog: Any; those that don't write metadata files themselves are left as they are.
    """
    if isinstance(catalog, MetastoreCatalog) and hasattr(catalog, "_write_metadata") and is_tested("pyiceberg"):
        # Looked up there by PyIceberg at the time of a commit. It is a static method, so no self comes along.
        catalog._write_metadata = write_metadata  # type: ignore[method-assign]
