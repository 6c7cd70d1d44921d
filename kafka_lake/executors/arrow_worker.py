"""From batches of JSON records to data files of a table, in one task; records that become no row are given back."""

import io
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import OutputFile, load_file_io
from pyiceberg.io.pyarrow import ParquetFormatWriter, _determine_partitions, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.table import WriteTask
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import Record

from kafka_lake.executors.json.arrays import list_like
from kafka_lake.executors.json.decoder import Decoded, JsonDecoder
from kafka_lake.executors.json.task import ERROR_CLASS, ERROR_MESSAGE, decoder_of, dumped, single_threaded
from kafka_lake.executors.packing import Batches

REPORT = "report"
LARGE = "large"
SAMPLE_CHARACTERS = 200
"""Characters of a failed record's value that are shown."""

_LARGE_GAP = 10_000
_WORTH_A_LOOK, _LOOKED_AT = 1000, 10_000
_TIMESTAMP_TYPES = ["CreateTime", "LogAppendTime"]


@dataclass(frozen=True)
class Work:
    """What a task must know.

    Args:
        metadata: The table's metadata as JSON; snapshots may be left out.
        io: Properties of the file system, credentials among them; not shown in its repr.
        decoding: What `decoder_of` makes a decoder of.
        topic: The topic's name, for the metadata column.
        topic_id: Its id; None if the brokers have none to tell.
        metadata_column: Struct that says where a row came from; None for none.
        withheld: Whether large records come without what makes them large; they are left out then.
        group_bytes: Bytes of Arrow columns that become one row group, where the table has no partitions.
        file_bytes: Bytes of them that become one data file; for each of the table's partitions in them, if it has any.
    """

    metadata: str
    io: Mapping[str, str] = field(repr=False)
    decoding: Mapping[str, Any]
    topic: str
    topic_id: str | None
    metadata_column: str | None
    withheld: bool = False
    group_bytes: int = 32 << 20
    file_bytes: int = 512 << 20


@dataclass(frozen=True)
class Span:
    """Rows of one Kafka partition that a task wrote in a row: how many, and the first and last of their offsets.

    The offsets between ascend.
    """

    partition: int
    rows: int
    first: int
    last: int


@dataclass(frozen=True)
class Failure:
    """Records that became no row for one kind of reason, and the first of them.

    Args:
        name: The error class.
        count: How many records.
        partition: Kafka partition of the first one, the lowest of all.
        offset: Its offset, the lowest in that partition.
        message: What is wrong with it.
        value: The beginning of its value, as text.
    """

    name: str
    count: int
    partition: int
    offset: int
    message: str
    value: str

    def and_(self, other: "Failure") -> "Failure":
        """Return what two are together, of the same class."""
        first = min(self, other, key=lambda each: (each.partition, each.offset))
        return replace(first, count=self.count + other.count)


@dataclass(frozen=True)
class Report:
    """What one task did.

    Args:
        files: Iceberg's descriptions of the data files it wrote, in no snapshot yet.
        records: Records it was given, but for those that are left out.
        large: Large records that it was given, left out or not.
        tombstones: Records without a value among them.
        failed: Records among them that became no row.
        untimed: Records among them whose Kafka timestamp no table holds.
        failures: Those by class.
        oldest_ms: The least Kafka timestamp of its rows and tombstones, None if none has any.
        newest_ms: The greatest likewise.
        spans: Its rows by Kafka partition, in any order.
        seen: What its batches had that no column takes, as `dumped` says it.
    """

    files: tuple[Any, ...] = ()
    records: int = 0
    large: int = 0
    tombstones: int = 0
    failed: int = 0
    untimed: int = 0
    failures: tuple[Failure, ...] = ()
    oldest_ms: int | None = None
    newest_ms: int | None = None
    spans: tuple[Span, ...] = ()
    seen: tuple[str, ...] = ()


def decode_and_write(told: Mapping[str, Any]) -> Batches:
    """Return the function for ``mapInArrow`` that takes records, and gives those back that failed, and a `Report`.

    Args:
        told: The fields of a `Work`.

    Its input has the columns key, value, partition, offset, timestamp, timestampType, headers and large, its output
    also ``error_class`` and ``error_message``, and ``report``, which is null where there is a record and the only one
    that isn't null in its last row.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        single_threaded()
        work = Work(**told)
        files, report, spans = _Files(work), Report(), _Spans()
        decoder = decoder_of(work.decoding)
        schema = None
        for batch in batches:
            added = [(ERROR_CLASS, pa.string()), (ERROR_MESSAGE, pa.string()), (REPORT, pa.binary())]
            schema = schema or pa.schema([*batch.schema, *(pa.field(*each) for each in added)])
            if large := pc.sum(batch.column(LARGE)).as_py():
                report = replace(report, large=report.large + large)
                if work.withheld:
                    batch = batch.filter(pc.invert(batch.column(LARGE)))
            rows, kept, failed, decoded = decode(batch, work, decoder)
            report = _counted(report, batch, failed)
            if decoded.seen:
                report = replace(report, seen=(*report.seen, dumped(decoded.seen, batch)))
            if len(rows):
                spans.add(kept)
                files.add(rows)
            if len(failed):
                report = replace(report, failures=merged((*report.failures, *_failures(failed))))
                nothing = pa.nulls(len(failed), pa.binary())
                yield pa.RecordBatch.from_arrays([*failed.columns, nothing], schema=schema)
        if schema is not None:
            report = replace(report, files=tuple(files.close()), spans=spans.all())
            last = {**dict.fromkeys(schema.names), REPORT: _dumped(report)}
            yield pa.RecordBatch.from_pylist([last], schema)

    return run


def decode(
    batch: pa.RecordBatch, work: Work, decoder: JsonDecoder
) -> tuple[pa.Table, pa.RecordBatch, pa.RecordBatch, Decoded]:
    """Turn records into a table's rows.

    Args:
        batch: Records as `decode_and_write` gets them.
        work: The metadata column, and what is in it.
        decoder: Of the values.

    Returns:
        Rows with the table's columns by name; the records that they were; the records that failed, with
        ``error_class`` and ``error_message``; and what the decoder said.
    """
    decoded = decoder.decode(batch.column("value"))
    rows, kept = decoded.made, batch
    if len(rows) < len(batch):
        kept = batch.take(pa.array(decoded.places))
    bad = pc.is_valid(decoded.error_class)
    failed = batch.filter(bad)
    for name, each in ((ERROR_CLASS, decoded.error_class), (ERROR_MESSAGE, decoded.error_message)):
        failed = failed.append_column(name, each.filter(bad))
    table = pa.Table.from_arrays(rows.flatten(), names=[field.name for field in rows.type])
    if work.metadata_column is not None:
        table = table.append_column(work.metadata_column, _metadata(kept, work))
    return table, kept, failed, decoded


def shaped(array: pa.Array, kind: Any) -> pa.Array:
    """Return an array as another type: fields of structs by name, those that it lacks as null, at every depth."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        have = {array.type.field(i).name for i in range(array.type.num_fields)}
        parts = [shaped(array.field(f.name), f.type) if f.name in have else pa.nulls(len(array), f.type) for f in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        return list_like(array, shaped(array.flatten(), kind.value_type), kind)
    return array.cast(kind)


def _small(field: pa.Field) -> pa.Field:
    """Return a field as one of types with offsets of 32 bits, which is what Arrow's JSON and Spark give."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_small(f) for f in kind])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_small(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_small(kind.key_field), _small(kind.item_field))
    return field.with_type({pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind))


def _metadata(kept: pa.RecordBatch, work: Work) -> pa.StructArray:
    count, kinds = len(kept), kept.column("timestampType")
    names = pa.array(_TIMESTAMP_TYPES)
    known = pc.if_else(pc.and_(pc.greater_equal(kinds, 0), pc.less(kinds, len(names))), kinds, None)
    headers = kept.column("headers")
    if len(headers.values):
        headers = pc.if_else(pc.greater(pc.list_value_length(headers), 0), headers, None)
    else:
        headers = pa.nulls(count, headers.type)
    columns = {
        "topic": pa.repeat(pa.scalar(work.topic), count),
        "topic_id": pa.repeat(pa.scalar(work.topic_id or None, pa.string()), count),
        "partition": kept.column("partition"),
        "offset": kept.column("offset"),
        "timestamp": kept.column("timestamp"),
        "timestamp_type": names.take(known),
        "key": kept.column("key"),
        "headers": headers,
    }
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


class _Spans:
    """Keeps count of the offsets of each Kafka partition, in spans that ascend and have no large gap."""

    def __init__(self) -> None:
        self._open: dict[int, Span] = {}
        self._closed: list[Span] = []

    def add(self, kept: pa.RecordBatch) -> None:
        partitions = kept.column("partition").to_numpy()
        offsets = kept.column("offset").to_numpy()
        steps = np.diff(offsets)
        breaks = np.flatnonzero((np.diff(partitions) != 0) | (steps <= 0) | (steps > _LARGE_GAP)) + 1
        for start, end in zip([0, *breaks], [*breaks, len(offsets)], strict=True):
            self._add(Span(int(partitions[start]), int(end - start), int(offsets[start]), int(offsets[end - 1])))

    def _add(self, span: Span) -> None:
        before = self._open.get(span.partition)
        if before is not None and 0 < span.first - before.last <= _LARGE_GAP:
            span = replace(span, rows=before.rows + span.rows, first=before.first)
        elif before is not None:
            self._closed.append(before)
        self._open[span.partition] = span

    def all(self) -> tuple[Span, ...]:
        return (*self._closed, *self._open.values())


class _Files:
    """Gathers rows and writes them as data files of a table.

    Where the table has no partitions, a file gets a row group whenever enough has been gathered, so that the memory
    stays small and warm. Else each of the partitions gets a file of its own then.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._metadata = TableMetadataUtil.parse_raw(work.metadata)
        self._whole = self._metadata.spec().is_unpartitioned()
        self._io = load_file_io(dict(work.io), self._metadata.location)
        self._columns = pa.schema([_small(f) for f in schema_to_pyarrow(self._metadata.schema())])
        self._locations = load_location_provider(self._metadata.location, self._metadata.properties)
        self._rows: list[pa.Table] = []
        self._bytes = 0
        self._uuid = uuid4()
        self._open: _File | None = None
        self._files: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= (self._work.group_bytes if self._whole else self._work.file_bytes):
            self._write()

    def close(self) -> list[DataFile]:
        if self._rows:
            self._write()
        self._roll()
        return self._files

    def _write(self) -> None:
        rows = pa.concat_tables(self._rows)
        size, self._rows, self._bytes = self._bytes, [], 0
        columns = [
            shaped(rows.column(f.name).combine_chunks(), f.type)
            if f.name in rows.column_names
            else pa.nulls(len(rows), f.type)
            for f in self._columns
        ]
        rows = pa.Table.from_arrays(columns, schema=self._columns)
        if self._whole:
            self._open = self._open or self._begun(None, _repetitive(rows))
            self._open.write(rows, size)
            if self._open.size >= self._work.file_bytes:
                self._roll()
            return
        repetitive = _repetitive(rows)
        for part in _determine_partitions(self._metadata.spec(), self._metadata.schema(), rows):
            self._open = self._begun(part.partition_key, repetitive)
            self._open.write(part.arrow_table_partition, 0)
            self._roll()

    def _roll(self) -> None:
        if self._open is not None:
            self._files.append(self._open.closed())
            self._open = None

    def _begun(self, key: PartitionKey | None, repetitive: list[str] | bool) -> "_File":
        task = WriteTask(self._uuid, len(self._files), self._metadata.schema(), [])
        name = task.generate_data_file_filename("parquet")
        output = self._io.new_output(self._locations.new_data_location(name, key))
        return _File(self._metadata, output, key, repetitive)


class _File:
    """A data file in the making.

    Not by PyIceberg's write_file, which writes one table at a time and makes null lists of structs empty ones.
    """

    def __init__(
        self, metadata: TableMetadata, output: OutputFile, key: PartitionKey | None, repetitive: list[str] | bool
    ) -> None:
        self.size = 0
        self._metadata, self._output, self._key = metadata, output, key
        self._writer = ParquetFormatWriter(output, metadata.schema(), metadata.properties)
        # Iceberg has no property for it.
        self._writer._parquet_writer_kwargs["use_dictionary"] = repetitive

    def write(self, rows: pa.Table, size: int) -> None:
        self._writer.write(rows)
        self.size += size

    def closed(self) -> DataFile:
        statistics = self._writer.close()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._output.location,
            file_format=FileFormat.PARQUET,
            partition=self._key.partition if self._key else Record(),
            file_size_in_bytes=len(self._output),
            sort_order_id=None,
            spec_id=self._metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _repetitive(rows: pa.Table) -> list[str] | bool:
    """Return Parquet's paths of the columns whose values repeat, by a look at the first rows; true for all.

    A dictionary of values that are all different, as offsets and ids are, takes time and room. Lists aren't looked at.
    """
    if len(rows) < _WORTH_A_LOOK:
        return True
    some = rows.slice(0, _LOOKED_AT)
    empty = io.BytesIO()
    pq.write_table(some.slice(0, 0), empty)
    paths = pq.read_metadata(empty).schema
    unique = {path for path, values in _leaves(some) if 2 * pc.count_distinct(values, mode="all").as_py() > len(some)}
    return [path for path in (paths.column(n).path for n in range(len(paths))) if path not in unique]


def _leaves(rows: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Give the columns that are no lists and their paths, those in structs one by one."""
    todo = deque((name, rows.column(name)) for name in rows.column_names)
    while todo:
        path, values = todo.popleft()
        if pa.types.is_struct(values.type):
            inner = (f.name for f in values.type)
            todo.extend((f"{path}.{name}", pc.struct_field(values, [n])) for n, name in enumerate(inner))
        elif not pa.types.is_nested(values.type):
            yield path, values


def _dumped(report: Report) -> bytes:
    # As tuples and numbers: there, these classes are others than here.
    nested = {name: [tuple(vars(each).values()) for each in getattr(report, name)] for name in ("spans", "failures")}
    return pickle.dumps({**vars(report), **nested})


def loaded(report: bytes) -> Report:
    """Return a report as a task sent it."""
    said = pickle.loads(report)
    spans = tuple(Span(*each) for each in said["spans"])
    return Report(**{**said, "spans": spans, "failures": tuple(Failure(*each) for each in said["failures"])})


def merged(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Return failures of several batches, one of each class."""
    found: dict[str, Failure] = {}
    for each in failures:
        found[each.name] = found[each.name].and_(each) if each.name in found else each
    return tuple(found.values())


def _failures(failed: pa.RecordBatch) -> Iterator[Failure]:
    classes = failed.column(ERROR_CLASS)
    for name in classes.unique().to_pylist():
        those = failed.filter(pc.equal(classes, name))
        places = (those.column("offset").to_numpy(), those.column("partition").to_numpy())
        first = those.slice(int(np.lexsort(places)[0]), 1).select(["partition", "offset", ERROR_MESSAGE, "value"])
        partition, offset, message, value = first.to_pylist()[0].values()
        # No character has more than 4 bytes.
        begin = value[: 4 * SAMPLE_CHARACTERS].decode(errors="replace")[:SAMPLE_CHARACTERS]
        yield Failure(name, len(those), partition, offset, message, begin)


def _counted(report: Report, batch: pa.RecordBatch, failed: pa.RecordBatch) -> Report:
    stamps = pc.fill_null(batch.column("timestamp").cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    # Kafka writes -1 where a record has no time.
    timed = stamps[stamps >= 0]
    oldest = [report.oldest_ms] if report.oldest_ms is not None else []
    newest = [report.newest_ms] if report.newest_ms is not None else []
    if len(timed):
        oldest.append(int(timed.min()) // 1000)
        newest.append(int(timed.max()) // 1000)
    return replace(
        report,
        records=report.records + len(batch),
        tombstones=report.tombstones + batch.column("value").null_count,
        failed=report.failed + len(failed),
        untimed=report.untimed + batch.column("timestamp").null_count,
        oldest_ms=min(oldest, default=None),
        newest_ms=max(newest, default=None),
    )
