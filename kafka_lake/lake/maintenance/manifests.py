"""Rewrite manifests: a query that begins with many small ones asks the storage for each."""

from collections.abc import Callable
from typing import Any

from kafka_lake.common.errors import TableError
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.maintenance.planning import planning_of

_ATTEMPTS = 3
# Of BaseRewriteManifests in Iceberg: somebody else's commit has merged or dropped one that was to be replaced.
_GONE = "could not be found in the latest snapshot"


def rewrite_manifests(spark: Callable[[], Any], catalog: LakeCatalog, identifier: tuple[str, str]) -> None:
    """Put the entries of a table's manifests into fewer ones, by Iceberg's own procedure, if there are too many.

    The first commit after a compaction drops the manifests of the files that were replaced, and one of a hundred merges
    them all. If one comes meanwhile, it is looked anew whether there are still too many.

    Args:
        spark: Gives what runs the procedure, if it is needed
            (https://iceberg.apache.org/docs/latest/spark-procedures/#rewrite_manifests).
        catalog: Where the table is.
        identifier: Namespace and name of the table.

    Raises:
        TableError: If other writers come in the way again and again.
        Exception: Whatever else Spark raises. Rows and manifests are as they were.
    """
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        table = catalog.table(identifier)
        if table is None or not planning_of(table, timed=False).has_too_many:
            return
        try:
            spark().sql(catalog.call("rewrite_manifests", identifier, use_caching="false")).collect()
        except Exception as error:
            if _GONE not in str(error):
                raise
            failure = error
        else:
            return
    raise TableError(
        f"Table {'.'.join(identifier)}: its manifests could not be replaced, since other writers have changed them "
        f"meanwhile, {_ATTEMPTS} times. The rows are as they were.",
        "The next maintenance tries again; to do it now, stop the other writers and run `kafka-lake maintain`.",
    ) from failure
