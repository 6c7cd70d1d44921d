"""The tables of a topic that Arrow can write, written by one job."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame

from kafka_lake.ingest.table_state import Tables, tables
from kafka_lake.routing.conditions import ROUTE, UNMATCHED
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.writers.append_tables import Prewritten, prewritten, table_to_write, write_tables

Found = tuple[Context, Tables]
"""What a run works with for a table, and the table itself."""


@dataclass(frozen=True)
class Together:
    """What was written of several tables, by the numbers of their routes.

    Args:
        written: The rows of each table that was written, and got records.
        counts: How many records each route takes.
        tables: The numbers of the tables that were to be written.
        left: The records of routes whose tables weren't written, as Spark keeps them.
    """

    written: Mapping[int, Prewritten]
    counts: Mapping[int, int]
    tables: frozenset[int]
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
    """Write the tables together that Arrow can write, and that get all of a plan's records that are theirs."""
    to_write = {
        str(number): table
        for number, (its, state) in found.items()
        if (table := table_to_write(its, state.table, plan)) is not None
    }
    if not to_write:
        return None
    spark, unwanted = context.connections.spark(), (str(UNMATCHED),) if context.spec.unmatched == "ignore" else ()
    done = write_tables(spark, records, column=ROUTE, tables=to_write, plan=plan, held=forget, unwanted=unwanted)
    context.observer.step_done("tables written")
    written = {
        int(name): prewritten(written, to_write[name], partial(again, int(name)))
        for name, written in done.by_table.items()
    }
    for each in written.values():
        # A table that failed before it keeps the others from being staged.
        forget.callback(each.discard)
    counts = {int(name): count for name, count in done.counts.items()}
    return Together(written, counts, frozenset(map(int, to_write)), done.left)


def created(context: Context, found: Tables, records: DataFrame) -> Tables:
    """Return a table as it is, created if it isn't there, its columns are declared and Arrow can write it."""
    spec = context.spec
    if found.table is not None or spec.format != "json" or spec.write != "append":
        return found
    if context.decoding.decoder(spec, context.connections, None).fixed is None:
        return found
    context.decoding.create_table(spec, context.connections, records, False)
    context.observer.step_done("table created")
    return tables(context)
