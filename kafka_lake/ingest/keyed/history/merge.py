"""Merge: the rows of a history that are new, or that an event has changed, into a branch, as one snapshot."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.ingest.keyed.bounds import Bounds
from kafka_lake.ingest.keyed.history.events import STORED
from kafka_lake.ingest.keyed.history.shape import Shape
from kafka_lake.ingest.keyed.keys import quoted
from kafka_lake.ingest.keyed.merge import run_merge
from kafka_lake.lake.branches import StagingBranch


def is_changed(shape: Shape) -> Column:
    """Return whether the table lacks an event, or has another row of it than `with_intervals` gave."""
    names = tuple(shape.columns.names)
    return F.col(STORED).isNull() | ~shape.compared(names).eqNullSafe(shape.compared(names, STORED))


def merge_events(
    spark: Any,
    branch: StagingBranch,
    changed: DataFrame,
    shape: Shape,
    *,
    within: Bounds,
    summary: Mapping[str, str],
) -> None:
    """Merge events into a branch; `StagingBranch.written` tells whether they went where they should.

    Args:
        changed: Rows in the table's columns, each event once.
        within: Between which values their keys lie.
    """
    run_merge(
        spark,
        changed,
        summary,
        lambda view: statement(branch.write_name, view, changed.columns, shape, within=within),
    )


def statement(table: str, view: str, columns: Sequence[str], shape: Shape, *, within: Bounds) -> str:
    """Return the MERGE. Pure."""
    condition = " AND ".join([shape.same_event("t", "s"), *within.hold_for("t")])
    names = [quoted(name) for name in columns]
    return "\n".join(
        [
            f"MERGE INTO {table} AS t USING {view} AS s ON {condition}",
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in names)}",
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})",
        ]
    )
