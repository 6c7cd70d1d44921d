"""Records decoded and written in Spark's tasks by Arrow, so that no row passes through the JVM again.

Records come from Spark's Kafka source as always, and what is committed is one Iceberg snapshot as always.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from typing import Any

from pyiceberg.table import Table
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.executors.task import ERROR_CLASS, ERROR_MESSAGE, OBSERVED
from kafka_lake.executors.writing import task as write_task
from kafka_lake.executors.writing.report import Failure, Report, loaded, merged
from kafka_lake.executors.writing.rules import merged_answers
from kafka_lake.executors.writing.spans import Span
from kafka_lake.executors.writing.tables import decode_and_write_tables
from kafka_lake.executors.writing.task import LARGE, REPORT, TOPIC_ID
from kafka_lake.executors.writing.work import Work
from kafka_lake.ingest.decode.decoder import Decoder
from kafka_lake.ingest.decode.target import Target, spark_columns
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.rules.result import Refused, RuleResult
from kafka_lake.ingest.rules.row_rules import RowRules, row_rules
from kafka_lake.ingest.tasks import packed, told
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import TableState, summary_of
from kafka_lake.spark.kept import kept

DECODED_BY_ARROW = "kafka-lake.decoded-by-arrow"
"""In a snapshot's summary: how many of its records Arrow decoded."""
LARGE_RECORDS = "kafka-lake.large-records"
"""In a snapshot's summary: how many of its records were larger than most topics' records ever are, if any was."""

# Spark bounds the bytes of a batch by asking all its columns, record after record, how long they are by now: a third of
# what its side of the way to Arrow costs. Where none is large, their number is bound enough.
_BOUND, _USUAL_BOUND, _NO_BOUND = "spark.sql.execution.arrow.maxBytesPerBatch", "67108864b", "2147483647"
_LONG_BATCH = 100_000
_LARGE_BYTES, _LARGE_HEADER_BYTES, _MANY_HEADERS = 8192, 1024, 8

_SAYS = re.compile(r"[\w.]+(Error|Exception)\b")
_log = logging.getLogger(__name__)
_HEADERS = T.ArrayType(T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())]))
# What Spark's Kafka source gives, but for the topic; to ask for it would be to plan the reading once more.
_RECORD: dict[str, T.DataType] = {
    "key": T.BinaryType(),
    "value": T.BinaryType(),
    "partition": T.IntegerType(),
    "offset": T.LongType(),
    "timestamp": T.TimestampType(),
    "timestampType": T.IntegerType(),
    "headers": _HEADERS,
}


@dataclass(frozen=True)
class ByArrow:
    """What Arrow did of a batch.

    Args:
        files: The data files that it wrote, in no snapshot yet.
        counts: The batch's metrics, as `batch_metrics` and the decoder name them.
        failed: The records that became no row, with the columns of the Kafka source, ``error_class`` and
            ``error_message``; None if there are none.
        failures: What the failed are by class.
        spans: The rows by task and Kafka partition.
        rules: What the table's rules of single rows found. Rows that these refuse are among the failed.
        marks: What the snapshot's summary tells of it.
    """

    files: tuple[Any, ...]
    counts: Mapping[str, Any]
    failed: DataFrame | None
    failures: tuple[Failure, ...]
    spans: tuple[Span, ...]
    rules: tuple[RuleResult, ...]
    marks: Mapping[str, str]

    def delete_files(self, table: Table) -> None:
        """Delete the files, which no snapshot is to have. Never raises: what stays is no part of the table."""
        for each in self.files:
            with suppress(Exception):
                table.io.delete(each.file_path)


def nothing_written() -> ByArrow:
    """Return what is written of no records."""
    counts = dict.fromkeys(("records", "bytes_read", "tombstones", "failed", "untimed"), 0)
    return ByArrow((), counts, failed=None, failures=(), spans=(), rules=(), marks={})


def by_arrow(
    spec: TopicTable,
    spark: Any,
    records: DataFrame,
    decoder: Decoder,
    target: Target,
    state: TableState,
    plan: Plan,
    tasks: int,
    held: ExitStack,
    refused: Refused | None = None,
) -> ByArrow | None:
    """Decode and write a batch.

    Args:
        target: Columns, of which `why_not` had no doubt.
        state: The table; its current columns are written.
        tasks: How many tasks shall write.
        held: Gets what lets Spark forget the failed records.
        refused: Records that become no row although they decode.

    Returns:
        What was written and what failed; None if this Spark can't do it, and everything is left as it was. Files of
        tasks that failed stay behind, as with every writer of Spark's; no snapshot knows them.

    Raises:
        ConfigurationError: If a rule doesn't go with the table's columns.
    """
    if spark.conf.get("spark.sql.session.timeZone") != "UTC":
        return None
    # Other jobs ask some of them, or ask them otherwise: of the staged snapshot.
    asked = spec if plan.kind == "append" else replace(spec, rules=())
    rules = rules_of_rows(asked, decoder, state.table)
    work = work_of(spec, decoder, target=target, table=state.table, plan=plan, rules=rules)
    if refused is not None:
        work = replace(work, refused=refused.by_partition(), reasons=refused.reasons)

    # Dead letters may be of a topic that was there before this one.
    also = [name for name in (TOPIC_ID,) if name in records.columns]

    def write(given: DataFrame, withheld: bool) -> DataFrame:
        mine = replace(work, withheld=withheld)
        return given.coalesce(tasks).mapInArrow(told(write_task.decode_and_write, vars(mine)), returned(also))

    with ExitStack() as attempt:
        done = run_tasks(spark, records, may_withhold(spark, [state], plan), write, held=attempt, also=also)
        if done is None:
            return None
        held.enter_context(attempt.pop_all())
    reports, frames = done
    return outcome(spec, state.table, reports, frames=frames, records=records, rules=rules)


def rules_of_rows(spec: TopicTable, decoder: Decoder, table: Table) -> RowRules:
    """Return the rules of single rows that a table's writers ask; raises as `row_rules`."""
    declared = decoder.fixed is not None
    columns = spark_columns(table.schema().as_struct()) if spec.rules else T.StructType()
    return row_rules(f"Topic {spec.topic}", spec.named_rules, columns, declared)


def run_tasks(
    spark: Any,
    records: DataFrame,
    withhold: bool,
    write: Callable[[DataFrame, bool], DataFrame],
    *,
    held: ExitStack,
    also: Sequence[str] = (),
) -> tuple[list[Report], tuple[DataFrame, ...]] | None:
    """Let tasks of Spark's write records.

    Args:
        withhold: Whether large records are left out first, and read once more by themselves.
        write: Makes the frame of it, by the records as tasks get them, and whether large ones are withheld.
        held: Gets what lets Spark forget what the tasks gave back.
        also: Other columns of the records that tasks get.

    Returns:
        What the tasks did, and the frames of what they gave back, which Spark keeps; None if this Spark can't do it.
    """
    frames = [kept(write(_given(records, withhold, also), withhold), held)]
    with _without_bound(spark) if withhold else nullcontext():
        reports = _reports(frames[0])
    if reports is not None and withhold and any(each.large for each in reports):
        # They were left out, and are read once more by themselves.
        frames.append(kept(write(_given(records.filter(_is_large()), False, also), False), held))
        more = _reports(frames[1])
        # All that it was given is large, and has been counted.
        reports = None if more is None else [*reports, *(replace(each, large=0) for each in more)]
    return None if reports is None else (reports, tuple(frames))


def outcome(
    spec: TopicTable,
    table: Table,
    reports: Sequence[Report],
    frames: Sequence[DataFrame],
    records: DataFrame,
    rules: RowRules,
) -> ByArrow:
    """Return what became of a table's records.

    Args:
        reports: Of the tasks that wrote it.
        frames: What they gave back, with its records alone.
        records: Have the columns of the records.
        rules: Those that the rows were asked.
    """
    done = _merged(reports)
    marks = {DECODED_BY_ARROW: str(done.records - done.failed)}
    if done.large:
        marks[LARGE_RECORDS] = str(done.large)
    counts = {
        "records": done.records,
        "bytes_read": done.bytes_read,
        "tombstones": done.tombstones,
        "failed": done.failed,
        "untimed": done.untimed,
        "oldest_ms": done.oldest_ms,
        "newest_ms": done.newest_ms,
        OBSERVED: done.seen,
    }
    failed = _failed(spec, frames, records) if done.failed else None
    return ByArrow(
        files=_of(table, done.files),
        counts=counts,
        failed=failed,
        failures=done.failures,
        spans=done.spans,
        rules=rules.results(done.asked, done.answers),
        marks=marks,
    )


def returned(also: Sequence[str]) -> T.StructType:
    """Return what tasks give back: records with other columns that they got, what is wrong with them, and reports."""
    rest = {ERROR_CLASS: T.StringType(), ERROR_MESSAGE: T.StringType(), REPORT: T.BinaryType()}
    given = {**_RECORD, LARGE: T.BooleanType(), **dict.fromkeys(also, T.StringType())}
    return T.StructType([T.StructField(*each) for each in {**given, **rest}.items()])


def _failed(spec: TopicTable, frames: Sequence[DataFrame], records: DataFrame) -> DataFrame:
    """Return the records that tasks gave back since they failed, as they were, with what is wrong with them."""
    failed = given_back(spec.topic, frames).filter(F.col(ERROR_CLASS).isNotNull())
    return failed.select(*records.columns, ERROR_CLASS, ERROR_MESSAGE)


def given_back(topic: str, frames: Sequence[DataFrame]) -> DataFrame:
    """Return all records that tasks gave back, as they were; those that failed with what is wrong with them."""
    full = F.when(F.size("headers") > 0, F.col("headers"))
    whole = reduce(DataFrame.union, [frame.filter(F.col(REPORT).isNull()).drop(REPORT) for frame in frames])
    return whole.withColumn("topic", F.lit(topic)).withColumn("headers", full)


def _given(records: DataFrame, withhold: bool, also: Sequence[str] = ()) -> DataFrame:
    """Return records as Arrow's tasks get them; large ones without what makes them large, if that is withheld."""
    # Null lists one after the other cost Spark's Arrow writer the square of their number.
    none = F.array().cast(_HEADERS)
    headers = F.coalesce("headers", none)
    given = {name: F.col(name) for name in _RECORD} | {"headers": headers, LARGE: _is_large()}
    if withhold:
        # Nothing is taken away but where that is said, whatever the condition gives.
        blank = {"key": F.lit(None), "value": F.lit(None), "headers": none}
        given |= {name: F.when(given[LARGE], empty).otherwise(given[name]) for name, empty in blank.items()}
    return records.select(*[column.alias(name) for name, column in given.items()], *also)


def _is_large() -> Column:
    def long(header: Column) -> Column:
        key, value = (F.coalesce(F.length(header[name]), F.lit(0)) for name in ("key", "value"))
        return key + value > _LARGE_HEADER_BYTES

    by_bytes = F.greatest(F.length("key"), F.length("value")) > _LARGE_BYTES
    by_headers = (F.size("headers") > _MANY_HEADERS) | F.exists("headers", long)
    # Never null: what is neither large nor not would be in neither reading.
    return F.coalesce(by_bytes | by_headers, F.lit(False))


def may_withhold(spark: Any, states: Iterable[TableState], plan: Plan) -> bool:
    """Return whether large records may be left out of a batch, and read once more by themselves.

    Args:
        spark: The session; the bound of its batches is put right.
        states: The tables that are written, one of which may be known to get such records.
    """
    bound = spark.conf.get(_BOUND)
    if bound == _NO_BOUND:
        # Left behind in a session that is kept, by a run that was killed in the midst.
        spark.conf.set(_BOUND, _USUAL_BOUND)
    elif bound != _USUAL_BOUND:
        # The users' own stays.
        return False
    heads = (state.table.current_snapshot() for state in states)
    known = any(head is not None and LARGE_RECORDS in summary_of(head) for head in heads)
    # Where many are large, leaving them out would be to read all of them twice.
    return plan.records_at_most >= _LONG_BATCH and not known and plan.record_bytes <= _LARGE_BYTES


@contextmanager
def _without_bound(spark: Any) -> Iterator[None]:
    spark.conf.set(_BOUND, _NO_BOUND)
    try:
        yield
    finally:
        # A server that is gone must not hide what went wrong by that; the next batch sees to it then.
        with suppress(Exception):
            spark.conf.set(_BOUND, _USUAL_BOUND)


def work_of(spec: TopicTable, decoder: Decoder, target: Target, table: Table, plan: Plan, rules: RowRules) -> Work:
    """Return what tasks are told of a table that they write."""
    slim: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "current_snapshot_id": None,
    }
    return Work(
        metadata=table.metadata.model_copy(update=slim).model_dump_json(),
        io=table.io.properties,
        decoding=decoder.work(target, spec.max_record_bytes),
        topic=spec.topic,
        topic_id=plan.after.identity.topic_id,
        metadata_column=spec.metadata_column,
        tests=rules.tests,
    )


def prepare() -> None:
    """Do what is done once in a process, before there is a batch."""
    packed(write_task.decode_and_write)
    packed(decode_and_write_tables)


def _reports(frame: DataFrame) -> list[Report] | None:
    try:
        return [loaded(row[REPORT]) for row in frame.filter(F.col(REPORT).isNotNull()).select(REPORT).collect()]
    except PythonException as error:
        # Packages that its machines lack, or a file that the library can't write: Spark can.
        said = [line for line in str(error).split("JVM stacktrace")[0].splitlines() if _SAYS.match(line)]
        _log.warning("Arrow can't write this batch, so Spark does: %s", said[-1] if said else type(error).__name__)
        return None


def _merged(reports: Sequence[Report]) -> Report:
    asked, answers = merged_answers([(each.asked, each.answers) for each in reports])
    return Report(
        files=tuple(chain.from_iterable(each.files for each in reports)),
        records=sum(each.records for each in reports),
        large=sum(each.large for each in reports),
        tombstones=sum(each.tombstones for each in reports),
        failed=sum(each.failed for each in reports),
        untimed=sum(each.untimed for each in reports),
        failures=merged(chain.from_iterable(each.failures for each in reports)),
        oldest_ms=_pick(min, (each.oldest_ms for each in reports)),
        newest_ms=_pick(max, (each.newest_ms for each in reports)),
        spans=tuple(chain.from_iterable(each.spans for each in reports)),
        asked=asked,
        answers=answers,
        seen=tuple(chain.from_iterable(each.seen for each in reports)),
        bytes_read=sum(each.bytes_read for each in reports),
    )


def _pick(pick: Callable[..., int | None], stamps: Iterable[int | None]) -> int | None:
    return pick((stamp for stamp in stamps if stamp is not None), default=None)


def _of(table: Table, files: Sequence[Any]) -> tuple[Any, ...]:
    for each in files:
        # Pickling drops it.
        each.spec_id = table.metadata.default_spec_id
    return tuple(files)
