"""Rows of a derived table by the time partitions that they are of."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.errors import AuditFailedError
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import Engine
from kafka_lake.derive.frames import Frames, of_topic
from kafka_lake.derive.plan import DerivePlan, Pinned
from kafka_lake.derive.query import ORIGIN
from kafka_lake.derive.record import REWRITE
from kafka_lake.derive.window import Window
from kafka_lake.lake.author import author_summary
from kafka_lake.lake.catalog import quoted

_MOST_KEYS = 1000
_TIME, _OWNER = "kafka_lake_time", "kafka_lake_owner_"


@dataclass(frozen=True)
class Brought:
    """Of which partitions of the asset rows came."""

    keys: tuple[str, ...] = ()
    more: int = 0
    early: int = 0
    future: int = 0
    timeless: int = 0

    @property
    def outside(self) -> int:
        """Return the rows that are of no partition."""
        return self.early + self.future + self.timeless


def time_type(spec: DerivedTable, columns: T.StructType) -> str:
    """Return the type of the partitions' column; empty if the asset has no partitions.

    Raises:
        ConfigurationError: If the column tells no time.
    """
    cut = spec.time_partitions
    if cut is None:
        return ""
    found = (each.dataType.simpleString() for each in columns if each.name.lower() == cut.column.lower())
    return cut.checked(next(found, None), spec.name)


def brought(spec: DerivedTable, rows: DataFrame, kind: str, *, now: float) -> Brought:
    """Return of which partitions rows are."""
    cut = spec.time_partitions
    if cut is None:
        return Brought()
    first, end = cut.shown(now)
    hours = F.expr(cut.hours(kind)).cast("bigint")
    # All times that are of no partition are one.
    within = F.greatest(F.lit(first - 1), F.least(F.lit(end), hours))
    step = 1 if cut.unit == "hourly" else 24
    start = F.when(within.between(first, end - 1), F.floor(within / step) * step).otherwise(within)
    found = rows.select(F.when(hours.isNotNull(), start).cast("bigint").alias("hours")).groupBy("hours").count()
    counts: dict[int | None, int] = {row["hours"]: row["count"] for row in found.collect()}
    early, future, timeless = (counts.pop(each, 0) for each in (first - 1, end, None))
    newest_first = (cut.key(each) for each in sorted((each for each in counts if each is not None), reverse=True))
    keys = tuple(dict.fromkeys(key for key in newest_first if key is not None))
    return Brought(keys[:_MOST_KEYS], len(keys[_MOST_KEYS:]), early=early, future=future, timeless=timeless)


def warn_of(spec: DerivedTable, found: Brought, warn: Callable[[str], None]) -> None:
    """Tell of rows whose partitions Dagster doesn't show, although somebody would look for them."""
    cut = spec.time_partitions
    if cut is not None and found.future:
        warn(
            f"Table {spec.name}: by {cut.column}, {found.future:,} of the rows that came are in the future. They are "
            "in the table, and Dagster has no partition for them."
        )
    if found.more:
        warn(
            f"Table {spec.name}: rows of {len(found.keys) + found.more:,} partitions came. Dagster shows the newest "
            f"{len(found.keys):,} of these; materialize the others as a backfill, if it shall show them, too."
        )


def audit_window(frames: Frames, spec: DerivedTable, window: Window, whole: DataFrame, *, cut: str) -> None:
    """Make sure that no row of a record, or of a key, has changed its partition: it would be there twice, or be lost.

    That happens where the time comes from a table under ``join``, or from a query that has changed.

    Raises:
        AuditFailedError: If one has.
    """
    at, time = F.col(quoted(ORIGIN)), F.col(quoted(window.partitions.column)).alias(_TIME)
    owners = (
        [at[name].alias(f"{_OWNER}{name}") for name in ("topic_id", "partition", "offset")]
        if spec.write == "append"
        else [F.col(quoted(name)).alias(f"{_OWNER}{number}") for number, name in enumerate(spec.key)]
    )
    there = frames.made()
    within = F.coalesce(F.expr(cut), F.lit(False))
    goes, stays = (there.filter(each).select(*owners, time) for each in (within, ~within))
    comes, others = (whole.filter(each).select(*owners, time) for each in (within, ~within))
    moved = 0
    # A row comes here and goes from another partition, or the other way round. Most often nothing of the kind is there,
    # and then the other partitions needn't be computed.
    came, gone = comes.exceptAll(goes), goes.exceptAll(comes)
    if not (inward := _of_owners(came, stays)).isEmpty():
        moved += _of_owners(stays, inward).exceptAll(_of_owners(others, inward)).count()
    if not gone.isEmpty():
        moved += _of_owners(others, gone).exceptAll(_of_owners(stays, gone)).count()
    if moved:
        what = "records" if spec.write == "append" else "keys"
        raise AuditFailedError(
            f"Table {spec.name}: {moved} rows have changed their partition: by the query as it is now, their {what} "
            "have rows in others. They would be there twice, or be lost.",
            "main is as it was. The time of a row comes from a table under join: or from another query than before, or "
            f"others have changed it. `kafka-lake rebuild {spec.name}` computes all partitions at once.",
        )


def _of_owners(rows: DataFrame, of: DataFrame) -> DataFrame:
    """Return those rows whose record, or key, has rows among others, too."""
    names = [name for name in rows.columns if name != _TIME]
    known = of.select(*[F.col(name).alias(f"{name}_") for name in names]).distinct()
    same = [F.col(name).eqNullSafe(F.col(f"{name}_")) for name in names]
    return rows.join(known, reduce(Column.__and__, same), "left_semi")


def window_summary(
    engine: Engine, spec: DerivedTable, todo: DerivePlan, frames: Frames, *, rows: DataFrame, cut: str
) -> dict[str, str]:
    """Return snapshot properties of partitions that are computed again; warns if upstream rows are missing."""
    there = frames.made().filter(cut)
    expected, before = rows.count(), there.count()
    if expected < before:
        engine.observer.warn(
            f"Table {spec.name}: the query gives {expected} rows where {cut}; {before} were there. If rows of "
            f"{', '.join(spec.sources)} have expired, what was made of them has gone."
        )
    elif expired := [name for name, each in todo.upstream.items() if spec.write == "aggregate" and each.read.expired]:
        engine.observer.warn(
            f"Table {spec.name}: rows of {', '.join(expired)} have expired. What is computed again, where {cut}, is "
            "made of the rows that are left."
        )
    if spec.write != "append" or len(todo.upstream) > 1:
        return {}
    # For tables that are made of this one: at which offsets rows may be others now. If it isn't told, they find out
    # that nobody can tell.
    (upstream,) = todo.upstream.values()
    ranges = _places(rows.select(ORIGIN).unionByName(there.select(ORIGIN)), upstream)
    return author_summary(engine.run_id, REWRITE, ranges) if ranges is not None else {}


def _places(rows: DataFrame, upstream: Pinned) -> list[OffsetRange] | None:
    """Return the offsets between which rows are, of each Kafka partition; None if some are no records of the topic."""
    at = F.col(quoted(ORIGIN))
    known = F.coalesce(F.expr(of_topic(upstream.identity)), F.lit(False)) & at["offset"].isNotNull()
    first, last, every = F.min(at["offset"]), F.max(at["offset"]), F.min(known)
    found = rows.groupBy(at["partition"].alias("p")).agg(first.alias("a"), last.alias("b"), every.alias("known"))
    told = sorted(found.collect(), key=lambda row: (row.p is not None, row.p))
    return [OffsetRange(row.p, row.a, row.b + 1) for row in told] if all(row.known for row in told) else None
