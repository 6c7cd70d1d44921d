"""Records decoded and written by Arrow in Spark's tasks, so that no row passes through the JVM again.

Records come from Spark's Kafka source. The data files belong to no snapshot until the driver has seen all reports.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any

from pyiceberg.table import Table
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.typedef import IcebergBaseModel
from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.engine.frames import cached
from kafka_lake.engine.task_frames import packed, task_function
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.formats.columns import Target, spark_columns
from kafka_lake.formats.decoder import Decoder
from kafka_lake.formats.rows import none_failed
from kafka_lake.formats.task.batches import ERROR_CLASS, ERROR_MESSAGE, OBSERVED
from kafka_lake.formats.task.batches import loaded as loaded_observed
from kafka_lake.quality.row_rules import RowRules, row_rules
from kafka_lake.quality.task.rules import merged_answers
from kafka_lake.runtime.dead_letter_class import DeadLetterClass, most_frequent_first
from kafka_lake.runtime.decode_options import Batch, Written
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.task.report import Report, loaded, merged
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.frames import tasks_of
from kafka_lake.writers.task import writer as task
from kafka_lake.writers.task.writer import REPORT, TOPIC_ID

DECODED_BY_ARROW = "kafka-lake.decoded-by-arrow"
"""In a snapshot's summary: how many records became rows by Arrow's decoders, without a transform."""

_TIME_ZONE = "spark.sql.session.timeZone"
_MISSING = re.compile(r"^(?:ModuleNotFoundError|ImportError): (.*)$", re.MULTILINE)
_HEADERS = T.ArrayType(T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())]))
# What Spark's Kafka source gives, without the topic. To ask the frame would be to plan the reading once more.
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
    """Stop a run over a table whose files only other writers can write."""
    metadata = table.metadata
    properties, name = metadata.properties, ".".join(table.name())
    if metadata.format_version == 1:
        remedy = f"Upgrade it with Spark SQL: ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '2')."
        raise TableError(f"Table {name} has Iceberg's format version 1, whose rows have no deletes.", remedy)
    if (form := properties.get("write.format.default", "parquet")) != "parquet":
        remedy = "Set the property write.format.default to parquet: files that are there stay as they are."
        raise TableError(f"Table {name} asks for data files in {form}; kafka_lake writes Parquet.", remedy)
    if unknown := [key for key in properties if key.startswith(("write.parquet.bloom-filter-enabled", "encryption."))]:
        remedy = "Take the property away; encrypt files by the object store."
        raise TableError(f"Table {name} has the property {unknown[0]}, which kafka_lake can't write.", remedy)
    fields = metadata.spec().fields
    if gone := [field.name for field in fields if isinstance(field.transform, UnknownTransform | VoidTransform)]:
        remedy = f"Drop it with Spark SQL: ALTER TABLE {name} DROP PARTITION FIELD …."
        raise TableError(f"Table {name}: rows can't be assigned to its partition field {gone[0]}.", remedy)


def nothing_written(records: DataFrame) -> Written:
    """Return what is written of no records."""
    counts = dict.fromkeys(("records", "bytes_read", "tombstones", "failed", "untimed"), 0)
    return Written((), counts, lambda: none_failed(records), spans=(), rules=(), classes=())


def write_records(batch: Batch, held: ExitStack) -> Written:
    """Decode a batch and write its rows.

    Files of tasks that fail stay behind, as with every writer of Spark's; no snapshot has them.
    """
    # Other jobs ask some rules only, or ask them otherwise: of the staged snapshot.
    has_rules = batch.plan.kind == "append"
    rules = rules_of_rows(batch.spec, batch.decoder, batch.state.table, asks=has_rules)
    work = work_of(batch.spec, batch.decoder, batch.target, batch.state.table, plan=batch.plan, rules=rules)
    if batch.refused is not None:
        work |= {"refused": batch.refused.by_partition(), "reasons": batch.refused.reasons}
    if batch.may_stop:
        work |= {"known": batch.spec.except_columns}
    # Dead letters may be of an earlier topic of this name.
    also = [name for name in (TOPIC_ID,) if name in batch.records.columns]
    given = given_to_tasks(batch.records, also).coalesce(tasks_of(batch.plan, batch.spark))
    frame = given.mapInArrow(task_function(task.decode_and_write, work), returned(also))
    frame, reports = run_tasks(batch.spark, frame, held)
    return written(batch.spec, batch.state.table, reports, frame=frame, records=batch.records, rules=rules)


def write_rows(batch: Batch, rows: DataFrame) -> tuple[Any, ...]:
    """Write rows, as a transform made them, and return the data files; raises as `write_records`."""
    work = table_of_work(batch.state.table)
    columns = T.StructType([T.StructField(REPORT, T.BinaryType())])
    frame = rows.coalesce(tasks_of(batch.plan, batch.spark)).mapInArrow(task_function(task.write_rows, work), columns)
    with ExitStack() as held:
        _, reports = run_tasks(batch.spark, frame, held, keep=False)
    return _of_table(batch.state.table, chain.from_iterable(report.files for report in reports))


def rules_of_rows(spec: TopicTable, decoder: Decoder, table: Table, *, asks: bool = True) -> RowRules:
    """Return the rules of single rows that a table's writers check; raises as `row_rules`."""
    declared = decoder.fixed is not None
    columns = spark_columns(table.schema().as_struct()) if spec.rules and asks else T.StructType()
    return row_rules(f"Topic {spec.topic}", spec.named_rules if asks else (), columns, declared)


def run_tasks(spark: Any, frame: DataFrame, held: ExitStack, *, keep: bool = True) -> tuple[DataFrame, list[Report]]:
    """Run the writing tasks; return their rows, which Spark keeps, and their reports."""
    if (zone := spark.conf.get(_TIME_ZONE)) != "UTC":
        raise ConfigurationError(
            f"Spark's session has the time zone {zone}: Arrow would shift times.", f"Leave {_TIME_ZONE} at UTC."
        )
    if keep:
        frame = cached(frame, held)
    try:
        rows = frame.filter(F.col(REPORT).isNotNull()).select(REPORT).collect()
    except PythonException as error:
        if missing := _MISSING.search(str(error)):
            raise ConfigurationError(
                f"Spark's machines lack what tasks need: {missing[1]}.",
                "Install there, in the Python that Spark uses: pyarrow, pyiceberg[pyarrow], duckdb, and the packages "
                "of the topic's format, in the versions of this environment.",
            ) from error
        raise
    return frame, [loaded(row[REPORT]) for row in rows]


def written(
    spec: TopicTable, table: Table, reports: Sequence[Report], frame: DataFrame, records: DataFrame, rules: RowRules
) -> Written:
    """Return what became of a table's records."""
    done = _merged(reports)
    counts = {
        "records": done.records,
        "bytes_read": done.bytes_read,
        "tombstones": done.tombstones,
        "failed": done.failed,
        "untimed": done.untimed,
        "oldest_ms": done.oldest_ms,
        "newest_ms": done.newest_ms,
        OBSERVED: loaded_observed(done.seen, spec.max_columns),
    }

    def with_errors() -> DataFrame:
        if not done.failed:
            return none_failed(records)
        failed = given_back(spec.topic, frame).filter(F.col(ERROR_CLASS).isNotNull())
        return failed.select(*records.columns, ERROR_CLASS, ERROR_MESSAGE)

    return Written(
        files=_of_table(table, done.files),
        counts=counts,
        with_errors=with_errors,
        spans=done.spans,
        rules=rules.results(done.asked, done.answers),
        classes=most_frequent_first(DeadLetterClass(**vars(failure)) for failure in done.failures),
        properties={DECODED_BY_ARROW: str(done.records - done.failed)},
        has_stopped=any(report.stopped for report in reports),
    )


def returned(also: Sequence[str]) -> T.StructType:
    """Return what tasks give back: records with other columns that they got, what is wrong with them, and reports."""
    rest = {ERROR_CLASS: T.StringType(), ERROR_MESSAGE: T.StringType(), REPORT: T.BinaryType()}
    given = {**_RECORD, **dict.fromkeys(also, T.StringType())}
    return T.StructType([T.StructField(*field) for field in {**given, **rest}.items()])


def given_back(topic: str, frame: DataFrame) -> DataFrame:
    """Return all records that tasks gave back, as they were; those that failed with what is wrong with them."""
    records = frame.filter(F.col(REPORT).isNull()).drop(REPORT)
    full = F.when(F.size("headers") > 0, F.col("headers"))
    return records.withColumn("topic", F.lit(topic)).withColumn("headers", full)


def given_to_tasks(records: DataFrame, also: Sequence[str] = ()) -> DataFrame:
    """Return records as tasks get them."""
    # Null lists one after the other cost Spark's Arrow writer the square of their number.
    headers = F.coalesce("headers", F.array().cast(_HEADERS)).alias("headers")
    return records.select(*[headers if name == "headers" else F.col(name) for name in _RECORD], *also)


def work_of(
    spec: TopicTable, decoder: Decoder, target: Target, table: Table, *, plan: Plan, rules: RowRules
) -> dict[str, Any]:
    """Return the fields of the `Work` of tasks that write a table."""
    return {
        **table_of_work(table),
        "decoding": decoder.for_tasks(target, spec.max_record_bytes),
        "topic": spec.topic,
        "topic_id": plan.after.identity.topic_id,
        "metadata_column": spec.metadata_column,
        "tests": rules.tests,
    }


def table_of_work(table: Table) -> dict[str, Any]:
    """Return what tasks must know of a table to write its files."""
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
    """Pack the tasks, which is done once in a process, before there is a batch."""
    for each in (task.decode_and_write, task.decode_and_write_tables):
        packed(each)


def _merged(reports: Sequence[Report]) -> Report:
    asked, answers = merged_answers([(report.asked, report.answers) for report in reports])
    return Report(
        files=tuple(chain.from_iterable(report.files for report in reports)),
        records=sum(report.records for report in reports),
        tombstones=sum(report.tombstones for report in reports),
        failed=sum(report.failed for report in reports),
        untimed=sum(report.untimed for report in reports),
        failures=merged(chain.from_iterable(report.failures for report in reports)),
        oldest_ms=_pick(min, (report.oldest_ms for report in reports)),
        newest_ms=_pick(max, (report.newest_ms for report in reports)),
        spans=tuple(chain.from_iterable(report.spans for report in reports)),
        asked=asked,
        answers=answers,
        seen=tuple(chain.from_iterable(report.seen for report in reports)),
        bytes_read=sum(report.bytes_read for report in reports),
    )


def _pick(pick: Callable[..., int | None], stamps: Iterable[int | None]) -> int | None:
    return pick((stamp for stamp in stamps if stamp is not None), default=None)


def _of_table(table: Table, files: Iterable[Any]) -> tuple[Any, ...]:
    found = tuple(files)
    for file in found:
        # Pickling drops it.
        file.spec_id = table.metadata.default_spec_id
    return found
