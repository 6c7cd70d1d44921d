"""What executors run for JSON that plainly fits its table: a batch of records becomes Arrow columns, then data files.

Strict by design: what isn't plain (broken or unexpected values, nulls in required columns, values too large) is handed
back as the record it was, for the functions of Spark that tell what is wrong with it. So nothing is judged here.

Travels with the function by value and imports nothing of kafka_lake, so that the machines of a cluster need the
packages ``pyarrow`` and ``pyiceberg[pyarrow]`` only.
"""

import io
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
from pyiceberg.io import OutputFile, load_file_io
from pyiceberg.io.pyarrow import ParquetFormatWriter, _determine_partitions, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.table import WriteTask
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import Record

REPORT = "report"
LARGE = "large"

Batches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What ``mapInArrow`` takes."""

_TRIMMED = " \t\r\n"
_DEEP = 512
_SMALLEST_PIECE = 16
_PATIENCE = 6
_LARGE_GAP = 10_000
_WORTH_A_LOOK, _LOOKED_AT = 1000, 10_000
# What a datetime holds, from the year 1 to the year 9999.
_FIRST_MICROS, _LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
_TIMESTAMP_TYPES = ["CreateTime", "LogAppendTime"]


@dataclass(frozen=True)
class Work:
    """What a task must know.

    Args:
        metadata: The table's metadata as JSON; snapshots may be left out.
        io: Properties of the file system, credentials among them; not shown in its repr.
        fields: Names and types to parse values as.
        required: Names of those that may not be null.
        ignore: Whether other fields of a value don't matter; else only nulls may be under other names.
        topic: The topic's name, for the metadata column.
        topic_id: Its id; None if the brokers have none to tell.
        metadata_column: Struct that says where a row came from; None for none.
        max_record_bytes: Longer values are handed back; None for no limit.
        withheld: Whether large records come without what makes them large; they are left out then.
        group_bytes: Bytes of Arrow columns that become one row group, where the table has no partitions.
        file_bytes: Bytes of them that become one data file; for each of the table's partitions in them, if it has any.
    """

    metadata: str
    io: Mapping[str, str] = field(repr=False)
    fields: pa.Schema
    required: tuple[str, ...]
    ignore: bool
    topic: str
    topic_id: str | None
    metadata_column: str | None
    max_record_bytes: int | None
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
class Report:
    """What one task did.

    Args:
        files: Iceberg's descriptions of the data files it wrote, in no snapshot yet.
        records: Records it was given, but for those that are left out.
        large: Large records that it was given, left out or not.
        tombstones: Records without a value among them.
        handed_back: Records among them that are not in the files.
        oldest_ms: The least Kafka timestamp of its rows and tombstones, None if none has any.
        newest_ms: The greatest likewise.
        spans: Its rows by Kafka partition, in any order.
    """

    files: tuple[Any, ...] = ()
    records: int = 0
    large: int = 0
    tombstones: int = 0
    handed_back: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    spans: tuple[Span, ...] = ()


def decode_and_write(work: Work) -> Batches:
    """Return the function for ``mapInArrow`` that takes records, and gives those back that it left, and a `Report`.

    Its input has the columns key, value, partition, offset, timestamp, timestampType, headers and large, its output
    also ``report``, which is null where there is a record and the only one that isn't null in its last row.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _single_threaded()
        files, report, spans = _Files(work), Report(), _Spans()
        schema = None
        parser = Parser(work.fields, work.ignore)
        for batch in batches:
            schema = schema or pa.schema([*batch.schema, pa.field(REPORT, pa.binary())])
            if large := pc.sum(batch.column(LARGE)).as_py():
                report = replace(report, large=report.large + large)
                if work.withheld:
                    batch = batch.filter(pc.invert(batch.column(LARGE)))
            rows, kept, left = decode(batch, work, parser)
            report = _counted(report, batch, left)
            if len(rows):
                spans.add(kept)
                files.add(rows)
            if len(left):
                yield _with_report(left, None, schema)
        if schema is not None:
            report = replace(report, files=tuple(files.close()), spans=spans.all())
            empty = pa.RecordBatch.from_pylist([dict.fromkeys(schema.names)], schema.remove(len(schema) - 1))
            yield _with_report(empty, _dumped(report), schema)

    return run


def write(work: Work) -> Batches:
    """Return the function for ``mapInArrow`` that takes a table's rows, writes them and gives a `Report`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _single_threaded()
        files = _Files(work)
        for batch in batches:
            files.add(pa.Table.from_batches([batch]))
        yield pa.RecordBatch.from_pydict({REPORT: pa.array([_dumped(Report(tuple(files.close())))], pa.binary())})

    return run


def decode(batch: pa.RecordBatch, work: Work, parser: "Parser") -> tuple[pa.Table, pa.RecordBatch, pa.RecordBatch]:
    """Turn records into a table's rows.

    Args:
        batch: Records as `decode_and_write` gets them.
        work: Columns and limits.
        parser: For ``work.fields``.

    Returns:
        Rows with the table's columns by name; the records that they were; and the records that are left, which have
        a value and became no row.
    """
    batch = batch.filter(pc.is_valid(batch.column("value")))
    values = batch.column("value")
    good = _in_range(batch.column("timestamp"))
    if work.max_record_bytes is not None:
        good &= pc.binary_length(values).to_numpy() <= work.max_record_bytes
    if not good.all():
        values = values.filter(pa.array(good))
    parsed, fits = parser.parse(values)
    for name in work.required:
        if parsed.column(name).null_count:
            full = pc.is_valid(parsed.column(name)).combine_chunks().to_numpy(zero_copy_only=False)
            parsed = parsed.filter(pa.array(full))
            fits[np.flatnonzero(fits)[~full]] = False
    good[np.flatnonzero(good)[~fits]] = False
    whole = bool(good.all())
    kept = batch if whole else batch.filter(pa.array(good))
    left = batch.slice(0, 0) if whole else batch.filter(pa.array(~good))
    if work.metadata_column is not None:
        parsed = parsed.append_column(work.metadata_column, _metadata(kept, work))
    return parsed, kept, left


class Parser:
    """Parses JSON objects as columns, and tells which of them don't plainly fit.

    Args:
        fields: Names and types of the columns.
        ignore: Whether other fields of an object don't matter; else they may be there as null only.
    """

    def __init__(self, fields: pa.Schema, ignore: bool) -> None:
        self.fields = fields
        self._unexpected = "ignore" if ignore else "error"
        self._critical = [f.name for f in fields if _is_critical(f.type)]

    def parse(self, values: pa.Array) -> tuple[pa.Table, np.ndarray]:
        """Return a table of the objects that fit, and for each value whether it is one of them.

        Args:
            values: Binary, none of them null.
        """
        fits = np.zeros(len(values), dtype=bool)
        tables, patience = [self.fields.empty_table()], _PATIENCE * len(values)
        todo = deque([(0, len(values))])
        while todo:
            start, length = todo.popleft()
            if not length or patience < 0:
                continue
            patience -= length
            table = self._parse(values.slice(start, length))
            if table is not None:
                tables.append(table)
                fits[start : start + length] = True
            elif length > _SMALLEST_PIECE:
                # In order, so that rows and values stay side by side.
                half = length // 2
                todo.extendleft([(start + half, length - half), (start, half)])
        return pa.concat_tables(tables), fits

    def _parse(self, values: pa.Array) -> pa.Table | None:
        """Return one row for each value, or None if one of them doesn't plainly fit."""
        try:
            # Arrow's parser doesn't look whether text is UTF-8.
            text = values.cast(pa.string())
        except pa.ArrowInvalid:
            return None
        if not _are_objects(values):
            text = pc.utf8_trim(text, characters=_TRIMMED)
            values = text.cast(pa.binary())
            if not _are_objects(values):
                return None
        lines = pa.concat_arrays([values, pa.array([b""], values.type)])
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), b"\n")
        block = joined[0].as_buffer()
        table = None if self._unexpected == "infer" else self._read(block, self._unexpected)
        if table is None and self._unexpected != "ignore" and not _deep(text):
            # Fields that are null wherever they are need no column. To see that costs more, so it is kept in mind.
            table = self._read(block, "infer")
            if table is not None:
                self._unexpected = "infer"
        # Each value begins and ends an object, so each has one at least; more are more rows.
        return table if table is not None and len(table) == len(values) else None

    def _read(self, block: pa.Buffer, unexpected: str) -> pa.Table | None:
        try:
            table = pj.read_json(
                pa.BufferReader(block),
                pj.ReadOptions(use_threads=False, block_size=block.size + 1),
                pj.ParseOptions(explicit_schema=self.fields, unexpected_field_behavior=unexpected),
            )
        except pa.ArrowInvalid:
            return None
        kind = pa.struct(list(self.fields))
        if not _adds_nulls_only(pa.struct(list(table.schema)), kind):
            return None
        if unexpected == "infer":
            table = pa.Table.from_struct_array(shaped(table.to_struct_array().combine_chunks(), kind))
        # NaN and Infinity are no JSON.
        return table if all(_sound(table.column(name)) for name in self._critical) else None


def _are_objects(values: pa.Array) -> bool:
    return bool(pc.all(pc.and_(pc.starts_with(values, b"{"), pc.ends_with(values, b"}"))).as_py())


def _adds_nulls_only(found: Any, wanted: Any) -> bool:
    """Return whether an inferred type is the one wanted, but for fields that are null wherever they are."""
    if found == wanted:
        return True
    if pa.types.is_list(wanted) and pa.types.is_list(found):
        return _adds_nulls_only(found.value_type, wanted.value_type)
    if not (pa.types.is_struct(wanted) and pa.types.is_struct(found)):
        return False
    kinds = {f.name: f.type for f in wanted}
    return all(_adds_nulls_only(f.type, kinds.get(f.name, pa.null())) for f in found)


def _list_like(array: pa.Array, items: pa.Array, kind: Any) -> pa.Array:
    """Return lists of the same lengths as those of an array, nulls where it has nulls, with other items."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]), pa.int32())
    return pa.ListArray.from_arrays(offsets, items, kind, mask=array.is_null())


def shaped(array: pa.Array, kind: Any) -> pa.Array:
    """Return an array as another type: fields of structs by name, those that it lacks as null, at every depth."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        have = {array.type.field(i).name for i in range(array.type.num_fields)}
        parts = [shaped(array.field(f.name), f.type) if f.name in have else pa.nulls(len(array), f.type) for f in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        return _list_like(array, shaped(array.flatten(), kind.value_type), kind)
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


def _deep(text: pa.Array) -> bool:
    # To infer the type of something very deep is a recursion that ends the process.
    opened = pc.add(pc.count_substring(text, "{"), pc.count_substring(text, "["))
    return bool(len(text) and pc.max(opened).as_py() > _DEEP)


def _is_critical(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(_is_critical(f.type) for f in kind)
    if pa.types.is_list(kind):
        return _is_critical(kind.value_type)
    return bool(pa.types.is_floating(kind) or pa.types.is_timestamp(kind))


def _sound(column: pa.ChunkedArray) -> bool:
    """Return whether all numbers are finite, and all times such that their files' statistics can tell them."""
    kind = column.type
    if pa.types.is_struct(kind):
        return all(_sound(pc.struct_field(column, [i])) for i in range(kind.num_fields) if _is_critical(kind[i].type))
    if pa.types.is_list(kind):
        return _sound(pc.list_flatten(column))
    if pa.types.is_timestamp(kind):
        return all(bool(_in_range(chunk).all()) for chunk in column.chunks)
    return bool(pc.all(pc.is_finite(column), min_count=0).as_py())


def _in_range(times: pa.Array) -> Any:
    micros = pc.fill_null(times.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return (micros >= _FIRST_MICROS) & (micros <= _LAST_MICROS)


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
    return pickle.dumps({**vars(report), "spans": [tuple(vars(span).values()) for span in report.spans]})


def make(function: Callable[[Work], Batches], work: Mapping[str, Any]) -> Batches:
    """Return what the function makes of the work with these fields."""
    return function(Work(**work))


def unpacking(packed: bytes, work: bytes) -> Batches:
    """Return a function for ``mapInArrow`` that does what `make` makes of what is packed.

    Args:
        packed: `make` and its first argument, by cloudpickle.
        work: The fields of a `Work`, pickled.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        making, function = pickle.loads(packed)
        does: Batches = making(function, pickle.loads(work))
        return does(batches)

    return run


def loaded(report: bytes) -> Report:
    """Return a report as a task sent it."""
    said = pickle.loads(report)
    return Report(**{**said, "spans": tuple(Span(*span) for span in said["spans"])})


def _counted(report: Report, batch: pa.RecordBatch, left: pa.RecordBatch) -> Report:
    stamps = batch.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
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
        handed_back=report.handed_back + len(left),
        oldest_ms=min(oldest, default=None),
        newest_ms=max(newest, default=None),
    )


def _with_report(batch: pa.RecordBatch, report: bytes | None, schema: pa.Schema) -> pa.RecordBatch:
    reports = pa.array([report] * len(batch), pa.binary())
    return pa.RecordBatch.from_arrays([*batch.columns, reports], schema=schema)


def _single_threaded() -> None:
    # Spark runs a worker for each core.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
