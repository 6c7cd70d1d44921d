"""Rows of a derived table by the time partitions that they are of."""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.offsets import joined_ranges
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import Engine
from kafka_lake.derive.frames import Frames, places_of
from kafka_lake.derive.plan import DerivePlan
from kafka_lake.derive.query import ORIGIN
from kafka_lake.derive.upstream import REWRITE
from kafka_lake.errors import AuditFailedError, ConfigurationError
from kafka_lake.lake.author import author_summary
from kafka_lake.lake.catalog import quoted

_MOST_KEYS = 1000
_DAYS_AHEAD = 31
_TIME, _OWNER = "kafka_lake_time", "kafka_lake_owner_"


def time_type(spec: DerivedTable, columns: T.StructType) -> str:
    """Return the type of the partitions' column; empty if the asset has no partitions.

    Raises:
        ConfigurationError: If a row's partition doesn't follow from the column.
    """
    cut = spec.time_partitions
    if cut is None:
        return ""
    kinds = {each.name.lower(): each.dataType.simpleString() for each in columns}
    kind: str = kinds.get(cut.column.lower(), "")
    if not cut.has(kind):
        why = f"has type {kind}" if kind else "is no column of the table"
        raise ConfigurationError(
            f"Table {spec.name}: partitions: {cut.column} {why}.",
            "Name a column of the query's result, of type timestamp, or of type date for daily and monthly.",
        )
    return kind


def partitions_of(spec: DerivedTable, rows: DataFrame, kind: str, *, now: float) -> tuple[str, ...]:
    """Return the keys of the partitions that rows are of, the newest thousand, without those of a distant future."""
    cut = spec.time_partitions
    if cut is None:
        return ()
    step = 1 if cut.unit == "hourly" else 24
    hours = F.floor(F.expr(cut.hours(kind)) / step).cast("bigint") * step
    shown = hours.between(cut.first_hour, int(now // 3600) + 24 * _DAYS_AHEAD)
    found = rows.select(hours.alias("hours")).filter(shown).distinct().orderBy(F.desc("hours"))
    days = 31 if cut.unit == "monthly" else 1
    return tuple(dict.fromkeys(cut.key(each.hours) for each in found.limit(days * _MOST_KEYS).collect()))


def audit_window(frames: Frames, spec: DerivedTable, whole: DataFrame, *, cut: str) -> None:
    """Make sure that no row of a record, or of a key, has changed its partition: it would be there twice, or be lost.

    That happens where the time comes from a table under ``join``, or from a query that has changed.

    Raises:
        AuditFailedError: If one has.
    """
    assert spec.time_partitions is not None, "only tables with partitions are computed by them"
    at, time = F.col(quoted(ORIGIN)), F.col(quoted(spec.time_partitions.column)).alias(_TIME)
    owners = (
        [at[name].alias(f"{_OWNER}{name}") for name in ("topic_id", "partition", "offset")]
        if spec.write == "append"
        else [F.col(quoted(name)).alias(f"{_OWNER}{number}") for number, name in enumerate(spec.key)]
    )
    within = F.coalesce(F.expr(cut), F.lit(False))
    goes, stays = (frames.made().filter(each).select(*owners, time) for each in (within, ~within))
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
    after, before = rows.count(), there.count()
    if after < before or (spec.write == "aggregate" and any(each.read.expired for each in todo.upstream.values())):
        engine.observer.warn(
            f"Table {spec.name}: where {cut}, there were {before} rows, and there are {after} now. If rows of "
            f"{', '.join(spec.sources)} have expired, what was made of them has gone."
        )
    if spec.write != "append":
        return {}
    # Tables that are made of this one derive these offsets again. Without them they refuse to go on.
    (fact,) = todo.upstream.values()
    ranges = places_of(rows.select(ORIGIN).unionByName(there.select(ORIGIN)), fact.identity)
    return author_summary(engine.run_id, REWRITE, joined_ranges(ranges, None)) if ranges is not None else {}
