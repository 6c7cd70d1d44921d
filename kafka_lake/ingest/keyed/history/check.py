"""What the audit of a history asks: does each change of a batch have its row, and do the intervals of each key tile?"""

from dataclasses import dataclass, field, replace

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import DELETE
from kafka_lake.ingest.decode.rows import DELETED, VALID_FROM, VALID_TO
from kafka_lake.ingest.keyed.check import Merged, NotSent
from kafka_lake.ingest.keyed.history.events import IS_DOUBLE, STORED
from kafka_lake.ingest.keyed.history.merge import is_changed
from kafka_lake.ingest.keyed.history.shape import Shape
from kafka_lake.ingest.keyed.keys import DOES, KEPT, quoted
from kafka_lake.ingest.rules.asked import Verdict

_NEXT, _ROW, _ORDER = (f"__kafka_lake_{name}" for name in ("next", "row", "order"))


@dataclass(frozen=True)
class HistoryCheck:
    """What was found of the rows of a batch's keys, as they are merged.

    Args:
        unlike: Changes of the batch that have no row, or one with other values than theirs.
        double: Changes that the table has several rows of.
        backwards: Rows whose interval has no beginning, or ends before it begins.
        untiled: Versions that the next one of their key, or a delete, doesn't follow at once.
        several: Keys with several versions that are open.
        ended: Keys whose newest change isn't the open version.
    """

    unlike: int = 0
    double: int = 0
    backwards: int = 0
    untiled: int = 0
    several: int = 0
    ended: int = 0

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong."""
        said = {
            "changes have no row with their values": self.unlike,
            "changes have several rows in the table": self.double,
            "rows have an interval that runs backwards": self.backwards,
            "versions overlap the next one, or leave a gap before it": self.untiled,
            "keys have several open versions": self.several,
            "keys have a newest change that isn't their open version": self.ended,
        }
        return tuple(f"{count} {what}" for what, count in said.items() if count)


@dataclass(frozen=True)
class HistoryBatch:
    """What became of a batch of changes in a history.

    Args:
        changes: How many records were changes that could be applied.
        versions: By how many versions there are more than before.
        closed: By how many versions more have an end.
        rewritten: Rows that were there, and that are others now.
        check: What the audit found of the rows of the batch's keys.
        not_sent: The changes that couldn't be applied, in the order of partition and offset.
        verdict: What the topic's rules found of the changes that bring rows.
    """

    changes: int = 0
    deletes: int = 0
    rows: int = 0
    versions: int = 0
    closed: int = 0
    rewritten: int = 0
    merged: Merged = field(default_factory=Merged)
    check: HistoryCheck = field(default_factory=HistoryCheck)
    not_sent: tuple[NotSent, ...] = ()
    verdict: Verdict = field(default_factory=Verdict)

    def of(self, changes: int, deletes: int, verdict: Verdict) -> "HistoryBatch":
        """Return the same for a batch of so many changes."""
        return replace(self, changes=changes, deletes=deletes, verdict=verdict)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong."""
        merged, count = self.merged, self.rows + self.rewritten
        found = [*self.check.problems, *merged.problems(keys=count, brings=count)]
        if (merged.inserted, merged.updated) != (self.rows, self.rewritten):
            found.append(
                f"{self.rows} rows are new and {self.rewritten} changed, but {merged.inserted} were inserted and "
                f"{merged.updated} updated"
            )
        return tuple(found)

    @property
    def facts(self) -> dict[str, int]:
        """Return the figures by the names that a check's page has for them."""
        return {
            "rows_added": self.rows,
            "versions_added": self.versions,
            "versions_closed": self.closed,
            "rows_rewritten": self.rewritten,
        }


def counts_of(rows: DataFrame, shape: Shape) -> dict[str, int]:
    """Return how many rows are ``changed``, how many events the table has ``double``, and figures of `HistoryBatch`."""
    is_new = F.col(STORED).isNull()
    now, before = _is_version(""), _is_version(f"{STORED}.")
    ended, ended_before = F.col(VALID_TO).isNotNull(), F.col(STORED)[VALID_TO].isNotNull()
    figures = {
        "double": F.count_if(IS_DOUBLE),
        "changed": F.count_if(is_changed(shape)),
        "rows": F.count_if(is_new),
        "versions": F.count_if(now) - F.count_if(~is_new & before),
        "closed": F.count_if(now & ended) - F.count_if(~is_new & before & ended_before),
    }
    found = rows.agg(*[each.alias(name) for name, each in figures.items()]).collect()[0]
    counts: dict[str, int] = found.asDict()
    return counts


def check_history(made: DataFrame, changes: DataFrame, shape: Shape, *, double: int) -> HistoryCheck:
    """Look for a batch's changes, and at the versions of their keys, among the rows that the merge leaves.

    Args:
        made: What `with_intervals` gave: all rows of the keys.
        changes: The batch's, as they were decoded.
        double: How many events the table has several rows of.
    """
    rows = made.select(*[F.col(quoted(name)) for name in shape.columns.names])
    found = _unlike(rows, changes, shape).crossJoin(_untiled(rows, shape)).collect()[0]
    return HistoryCheck(double=double, **{name: value or 0 for name, value in found.asDict().items()})


def _is_version(before: str) -> Column:
    begins, ends = F.col(f"{before}{VALID_FROM}"), F.col(f"{before}{VALID_TO}")
    return ends.isNull() | (begins < ends)


def _unlike(rows: DataFrame, changes: DataFrame, shape: Shape) -> DataFrame:
    """Count changes whose row doesn't have their values. Deletes without an order may have no row."""
    there = rows.withColumn(_ROW, F.lit(True)).alias("t")
    joined = changes.alias("s").join(there, F.expr(shape.same_event("s", "t")), "left")
    is_gone, kept = F.col(f"s.{DOES}") == DELETE, F.col(f"s.{KEPT}")
    told = [
        F.array_contains(kept, name) | shape.compared((name,), "s").eqNullSafe(shape.compared((name,), "t"))
        for name in shape.values
    ]
    brought = F.col(f"t.{_ROW}").isNotNull() & ~F.col(f"t.{DELETED}")
    for each in told:
        brought = brought & each
    untold = F.expr(shape.keys.is_untold("s")) if shape.keys.has_order else F.lit(False)
    ended = F.coalesce(F.col(f"t.{DELETED}"), untold)
    return joined.agg(F.count_if(~F.coalesce(F.when(is_gone, ended).otherwise(brought), F.lit(False))).alias("unlike"))


def _untiled(rows: DataFrame, shape: Shape) -> DataFrame:
    """Count what is wrong with the intervals of each key.

    Where a version ends, the next one begins, or a delete is.
    """
    keys = shape.keys
    key = {name: F.expr(each) for name, each in zip(shape.key_names, keys.key(_ROW), strict=True)}
    begins, ends = F.col(VALID_FROM), F.col(VALID_TO)
    is_told = F.expr(" OR ".join(f"{each} IS NOT NULL" for each in keys.told(_ROW)) if keys.has_order else "true")
    row = F.struct(*[F.col(quoted(name)) for name in rows.columns])
    keyed = rows.withColumn(_ROW, row).withColumns({**key, _ORDER: F.expr(keys.order(_ROW))})
    of_key = Window.partitionBy(*shape.key_names)
    is_version = ~F.col(DELETED) & (ends.isNull() | (begins < ends))
    by = of_key.orderBy(is_version.desc(), begins.asc_nulls_first(), ends.asc_nulls_last())
    seen = keyed.select(
        *shape.key_names,
        ends,
        DELETED,
        is_version.alias("is_version"),
        (begins.isNull() | (ends < begins)).alias("backwards"),
        F.when(is_version, F.lead(F.when(is_version, begins)).over(by)).alias(_NEXT),
        F.collect_set(F.when(F.col(DELETED), begins)).over(of_key).alias("deletes"),
        F.max_by(F.struct(DELETED, ends.isNull().alias("is_open")), F.when(is_told, F.col(_ORDER))).over(of_key)
        .alias("newest"),
        F.bool_or(F.col(DELETED) & ~is_told).over(of_key).alias("has_untold"),
    )  # fmt: skip
    following = F.col(_NEXT)
    is_followed = F.when(ends.isNull(), following.isNull()).otherwise(
        following.eqNullSafe(ends) | (F.array_contains("deletes", ends) & F.coalesce(following > ends, F.lit(True)))
    )
    is_ended = ~F.col("newest")[DELETED] & ~F.col("newest")["is_open"] & ~F.col("has_untold")
    counted = seen.groupBy(*shape.key_names).agg(
        F.count_if("backwards").alias("backwards"),
        F.count_if(F.col("is_version") & ~F.coalesce(is_followed, F.lit(False))).alias("untiled"),
        F.count_if(ends.isNull()).alias("open"),
        F.bool_or(is_ended).alias("ended"),
    )
    return counted.agg(
        F.sum("backwards").alias("backwards"),
        F.sum("untiled").alias("untiled"),
        F.count_if(F.col("open") > 1).alias("several"),
        F.count_if("ended").alias("ended"),
    )
