"""Several tables written by Arrow in one job: each record to the table of its route, the records read once."""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.errors import ConfigurationError
from kafka_lake.executors.task import ERROR_CLASS
from kafka_lake.executors.writing.tables import TABLE, decode_and_write_tables
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.decode.json.decoder import Json
from kafka_lake.ingest.decode.target import Target
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.rules.row_rules import RowRules
from kafka_lake.ingest.stage.arrow_doubts import why_not
from kafka_lake.ingest.stage.arrow_writer import (
    ByArrow,
    given_back,
    may_withhold,
    outcome,
    returned,
    rules_of_rows,
    run_tasks,
    work_of,
)
from kafka_lake.ingest.stage.schema_plan import plan_schema
from kafka_lake.ingest.stage.spark_writer import tasks_of
from kafka_lake.ingest.tasks import told
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import TableState

_TASKS_FOR_EACH_TABLE = 2
_ORDER = (TABLE, "partition", "offset")


@dataclass(frozen=True)
class TableToWrite:
    """A table, and what its records are decoded into.

    Args:
        state: The table; its current columns are written.
        rules: Its rules of single rows.
    """

    spec: TopicTable
    decoder: Json
    target: Target
    state: TableState
    rules: RowRules


@dataclass(frozen=True)
class Prewritten:
    """What was written for a table before it was staged.

    Args:
        target: The columns that were decoded into.
        layout: Schema, partition spec and properties of the table as it was written.
        again: Gives the records once more, should they have to be written in another way.
        taken: Has something in it once the files have been given to a snapshot.
    """

    by: ByArrow
    target: Target
    layout: object
    again: Callable[[], DataFrame]
    table: Table
    taken: list[str] = field(default_factory=list, compare=False)

    def fits(self, target: Target, state: TableState) -> bool:
        """Return whether this is what would be written for a table as it is now."""
        return self.target == target and self.layout == _layout(state)

    def take(self) -> ByArrow:
        """Return what Arrow did, whose files are those of a snapshot to be from now on."""
        self.taken.append("by a stage")
        return self.by

    def discard(self) -> None:
        """Delete the files if no snapshot was to have them. Never raises: what stays is no part of the table."""
        if not self.taken:
            self.by.delete_files(self.table)


@dataclass(frozen=True)
class WrittenTables:
    """What was written for several tables.

    Args:
        by_table: What Arrow did, for each table that got records.
        counts: How many records each table gets, written or not.
        left: The records of tables that weren't written, lazy.
    """

    by_table: Mapping[str, ByArrow]
    counts: Mapping[str, int]
    left: DataFrame


def table_to_write(context: Context, state: TableState | None, plan: Plan) -> TableToWrite | None:
    """Return what is written of a table together with others; None if it goes its own way.

    Args:
        context: Of the run, with the table's settings.
        state: The table; None if there is none yet.
    """
    spec = context.spec
    # Of other formats, a decoder may ask a registry, which a table without records needn't reach.
    if state is None or state.head is None or spec.format != "json" or spec.write != "append":
        return None
    if plan.kind != "append" or plan.deletes:
        return None
    decoder = context.decoding.decoder(spec, context.connections, state)
    if not isinstance(decoder, Json):
        return None
    want = plan_schema(spec, decoder, state)
    if want.refused or want.renamed or why_not(spec, decoder, target=want.target, state=state):
        return None
    try:
        return TableToWrite(spec, decoder, want.target, state, rules=rules_of_rows(spec, decoder, state.table))
    except ConfigurationError:
        # It is refused alone, and the others are written.
        return None


def write_tables(
    spark: Any,
    records: DataFrame,
    column: str,
    tables: Mapping[str, TableToWrite],
    plan: Plan,
    *,
    held: ExitStack,
    unwanted: Collection[str] = (),
) -> WrittenTables | None:
    """Decode and write the records of several tables.

    A task sorts its records by table, and writes one table after the other. Two tasks may both write all tables. More
    of them share the tables among themselves. So there are never more files than twice the tables, or the tables and
    the tasks together, but for what is beyond the size of a file.

    Args:
        records: What `read` gave, and each record's table; records of tables that aren't written are given back.
        column: The name of the column that has the table.
        tables: Those that are written, by what that column has.
        held: Gets what lets Spark forget the records that failed, and those that weren't written.
        unwanted: What that column has for records that no table gets; they are counted.

    Returns:
        What was written; None if this Spark can't do it, and everything is left as it was.
    """
    if spark.conf.get("spark.sql.session.timeZone") != "UTC":
        return None
    works = {
        name: work_of(each.spec, each.decoder, each.target, each.state.table, plan=plan, rules=each.rules)
        for name, each in tables.items()
    }
    tasks = tasks_of(plan, spark)

    def write(given: DataFrame, withheld: bool) -> DataFrame:
        mine = {name: vars(replace(work, withheld=withheld)) for name, work in works.items()}
        # By ranges, each task beyond the first parts one table in two at the most, however many records which has.
        few = tasks <= _TASKS_FOR_EACH_TABLE
        spread = given.coalesce(tasks) if few else given.repartitionByRange(tasks, *_ORDER)
        task = told(decode_and_write_tables, {"works": mine, "unwanted": tuple(unwanted), "withheld": withheld})
        return spread.sortWithinPartitions(*_ORDER).mapInArrow(task, returned([TABLE]))

    withhold = may_withhold(spark, (each.state for each in tables.values()), plan)
    done = run_tasks(spark, records.withColumnRenamed(column, TABLE), withhold, write, held=held, also=[TABLE])
    if done is None:
        return None
    reports, frames = done
    counts = dict.fromkeys((str(each.table) for each in reports), 0)
    for each in reports:
        counts[str(each.table)] += each.records
    topic = next(iter(tables.values())).spec.topic
    left = given_back(topic, frames).filter(F.col(ERROR_CLASS).isNull()).withColumnRenamed(TABLE, column)
    like = records.drop(column)
    by_table = {
        name: outcome(
            table.spec,
            table.state.table,
            [each for each in reports if each.table == name],
            frames=[frame.filter(F.col(TABLE) == name) for frame in frames],
            records=like,
            rules=table.rules,
        )
        for name, table in tables.items()
        if name in counts
    }
    return WrittenTables(by_table, counts, left.select(*records.columns))


def prewritten(by: ByArrow, table: TableToWrite, again: Callable[[], DataFrame]) -> Prewritten:
    """Return what was written for a table, as its stage takes it."""
    return Prewritten(by, table.target, _layout(table.state), again, table=table.state.table)


def _layout(state: TableState) -> object:
    metadata = state.table.metadata
    current = metadata.current_schema_id, metadata.default_spec_id, metadata.default_sort_order_id
    return *current, state.head, metadata.properties
