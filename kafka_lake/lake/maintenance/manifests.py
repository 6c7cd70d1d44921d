"""Rewrite manifests: a query that begins with many small ones asks the storage for each."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table

from kafka_lake.errors import TableError
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import summary_of

# Beyond that, measuring would take longer than what is measured is worth.
_MOST_FILES = 50_000
_FEW = 30
_TIMES_TOO_MANY = 4
_TARGET_BYTES = 8 << 20


@dataclass(frozen=True)
class Planning:
    """What it takes to plan a query of a whole table.

    Args:
        manifests: How many the newest snapshot has.
        seconds: How long PyIceberg planned; None if that wasn't measured: it can't, or there are too many files.
    """

    manifests: int
    size: int
    seconds: float | None = None

    @property
    def has_too_many(self) -> bool:
        """Return whether fewer manifests would do: each is a request to the storage."""
        return self.manifests > _FEW and self.manifests > _TIMES_TOO_MANY * (1 + self.size // _TARGET_BYTES)


def planning_of(table: Table, timed: bool = True) -> Planning:
    """Measure the planning of a query.

    Args:
        timed: Whether its manifests are read, so that it is known how long that takes; else they are only counted.
    """
    snapshot = table.current_snapshot()
    if snapshot is None:
        return Planning(0, 0)
    began = time.perf_counter()
    manifests = snapshot.manifests(table.io)
    size = sum(each.manifest_length for each in manifests)
    if not timed or int(summary_of(snapshot).get("total-data-files", 0)) > _MOST_FILES:
        return Planning(len(manifests), size)
    try:
        sum(1 for _ in table.scan().plan_files())
    except ValueError:
        # It can't read what is deleted by its values.
        return Planning(len(manifests), size)
    return Planning(len(manifests), size, time.perf_counter() - began)


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
