"""The tables of a topic that Arrow can write, written by one job."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.routes.conditions import OWN, ROUTE, of_route
from kafka_lake.ingest.routes.found import Found, position_of
from kafka_lake.ingest.routes.share import is_ahead
from kafka_lake.ingest.routes.shared import Side
from kafka_lake.ingest.stage.arrow_tables import Prewritten, TableToWrite, prewritten, table_to_write, write_tables

_WORTH_A_JOB = 2


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


def written_together(
    context: Context,
    plan: Plan,
    records: DataFrame,
    found: Mapping[int, Found],
    *,
    again: Callable[[int], DataFrame],
    forget: ExitStack,
) -> Together | None:
    """Write the tables together that Arrow can write, and that get all of a plan's records that are theirs.

    Args:
        context: Of the run.
        plan: The commit.
        records: With their routes, those of other tables too.
        found: The topic's tables, by the numbers of their routes.
        again: Gives the records of a route once more, should they have to be written in another way.
        forget: Gets what lets Spark forget what it keeps.

    Returns:
        What was written; None if there is nothing to write, or Spark can't do it.
    """
    otherwise = context.spec.otherwise
    tables = {
        number: table
        for number, each in found.items()
        if (number != OWN or otherwise == "table") and (table := _to_write(plan, number, each)) is not None
    }
    unwanted = [OWN] if otherwise == "ignore" else []
    return _write(context, plan, records, tables, again=again, unwanted=unwanted, forget=forget)


def created_together(plan: Plan, left: DataFrame, sides: tuple[Side, ...], forget: ExitStack) -> tuple[Side, ...]:
    """Write the tables together that have been created since the others were.

    Args:
        plan: The commit.
        left: The records of tables that aren't written yet, with their routes, as Spark keeps them.
        sides: The shares of all tables of routes.
        forget: Gets what lets Spark forget what it keeps.

    Returns:
        All shares.
    """
    tables = {
        side.route: table
        for side in sides
        if side.written is None and (table := _to_write(plan, side.route, (side.context, side.found))) is not None
    }
    if len(tables) < _WORTH_A_JOB:
        return sides
    done = _write(
        sides[0].context,
        plan,
        left.filter(F.col(ROUTE).isin(*map(str, tables))),
        tables,
        again=lambda number: of_route(left, number),
        unwanted=[],
        forget=forget,
    )
    if done is None:
        return sides
    return tuple(replace(side, written=done.written.get(side.route, side.written)) for side in sides)


def _to_write(plan: Plan, number: int, found: Found) -> TableToWrite | None:
    """Return what is to be written of a table together with others; None if it goes its own way."""
    context, its = found
    if number != OWN and is_ahead(position_of(found), plan):
        return None
    return table_to_write(context, its.table, plan)


def _write(
    context: Context,
    plan: Plan,
    records: DataFrame,
    tables: Mapping[int, TableToWrite],
    *,
    again: Callable[[int], DataFrame],
    unwanted: Sequence[int],
    forget: ExitStack,
) -> Together | None:
    if not tables:
        return None
    named, nobody = {str(number): table for number, table in tables.items()}, tuple(map(str, unwanted))
    spark = context.connections.spark()
    done = write_tables(spark, records, column=ROUTE, tables=named, plan=plan, held=forget, unwanted=nobody)
    if done is None:
        return None
    context.observer.step_done("tables written")
    written = {int(name): prewritten(by, named[name], partial(again, int(name))) for name, by in done.by_table.items()}
    for each in written.values():
        # A table that failed before it keeps the others from being staged.
        forget.callback(each.discard)
    return Together(written, {int(name): count for name, count in done.counts.items()}, done.left)
