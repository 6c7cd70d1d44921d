"""Planning: how long it takes to find out which files a query reads, and of how many manifests that is."""

import time
from dataclasses import dataclass

from pyiceberg.table import Table

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
        size: Their bytes.
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
        table: As it was loaded.
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
