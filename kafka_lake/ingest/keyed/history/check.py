"""What the audit of a history asks: do the intervals of each key tile, and is its newest version its row?"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_lake.ingest.decode.rows import DELETED, EVENT, VALID_FROM, VALID_TO
from kafka_lake.ingest.keyed.bounds import Bounds
from kafka_lake.ingest.keyed.history.events import IN_BATCH, STORED
from kafka_lake.ingest.keyed.history.figures import HistoryCheck
from kafka_lake.ingest.keyed.history.intervals import NEWEST
from kafka_lake.ingest.keyed.history.merge import is_changed
from kafka_lake.ingest.keyed.history.shape import Shape
from kafka_lake.ingest.keyed.keys import quoted

_STAGED, _MADE, _NEXT, _ROW = (f"__kafka_lake_{name}" for name in ("staged", "made", "next", "row"))


def counts_of(rows: DataFrame, shape: Shape) -> dict[str, int]:
    """Return the figures of `HistoryBatch`, and how many ``rows`` there are and ``changed`` ones among them.

    Args:
        rows: What `with_intervals` gave.
        shape: Of the history.
    """
    is_new = F.col(STORED).isNull()
    now, before = _is_version(""), _is_version(f"{STORED}.")
    ended, ended_before = F.col(VALID_TO).isNotNull(), F.col(STORED)[VALID_TO].isNotNull()
    figures = {
        "rows": F.count(F.lit(1)),
        "changed": F.count_if(is_changed(shape)),
        "events": F.count_if(is_new),
        "versions": F.count_if(now) - F.count_if(~is_new & before),
        "closed": F.count_if(now & ended) - F.count_if(~is_new & before & ended_before),
    }
    found = rows.agg(*[each.alias(name) for name, each in figures.items()]).collect()[0]
    counts: dict[str, int] = found.asDict()
    return {**counts, "rewritten": counts["changed"] - counts["events"]}


def check_history(
    staged: DataFrame, made: DataFrame, current: DataFrame, shape: Shape, *, count: int, within: Bounds | None
) -> HistoryCheck:
    """Look for a batch's keys in the history as it is staged.

    Args:
        staged: The rows of those keys in the staged history, in its columns.
        made: What `with_intervals` gave.
        current: The rows of the topic's table as it is staged.
        shape: Of the history.
        count: How many rows were made.
        within: Between which values the keys lie; None if that isn't known.
    """
    found = (
        _otherwise(staged, made, count, shape)
        .crossJoin(_untiled(staged, shape))
        .crossJoin(_unlike(made, current, shape, within))
        .collect()[0]
    )
    return HistoryCheck(**{name: value or 0 for name, value in found.asDict().items()})


def _is_version(before: str) -> Column:
    begins, ends = F.col(f"{before}{VALID_FROM}"), F.col(f"{before}{VALID_TO}")
    return ends.isNull() | (begins < ends)


def _otherwise(staged: DataFrame, made: DataFrame, count: int, shape: Shape) -> DataFrame:
    """Count events whose rows aren't those that were computed."""
    names = tuple(shape.columns.names)
    row = F.struct(*[F.col(quoted(name)) for name in names])
    there, wanted = staged.select(row.alias(_STAGED)), made.select(row.alias(_MADE))
    both = wanted.join(there, F.expr(shape.same_event(_MADE, _STAGED)), "full_outer")
    # A row that is there twice counts twice with its one event.
    twice = F.count_if(F.col(_MADE).isNotNull()) - count
    same = shape.compared(names, _MADE).eqNullSafe(shape.compared(names, _STAGED))
    is_other = F.col(_MADE).isNull() | F.col(_STAGED).isNull() | ~same
    return both.agg((F.count_if(is_other) + twice).alias("other"))


def _untiled(staged: DataFrame, shape: Shape) -> DataFrame:
    """Count what is wrong with the intervals of each key.

    Where a version ends, the next one begins, or a delete is; so each one that has ended is followed.
    """
    key = {name: F.expr(each) for name, each in zip(shape.key_names, shape.keys.key(_ROW), strict=True)}
    begins, ends = F.col(VALID_FROM), F.col(VALID_TO)
    keyed = staged.withColumn(_ROW, F.struct(*[F.col(quoted(name)) for name in staged.columns])).withColumns(key)
    runs = keyed.select(*shape.key_names, begins, ends, DELETED, (begins.isNull() | (ends < begins)).alias("backwards"))
    # What counts for no time at all says nothing, but for deletes.
    seen = runs.filter(F.col("backwards") | ends.isNull() | (begins < ends) | F.col(DELETED))
    by = Window.partitionBy(*shape.key_names).orderBy(begins.asc_nulls_first(), ends.asc_nulls_last())
    followed = seen.withColumn(_NEXT, F.lead(F.struct(begins.alias("begins")), 1).over(by))
    is_followed = F.when(ends.isNull(), F.col(_NEXT).isNull()).otherwise(F.col(_NEXT)["begins"].eqNullSafe(ends))
    of_key = followed.groupBy(*shape.key_names).agg(
        F.count_if("backwards").alias("backwards"),
        F.count_if(~F.col(DELETED) & ~F.coalesce(is_followed, F.lit(False))).alias("untiled"),
        F.count_if(ends.isNull()).alias("open"),
    )
    return of_key.agg(
        F.sum("backwards").alias("backwards"),
        F.sum("untiled").alias("untiled"),
        F.count_if(F.col("open") > 1).alias("several"),
    )


def _unlike(made: DataFrame, current: DataFrame, shape: Shape, within: Bounds | None) -> DataFrame:
    """Count keys whose newest event came with the batch, and whose row in the table isn't what it left.

    A newest event that came before may be one that the table doesn't know yet: a run that died published it.
    """
    newest = made.filter(F.col(NEWEST) & F.col(IN_BATCH))
    condition = " AND ".join([shape.keys.same("t", "s"), *(within.hold_for("t") if within else ())])
    row = current.withColumn(_ROW, F.lit(True)).alias("t")
    joined = newest.alias("s").join(row, F.expr(condition), "left")
    is_there = F.col(f"t.{_ROW}").isNotNull()
    kept = F.col(f"s.{EVENT}.kept")

    def told(alias: str) -> Column:
        columns = []
        for name in shape.values:
            value = shape.compared((name,), alias)
            left = F.coalesce(F.array_contains(kept, shape.ids[name]), F.lit(False))
            columns.append(F.when(~left, value).alias(name))
        return F.struct(*columns)

    is_it = F.expr(shape.same_event("s", "t")) & told("s").eqNullSafe(told("t"))
    is_gone = ~is_there | F.col(f"t.{DELETED}") if shape.keys.is_soft else ~is_there
    is_like = F.when(F.col(f"s.{DELETED}"), is_gone).otherwise(is_there & is_it)
    return joined.agg(F.count_if(~F.coalesce(is_like, F.lit(False))).alias("unlike"))
