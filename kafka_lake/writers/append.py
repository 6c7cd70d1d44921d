"""Append: Spark's tasks decode records and write Parquet files with Arrow, so that no row passes through the JVM again.

The driver puts the files into a snapshot once it has the reports of all tasks.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from itertools import chain
from typing import Any

from pyiceberg.schema import index_by_id
from pyiceberg.table import Table
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.typedef import IcebergBaseModel
from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.layout import FLOATS
from kafka_lake.engine.frames import cached
from kafka_lake.engine.interop import packed, task_function
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.formats.columns import Target, spark_columns
from kafka_lake.formats.decoder import Decoder, task_columns
from kafka_lake.formats.rows import none_failed
from kafka_lake.formats.table_compatibility import refuse_version_1
from kafka_lake.formats.task.batches import ERROR_CLASS, ERROR_MESSAGE, OBSERVED
from kafka_lake.formats.task.batches import loaded as loaded_observed
from kafka_lake.quality.row_rules import RowRules, row_rules
from kafka_lake.quality.task.rules import merged_answers
from kafka_lake.runtime.decoding import Batch, Written
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.task.report import Report, loaded, merged_classes
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.frames import tasks_of
from kafka_lake.writers.task import writer
from kafka_lake.writers.task.writer import REPORT, TOPIC_ID

DECODED_BY_ARROW = "kafka-lake.decoded-by-arrow"
"""Snapshot property: number of records that tasks decoded and wrote, without a transform."""

_COUNTS = ("records", "bytes_read", "tombstones", "failed", "untimed")
_TIME_ZONE = "spark.sql.session.timeZone"
_MISSING = re.compile(r"^(?:ModuleNotFoundError|ImportError): (.*)$", re.MULTILINE)
_HEADERS = T.ArrayType(T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())]))
# The columns of Spark's Kafka source, without the topic. To read the frame's schema would plan the query once more.
_RECORD: dict[str, T.DataType] = {
    "key": T.BinaryType(),
    "value": T.BinaryType(),
    "partition": T.IntegerType(),
    "offset": T.LongType(),
    "timestamp": T.TimestampType(),
    "timestampType": T.IntegerType(),
    "headers": _HEADERS,
}


def check_writable(table: Table) -> None:
    """Refuse a table whose files kafka_lake can't write."""
    refuse_version_1(table)
    metadata = table.metadata
    properties, name = metadata.properties, ".".join(table.name())
    if (form := properties.get("write.format.default", "parquet")) != "parquet":
        remedy = "Set the property write.format.default to parquet: existing files stay unchanged."
        raise TableError(f"Table {name} asks for data files in {form}; kafka_lake writes Parquet.", remedy)
    if unknown := [key for key in properties if key.startswith(("write.parquet.bloom-filter-enabled", "encryption."))]:
        remedy = "Remove the property; let the object store encrypt files."
        raise TableError(f"Table {name} has the property {unknown[0]}, which kafka_lake can't write.", remedy)
    columns = index_by_id(metadata.schema())
    if wrong := [
        field.name
        for field in metadata.spec().fields
        if isinstance(field.transform, UnknownTransform | VoidTransform)
        or isinstance(columns[field.source_id].field_type, FLOATS)
    ]:
        remedy = f"Drop it with Spark SQL: ALTER TABLE {name} DROP PARTITION FIELD …."
        raise TableError(f"Table {name}: rows can't be assigned to its partition field {wrong[0]}.", remedy)


def nothing_written(records: DataFrame) -> Written:
    """Return the result of writing no records."""
    counts = dict.fromkeys(_COUNTS, 0)
    return Written((), counts, lambda: none_failed(records), spans=(), rules=(), classes=())


def write_records(batch: Batch, held: ExitStack) -> Written:
    """Decode a batch and write its rows.

    Files of failed tasks stay behind, as with Spark's own writers; they are in no snapshot.
    """
    # Other jobs evaluate fewer rules, on the staged snapshot.
    has_rules = batch.plan.appends
    rules = rules_of_rows(batch.spec, batch.decoder, batch.state.table, has_rules=has_rules)
    work = work_of(batch.spec, batch.decoder, batch.target, batch.state.table, plan=batch.plan, rules=rules)
    if batch.refused is not None:
        work |= {"refused": batch.refused.by_partition(), "reasons": batch.refused.reasons}
    if batch.may_stop:
        work |= {"stops": True}
    # Dead letters may be of an earlier topic of this name.
    also = [name for name in (TOPIC_ID,) if name in batch.records.columns]
    records = task_input(batch.records, also).coalesce(tasks_of(batch.plan, batch.spark))
    frame = records.mapInArrow(task_function(writer.decode_and_write, work), task_output(also))
    frame, reports = run_tasks(batch.spark, frame, held)
    return written(batch.spec, batch.state.table, reports, frame=frame, records=batch.records, rules=rules)


def write_rows(batch: Batch, rows: DataFrame) -> tuple[Any, ...]:
    """Write the rows of a transform, and return the data files; raises as `write_records`."""
    work = table_of_work(batch.state.table)
    columns = T.StructType([T.StructField(REPORT, T.BinaryType())])
    frame = rows.coalesce(tasks_of(batch.plan, batch.spark)).mapInArrow(task_function(writer.write_rows, work), columns)
    with ExitStack() as held:
        _, reports = run_tasks(batch.spark, frame, held, keep=False)
    return _of_table(batch.state.table, chain.from_iterable(report.files for report in reports))


def rules_of_rows(spec: TopicTable, decoder: Decoder, table: Table, *, has_rules: bool = True) -> RowRules:
    """Return the rules of single rows that tasks check; raises as `row_rules`."""
    declared = decoder.fixed is not None
    columns = spark_columns(table.schema().as_struct()) if spec.rules and has_rules else T.StructType()
    return row_rules(f"Topic {spec.topic}", spec.named_rules if has_rules else (), columns, declared)


def run_tasks(spark: Any, frame: DataFrame, held: ExitStack, *, keep: bool = True) -> tuple[DataFrame, list[Report]]:
    """Run the writing tasks; return their rows, which Spark caches, and their reports."""
    if (zone := spark.conf.get(_TIME_ZONE)) != "UTC":
        raise ConfigurationError(
            f"Spark's session has the time zone {zone}: Arrow would shift times.", f"Set {_TIME_ZONE} to UTC."
        )
    if keep:
        frame = cached(frame, held)
    try:
        rows = frame.filter(F.col(REPORT).isNotNull()).select(REPORT).collect()
    except PythonException as error:
        if missing := _MISSING.search(str(error)):
            raise ConfigurationError(
                f"Spark's workers lack a package that tasks need: {missing[1]}.",
                "Install in the Python of Spark's workers: pyarrow, pyiceberg[pyarrow], duckdb, and the packages of "
                "the topic's format, in the versions of this environment.",
            ) from error
        raise
    return frame, [loaded(row[REPORT]) for row in rows]


def written(
    spec: TopicTable, table: Table, reports: Sequence[Report], frame: DataFrame, records: DataFrame, rules: RowRules
) -> Written:
    """Return the result of writing a table, from the reports of its tasks."""
    report = _merged(reports)
    counts = {name: getattr(report, name) for name in (*_COUNTS, "oldest_ms", "newest_ms")}
    counts[OBSERVED] = loaded_observed(report.seen, spec.max_columns)

    def with_errors() -> DataFrame:
        if not report.failed:
            return none_failed(records)
        failed = returned_records(spec.topic, frame).filter(F.col(ERROR_CLASS).isNotNull())
        return failed.select(*records.columns, ERROR_CLASS, ERROR_MESSAGE)

    return Written(
        files=_of_table(table, report.files),
        counts=counts,
        with_errors=with_errors,
        spans=report.spans,
        rules=rules.results(report.asked, report.answers),
        classes=report.classes,
        properties={DECODED_BY_ARROW: str(report.records - report.failed)},
        has_stopped=any(part.stopped for part in reports),
    )


def task_output(also: Sequence[str]) -> T.StructType:
    """Return the columns that tasks return: records, their errors, and a report in the last row."""
    errors = {ERROR_CLASS: T.StringType(), ERROR_MESSAGE: T.StringType(), REPORT: T.BinaryType()}
    columns = {**_RECORD, **dict.fromkeys(also, T.StringType()), **errors}
    return T.StructType([T.StructField(*column) for column in columns.items()])


def returned_records(topic: str, frame: DataFrame) -> DataFrame:
    """Return the records that tasks returned, with error class and message if they failed."""
    records = frame.filter(F.col(REPORT).isNull()).drop(REPORT)
    full = F.when(F.size("headers") > 0, F.col("headers"))
    return records.withColumn("topic", F.lit(topic)).withColumn("headers", full)


def task_input(records: DataFrame, also: Sequence[str] = ()) -> DataFrame:
    """Return the columns of records that tasks need."""
    return records.select(*task_columns([*_RECORD, *also]))


def work_of(
    spec: TopicTable, decoder: Decoder, target: Target, table: Table, *, plan: Plan, rules: RowRules
) -> dict[str, Any]:
    """Return the fields of the `Work` of tasks that write a table."""
    return {
        **table_of_work(table),
        "decoding": decoder.for_tasks(target, spec.max_record_bytes),
        "topic": spec.topic,
        "topic_id": plan.after.identity.topic_id,
        "tests": rules.tests,
    }


def table_of_work(table: Table) -> dict[str, Any]:
    """Return the fields of `Work` by which tasks write files of a table."""
    check_writable(table)
    slim: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "current_snapshot_id": None,
    }
    slimmed = table.metadata.model_copy(update=slim)
    # PyIceberg refuses to write what it takes for version 3.
    return {"metadata": IcebergBaseModel.model_dump_json(slimmed), "io": table.io.properties}


def prepare() -> None:
    """Pack the task functions before there is a batch; that is done once in a process."""
    for function in (writer.decode_and_write, writer.decode_and_write_tables):
        packed(function)


def _merged(reports: Sequence[Report]) -> Report:
    asked, answers = merged_answers([(report.asked, report.answers) for report in reports])
    values = {part.name: [getattr(report, part.name) for report in reports] for part in fields(Report)}
    totals: dict[str, Any] = {name: sum(values[name]) for name in _COUNTS}
    totals |= {name: tuple(chain.from_iterable(values[name])) for name in ("files", "spans", "seen")}
    stamps = {name: [ms for ms in values[name] if ms is not None] for name in ("oldest_ms", "newest_ms")}
    return Report(
        **totals,
        classes=merged_classes(chain.from_iterable(values["classes"])),
        oldest_ms=min(stamps["oldest_ms"], default=None),
        newest_ms=max(stamps["newest_ms"], default=None),
        asked=asked,
        answers=answers,
    )


def _of_table(table: Table, files: Iterable[Any]) -> tuple[Any, ...]:
    data_files = tuple(files)
    for file in data_files:
        # Pickling drops it.
        file.spec_id = table.metadata.default_spec_id
    return data_files
