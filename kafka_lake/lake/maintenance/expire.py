"""Expire: old snapshots go, with the files that none of the others needs, and never the one that tells the position."""

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from pyiceberg.table import Table

from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.losses import keep_losses
from kafka_lake.lake.positions import RESUMED_FROM, ancestors, head_of, summary_of

# A hundred thousand at once are more than a catalog, or a heap, can take: https://github.com/apache/iceberg/issues/13647.
# Each step reads the lists of manifests of all snapshots that stay, so few steps are better than many.
_STEP = 10_000


@dataclass(frozen=True)
class Limits:
    """Which snapshots a table keeps.

    Args:
        older_than_ms: What is younger stays, if it is among the newest ``most``; in milliseconds since 1970.
        keep: So many of the newest stay, whatever their age.
        most: So many are kept at most, whatever their age, but for those that the position needs; None for any number.
    """

    older_than_ms: int
    keep: int
    most: int | None


@dataclass(frozen=True)
class Expirable:
    """Which snapshots of a table may go.

    Args:
        times: Their times, oldest first, in milliseconds since 1970.
        kept: So many of the newest snapshots stay, whatever their times are: clocks of writers differ.
    """

    times: tuple[int, ...]
    kept: int


def expirable(table: Table, limits: Limits) -> Expirable:
    """Return which snapshots of ``main`` may go. Pure.

    The newest one with a position stays, and all after it: what a run resumes from isn't in any compaction's snapshot.
    What a tag or another branch points to stays too.
    """
    history = list(ancestors(table, head_of(table)))
    needed = next((i for i, each in enumerate(history) if summary_of(each).keys() & RESUMED_FROM), len(history) - 1)
    kept = max(needed + 1, limits.keep)
    beyond = len(history) if limits.most is None else max(kept, limits.most)
    old = (i for i, each in enumerate(history) if i >= kept and each.timestamp_ms < limits.older_than_ms)
    going = history[min(next(old, len(history)), beyond) :]
    youngest = min((each.timestamp_ms for each in history[:kept]), default=0)
    # Iceberg keeps as many snapshots of each branch.
    pinned = {
        each.snapshot_id
        for name, ref in table.metadata.refs.items()
        if name != "main"
        for each in islice(ancestors(table, ref.snapshot_id), 1 if ref.snapshot_ref_type == "tag" else kept)
    }
    times = (each.timestamp_ms for each in going if each.snapshot_id not in pinned)
    return Expirable(tuple(sorted(each for each in times if each < youngest)), kept)


def expire(spark: Any, catalog: LakeCatalog, identifier: tuple[str, str], limits: Limits) -> int:
    """Expire what `expirable` names, ten thousand snapshots at a time, by Iceberg's own procedure.

    Args:
        identifier: Namespace and name of the table.

    Returns:
        How many snapshots went.

    Raises:
        Exception: Whatever Spark raises. Steps that were done stay done.
    """
    table = catalog.table(identifier)
    if table is None:
        return 0
    before = {each.snapshot_id for each in table.metadata.snapshots}
    found = expirable(table, limits)
    if found.times:
        keep_losses(table, found.times[-1])
    for first in range(0, len(found.times), _STEP):
        # Iceberg keeps what is as young as that, or younger.
        last = datetime.fromtimestamp((found.times[first : first + _STEP][-1] + 1) / 1000, UTC)
        spark.sql(
            catalog.call(
                "expire_snapshots",
                identifier,
                older_than=f"TIMESTAMP '{last.isoformat(sep=' ', timespec='milliseconds')}'",
                retain_last=str(found.kept),
                stream_results="true",
            )
        ).collect()
    table = catalog.table(identifier)
    # Others have made new ones meanwhile.
    return len(before - {each.snapshot_id for each in table.metadata.snapshots}) if table else 0
