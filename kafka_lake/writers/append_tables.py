"""Append to several tables in one job: the records are read once, and each is written to the table of its route."""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.catalog.positions import TableState
from kafka_lake.engine.interop import task_function
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.formats.base import format_named
from kafka_lake.formats.columns import Target
from kafka_lake.formats.decoder import Decoder
from kafka_lake.formats.task.batches import ERROR_CLASS
from kafka_lake.quality.row_rules import RowRules
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.decoding import Written
from kafka_lake.runtime.plan import Plan
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.append import (
    check_writable,
    returned_records,
    rules_of_rows,
    run_tasks,
    task_input,
    task_output,
    work_of,
    written,
)
from kafka_lake.writers.frames import tasks_of
from kafka_lake.writers.schema_changes import plan_schema
from kafka_lake.writers.task.writer import TABLE, decode_and_write_tables

_TASKS_FOR_EACH_TABLE = 2
_ORDER = (TABLE, "partition", "offset")


@dataclass(frozen=True)
class TableToWrite:
    """A table to write; ``target`` are the columns to decode into, ``rules`` those of single rows."""

    spec: TopicTable
    decoder: Decoder
    target: Target
    state: TableState
    rules: RowRules


@dataclass
class Prewritten:
    """Data files that were written for a table before it is staged.

    Args:
        files: None once a stage owns them.
        layout: Schema, partition spec and properties of the table when it was written.
        again: Returns the records, if they must be written again.
    """

    files: Written | None
    target: Target
    layout: object
    again: Callable[[], DataFrame]
    table: Table

    def fits(self, target: Target, state: TableState) -> bool:
        """Return whether the files are here, and would be the same for the table as it is now."""
        return self.files is not None and self.target == target and self.layout == _layout(state)

    def take(self) -> Written | None:
        """Move the files to the caller, who deletes them or puts them into a snapshot."""
        files, self.files = self.files, None
        return files

    def discard(self) -> None:
        """Delete the files unless they were taken. Never raises: files that stay behind are in no snapshot."""
        if (files := self.take()) is not None:
            files.delete_files(self.table)


@dataclass(frozen=True)
class WrittenTables:
    """Result of writing several tables.

    Args:
        by_table: Files of each table that got records.
        counts: Number of records of each table, written or not.
        left: Records of tables that weren't written, lazy.
    """

    by_table: Mapping[str, Written]
    counts: Mapping[str, int]
    left: DataFrame


def table_to_write(context: Context, state: TableState | None, plan: Plan) -> TableToWrite | None:
    """Return a table that can be written together with others; None if it must be written alone."""
    spec = context.spec
    # Decoders of other formats may call a registry; a table without records shouldn't.
    if state is None or state.head is None or spec.is_keyed:
        return None
    if not format_named(spec.format).is_json or spec.key_format is not None:
        return None
    if not plan.appends or plan.deletes or spec.transform is not None:
        return None
    decoder = context.decoding.decoder(spec, context.connections, state)
    want = plan_schema(spec, decoder, state)
    if want.refused or want.renamed:
        return None
    try:
        check_writable(state.table)
        return TableToWrite(spec, decoder, want.target, state, rules=rules_of_rows(spec, decoder, state.table))
    except (ConfigurationError, TableError):
        # Writing it alone raises the error; the other tables are written.
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
) -> WrittenTables:
    """Decode and write the records of several tables; raises as `write_records`.

    A task sorts its records by table, and writes one table after the other. One or two tasks write all tables; more
    tasks divide the tables among themselves. So there are about as many files as tables and tasks together.
    """
    works = {
        name: work_of(table.spec, table.decoder, table.target, table.state.table, plan=plan, rules=table.rules)
        for name, table in tables.items()
    }
    tasks, columns = tasks_of(plan, spark), task_input(records.withColumnRenamed(column, TABLE), [TABLE])
    # A range partitioning divides at most one table for each task, whatever the tables' sizes are.
    few = tasks <= _TASKS_FOR_EACH_TABLE
    spread = columns.coalesce(tasks) if few else columns.repartitionByRange(tasks, *_ORDER)
    task = task_function(decode_and_write_tables, {"works": works, "unwanted": tuple(unwanted)})
    frame = spread.sortWithinPartitions(*_ORDER).mapInArrow(task, task_output([TABLE]))
    frame, reports = run_tasks(spark, frame, held)
    counts = dict.fromkeys((str(report.table) for report in reports), 0)
    for report in reports:
        counts[str(report.table)] += report.records
    topic = next(iter(tables.values())).spec.topic
    left = returned_records(topic, frame).filter(F.col(ERROR_CLASS).isNull()).withColumnRenamed(TABLE, column)
    by_table = {
        name: written(
            table.spec,
            table.state.table,
            [report for report in reports if report.table == name],
            frame=frame.filter(F.col(TABLE) == name),
            records=records.drop(column),
            rules=table.rules,
        )
        for name, table in tables.items()
        if name in counts
    }
    return WrittenTables(by_table, counts, left.select(*records.columns))


def prewritten(files: Written, table: TableToWrite, again: Callable[[], DataFrame]) -> Prewritten:
    """Return the files of a table for its stage."""
    return Prewritten(files, table.target, _layout(table.state), again, table=table.state.table)


def _layout(state: TableState) -> object:
    metadata = state.table.metadata
    current = metadata.current_schema_id, metadata.default_spec_id, metadata.default_sort_order_id
    return *current, state.head, metadata.properties
