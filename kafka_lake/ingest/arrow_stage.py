"""The quick way of JSON: decoded and written by Arrow in Spark's tasks; what isn't plain goes on to Spark's functions.

Records come from Spark's Kafka source as always, and what is committed is one Iceberg snapshot as always. Between the
two no record passes through the JVM again, and none that the two ways could disagree on is taken.
"""

import logging
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.schema import sanitize_column_names
from pyiceberg.table import Table
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from kafka_lake.ingest import arrow_worker
from kafka_lake.ingest.arrow_worker import LARGE, REPORT, Report, Span, Work, loaded, unpacking
from kafka_lake.ingest.decode.decoder import Decoder
from kafka_lake.ingest.decode.json import Json, asked_fields, nullable_all
from kafka_lake.ingest.decode.target import Target
from kafka_lake.ingest.plan import Plan
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import TableState, summary_of

# So that a cluster's machines need no kafka_lake.
cloudpickle.register_pickle_by_value(arrow_worker)

DECODED_BY_ARROW = "kafka-lake.decoded-by-arrow"
"""In a snapshot's summary: how many of its records Arrow decoded."""
HANDED_BACK = "kafka-lake.handed-back"
"""In a snapshot's summary: how many records Arrow left to Spark, if they were the most."""
LARGE_RECORDS = "kafka-lake.large-records"
"""In a snapshot's summary: how many of its records were larger than most topics' records ever are, if any was."""

# Spark bounds the bytes of a batch by asking all its columns, record after record, how long they are by now: a third of
# what its side of the way to Arrow costs. Where none is large, their number is bound enough.
_BOUND, _USUAL_BOUND, _NO_BOUND = "spark.sql.execution.arrow.maxBytesPerBatch", "67108864b", "2147483647"
_LONG_BATCH = 100_000
_LARGE_BYTES, _LARGE_HEADER_BYTES, _MANY_HEADERS = 8192, 1024, 8

_SAYS = re.compile(r"[\w.]+(Error|Exception)\b")
_log = logging.getLogger(__name__)
_TYPES = (T.BooleanType, T.IntegerType, T.LongType, T.DoubleType, T.StringType, T.TimestampType)
_SCHEMES = ("", "file", "s3", "s3a", "s3n", "gs", "abfs", "abfss")
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
_RETURNED = T.StructType(
    [T.StructField(*each) for each in {**_RECORD, LARGE: T.BooleanType(), REPORT: T.BinaryType()}.items()]
)


@dataclass(frozen=True)
class ByArrow:
    """What Arrow did of a batch.

    Args:
        files: The data files that it wrote, in no snapshot yet.
        counts: records, tombstones, oldest_ms and newest_ms, of all that is not in the rest.
        rest: The records that it left to others, with the columns of the Kafka source; None if there are none.
        spans: The rows by task and Kafka partition.
        work: What its tasks were told.
        marks: What the snapshot's summary tells of it.
        frame: What keeps the rest.
    """

    files: tuple[Any, ...]
    counts: Mapping[str, Any]
    rest: DataFrame | None
    spans: tuple[Span, ...]
    work: Work
    marks: Mapping[str, str]
    frame: DataFrame

    def discard(self, table: Table) -> None:
        """Delete the files. Never raises: no snapshot knows them."""
        for each in self.files:
            with suppress(Exception):
                table.io.delete(each.file_path)

    def release(self) -> None:
        """Let Spark forget the rest. Never raises: a server that is gone has forgotten it."""
        with suppress(Exception):
            self.frame.unpersist()


def why_not(spec: TopicTable, decoder: Decoder, target: Target, state: TableState, plan: Plan) -> str:
    """Return why a batch can't go by Arrow, empty if it can. Pure.

    Args:
        spec: The topic's settings.
        decoder: Its decoder.
        target: The columns to decode into.
        state: The table with the columns that it will be written with.
        plan: The batch.
    """
    metadata = state.table.metadata
    properties = metadata.properties
    head = state.table.current_snapshot()
    if not spec.arrow:
        return "arrow is false"
    if not isinstance(decoder, Json) or decoder.exact:
        return "the format has a decoder of its own"
    if spec.transform is not None or plan.kind != "append" or plan.deletes:
        return "rows are transformed or replaced"
    if metadata.format_version != 2 or properties.get("write.format.default", "parquet") != "parquet":
        return "the table's format is written by Spark only"
    if any(name.startswith(("write.parquet.bloom-filter", "encryption.")) for name in properties):
        return "the table's properties ask for what Spark alone does"
    if metadata.sort_order().fields:
        return "files are sorted by Spark"
    if sanitize_column_names(state.table.schema()) != state.table.schema():
        return "a column's name is written by Spark only"
    if any(isinstance(f.transform, UnknownTransform | VoidTransform) for f in metadata.spec().fields):
        return "the partition transform is Spark's"
    if urlsplit(state.table.location()).scheme not in _SCHEMES:
        return "the file system is Spark's"
    asked = asked_fields(target)
    if not target.columns.fields or asked.simpleString() != target.columns.simpleString():
        return "fields and columns differ"
    if not all(_plain(f.dataType) for f in target.columns):
        return "a column's type is decoded by Spark"
    if head is not None and HANDED_BACK in summary_of(head):
        # Once in a while it is tried again: by the commit after this one, whose summary hasn't the mark.
        return "most records of the batch before weren't plain"
    return ""


def _plain(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return bool(kind.fields) and all(f.nullable and _plain(f.dataType) for f in kind)
    if isinstance(kind, T.ArrayType):
        return kind.containsNull and _plain(kind.elementType)
    # Neither its subclasses: a char has a length.
    return type(kind) in _TYPES


def by_arrow(
    spec: TopicTable, spark: Any, records: DataFrame, target: Target, state: TableState, plan: Plan, tasks: int
) -> ByArrow | None:
    """Decode and write what plainly fits.

    Args:
        spec: The topic's settings.
        spark: The session.
        records: What `read` gave.
        target: Columns, of which `why_not` had no doubt.
        state: The table; its current columns are written.
        plan: The batch.
        tasks: How many tasks shall write.

    Returns:
        What was written and what is left; None if this Spark can't do it, and everything is left as it was. Files of
        tasks that failed stay behind, as with every writer of Spark's; no snapshot knows them.
    """
    if spark.conf.get("spark.sql.session.timeZone") != "UTC":
        return None
    withhold = _may_withhold(spark, state, plan)
    work = _work(spec, target, state.table, plan, withhold)
    function = _told(arrow_worker.decode_and_write, work)
    frame = _given(records, withhold).coalesce(tasks).mapInArrow(function, _RETURNED).persist()
    with _without_bound(spark) if withhold else nullcontext():
        reports = _reports(frame.filter(F.col(REPORT).isNotNull()))
    if reports is None:
        frame.unpersist()
        return None
    merged = _merged(reports)
    left = None
    if merged.handed_back:
        back = frame.filter(F.col(REPORT).isNull()).drop(REPORT).withColumn("topic", F.lit(spec.topic))
        full = F.when(F.size("headers") > 0, F.col("headers"))
        left = back.withColumn("headers", full).select(*records.columns)
    withheld = merged.large if withhold else 0
    if withheld:
        large = records.filter(_is_large())
        left = large if left is None else left.union(large)
    plain = merged.records - merged.handed_back
    marks = {DECODED_BY_ARROW: str(plain)}
    if merged.large:
        marks[LARGE_RECORDS] = str(merged.large)
    if merged.handed_back > plain + withheld:
        # What was withheld may be plain; the next batch will withhold nothing.
        marks[HANDED_BACK] = str(merged.handed_back + withheld)
    counts = {
        "records": plain,
        "tombstones": merged.tombstones,
        "failed": 0,
        "wrong_type": 0,
        "oldest_ms": merged.oldest_ms,
        "newest_ms": merged.newest_ms,
        "observed": None,
    }
    return ByArrow(_of(state.table, merged.files), counts, left, merged.spans, work, marks, frame)


def _given(records: DataFrame, withhold: bool) -> DataFrame:
    """Return records as Arrow's tasks get them; large ones without what makes them large, if that is withheld."""
    # Null lists one after the other cost Spark's Arrow writer the square of their number.
    none = F.array().cast(_HEADERS)
    headers = F.coalesce("headers", none)
    given = {name: F.col(name) for name in _RECORD} | {"headers": headers, LARGE: _is_large()}
    if withhold:
        # Nothing is taken away but where that is said, whatever the condition gives.
        blank = {"key": F.lit(None), "value": F.lit(None), "headers": none}
        given |= {name: F.when(given[LARGE], empty).otherwise(given[name]) for name, empty in blank.items()}
    return records.select(*[column.alias(name) for name, column in given.items()])


def _is_large() -> Column:
    def long(header: Column) -> Column:
        key, value = (F.coalesce(F.length(header[name]), F.lit(0)) for name in ("key", "value"))
        return key + value > _LARGE_HEADER_BYTES

    by_bytes = F.greatest(F.length("key"), F.length("value")) > _LARGE_BYTES
    by_headers = (F.size("headers") > _MANY_HEADERS) | F.exists("headers", long)
    # Never null: what is neither large nor not would be in neither reading.
    return F.coalesce(by_bytes | by_headers, F.lit(False))


def _may_withhold(spark: Any, state: TableState, plan: Plan) -> bool:
    bound = spark.conf.get(_BOUND)
    if bound == _NO_BOUND:
        # Left behind in a session that is kept, by a run that was killed in the midst.
        spark.conf.set(_BOUND, _USUAL_BOUND)
    elif bound != _USUAL_BOUND:
        # The users' own stays.
        return False
    head = state.table.current_snapshot()
    known = head is not None and LARGE_RECORDS in summary_of(head)
    return plan.records_at_most >= _LONG_BATCH and not known


@contextmanager
def _without_bound(spark: Any) -> Iterator[None]:
    spark.conf.set(_BOUND, _NO_BOUND)
    try:
        yield
    finally:
        # A server that is gone must not hide what went wrong by that; the next batch sees to it then.
        with suppress(Exception):
            spark.conf.set(_BOUND, _USUAL_BOUND)


def rows_by_arrow(work: Work, rows: DataFrame, table: Table) -> tuple[Any, ...] | None:
    """Write a table's rows as data files, which no snapshot knows yet, and return those; None if Arrow can't.

    Args:
        work: As `by_arrow`, which was able to, told it to its tasks.
        rows: With the table's columns.
        table: The table.
    """
    reports = _reports(rows.mapInArrow(_told(arrow_worker.write, work), f"{REPORT} binary"))
    return None if reports is None else _of(table, _merged(reports).files)


def added(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of two parts of a batch as those of the whole."""
    both = {**first, **second}
    for name in ("records", "tombstones", "failed", "wrong_type"):
        both[name] = first[name] + second[name]
    for name, pick in (("oldest_ms", min), ("newest_ms", max)):
        both[name] = _pick(pick, (first[name], second[name]))
    return both


def _work(spec: TopicTable, target: Target, table: Table, plan: Plan, withheld: bool) -> Work:
    fields = nullable_all(target.columns)
    assert isinstance(fields, T.StructType)
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
        fields=to_arrow_schema(fields),
        required=tuple(f.name for f in target.columns if not f.nullable),
        ignore=spec.schema is not None,
        topic=spec.topic,
        topic_id=plan.after.identity.topic_id,
        metadata_column=spec.metadata_column,
        max_record_bytes=spec.max_record_bytes,
        withheld=withheld,
    )


def prepare() -> None:
    """Do what is done once in a process, before there is a batch."""
    _packed(arrow_worker.decode_and_write)


def _told(function: Callable[[Work], arrow_worker.Batches], work: Work) -> arrow_worker.Batches:
    # Spark Connect packs the functions of a plan whenever it sends it, some four times a batch; this is quick to pack.
    return unpacking(_packed(function), pickle.dumps(vars(work)))


@cache
def _packed(function: Callable[[Work], arrow_worker.Batches]) -> bytes:
    packed: bytes = cloudpickle.dumps((arrow_worker.make, function))
    return packed


def _reports(frame: DataFrame) -> list[Report] | None:
    try:
        return [loaded(row[REPORT]) for row in frame.select(REPORT).collect()]
    except PythonException as error:
        # Packages that its machines lack, or a value that the library can't write: Spark can.
        said = [line for line in str(error).split("JVM stacktrace")[0].splitlines() if _SAYS.match(line)]
        _log.warning("Arrow can't take this batch, so Spark decodes it: %s", said[-1] if said else type(error).__name__)
        return None


def _merged(reports: Sequence[Report]) -> Report:
    return Report(
        tuple(chain.from_iterable(each.files for each in reports)),
        sum(each.records for each in reports),
        sum(each.large for each in reports),
        sum(each.tombstones for each in reports),
        sum(each.handed_back for each in reports),
        _pick(min, (each.oldest_ms for each in reports)),
        _pick(max, (each.newest_ms for each in reports)),
        tuple(chain.from_iterable(each.spans for each in reports)),
    )


def _pick(pick: Callable[..., int | None], stamps: Iterable[int | None]) -> int | None:
    return pick((stamp for stamp in stamps if stamp is not None), default=None)


def _of(table: Table, files: Sequence[Any]) -> tuple[Any, ...]:
    for each in files:
        # Pickling drops it.
        each.spec_id = table.metadata.default_spec_id
    return tuple(files)
