"""The tables of a topic that Arrow can write, written by one job; and what Spark keeps of a commit's records."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.routes.conditions import ROUTE
from kafka_lake.ingest.stage.arrow_tables import Prewritten, TableToWrite, prewritten, write_tables

_LEVEL = StorageLevel.MEMORY_AND_DISK


@dataclass(frozen=True)
class Together:
    """What was written of several tables, by the numbers of their routes.

    Args:
        written: The rows of each table that was written, and got records.
        counts: How many records each route takes.
        left: The records of routes whose tables weren't written, as Spark keeps them.
    """

    written: Mapping[int, Prewritten]
    counts: Mapping[int, int]
    left: DataFrame


def write_together(
    context: Context,
    plan: Plan,
    records: DataFrame,
    tables: Mapping[int, TableToWrite],
    *,
    again: Callable[[int], DataFrame],
    unwanted: Sequence[int],
    forget: ExitStack,
) -> Together | None:
    """Write tables together.

    Args:
        context: Of the run.
        plan: The commit.
        records: With their routes, those of other tables too.
        tables: The tables, by the numbers of their routes.
        again: Gives the records of a route once more, should they have to be written in another way.
        unwanted: Routes of no table.
        forget: Gets what lets Spark forget what it keeps.

    Returns:
        What was written; None if there is nothing to write, or Spark can't do it.
    """
    if not tables:
        return None
    named, nobody = {str(number): table for number, table in tables.items()}, tuple(map(str, unwanted))
    spark = context.connections.spark()
    done = write_tables(spark, records, column=ROUTE, tables=named, plan=plan, unwanted=nobody)
    if done is None:
        return None
    forget.callback(_forgotten, done.frames)
    context.observer.step_done("tables written")
    return Together(
        {int(name): prewritten(by, named[name], partial(again, int(name))) for name, by in done.by_table.items()},
        {int(name): count for name, count in done.counts.items()},
        done.left,
    )


def kept(records: DataFrame, forget: ExitStack) -> DataFrame:
    """Let Spark keep records, in memory and on the disk.

    Args:
        records: The records.
        forget: Gets what lets Spark forget them.
    """
    found = records.persist(_LEVEL)
    forget.callback(_forgotten, [found])
    return found


def _forgotten(frames: Sequence[DataFrame]) -> None:
    for each in frames:
        # A server that is gone has forgotten them.
        with suppress(Exception):
            each.unpersist()
