"""Write rows to Parquet data files of an Iceberg table."""

import io
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io import OutputFile, load_file_io
from pyiceberg.io.pyarrow import ParquetFormatWriter, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table import WriteTask
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField, PrimitiveType, StructType, TimestamptzType

from kafka_lake.formats.task.shapes import column_of, small_offsets
from kafka_lake.writers.task.pyiceberg_compat import partitions_of, use_dictionary

_MIN_ROWS, _SAMPLE_ROWS = 1000, 10_000
_GROUP_BYTES, _FILE_BYTES = 32 << 20, 512 << 20
_ORIGIN = {"topic", "topic_id", "partition", "offset"}


class Files:
    """Gathers rows and writes them as data files of a table.

    A table without partitions and sort order gets a row group for each 32 MiB, which bounds the memory. Otherwise all
    rows of a file are gathered, and each of their partitions gets a file. The rows of a file are sorted.

    Args:
        metadata: The table's metadata as JSON; snapshots may be left out.
    """

    def __init__(self, metadata: str, io: dict[str, str]) -> None:
        self._metadata = TableMetadataUtil.parse_raw(metadata)
        self._order = self._metadata.sort_order()
        self._is_simple = self._metadata.spec().is_unpartitioned() and self._order.is_unsorted
        self._io = load_file_io(dict(io), self._metadata.location)
        self.columns = pa.schema([small_offsets(f) for f in schema_to_pyarrow(self._metadata.schema())])
        self._locations = load_location_provider(self._metadata.location, self._metadata.properties)
        self._rows: list[pa.Table] = []
        self._bytes = 0
        self._uuid = uuid4()
        self._open: _File | None = None
        self._files: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        """Add rows with the table's columns by name; write the gathered rows if they are enough."""
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= (_GROUP_BYTES if self._is_simple else _FILE_BYTES):
            self._write()

    def close(self) -> list[DataFile]:
        """Write the remaining rows, and return all data files."""
        if self._rows:
            self._write()
        self._roll()
        return self._files

    def _write(self) -> None:
        rows = pa.concat_tables(self._rows)
        size, self._rows, self._bytes = self._bytes, [], 0
        rows = pa.Table.from_arrays([column_of(rows, column) for column in self.columns], schema=self.columns)
        if self._is_simple:
            self._open = self._open or self._new_file(None, _repetitive(rows))
            self._open.write(rows, size)
            if self._open.size >= _FILE_BYTES:
                self._roll()
            return
        repetitive = _repetitive(rows)
        for key, part in self._parts(rows):
            self._open = self._new_file(key, repetitive)
            self._open.write(in_order(part, self._order, self._metadata.schema()), 0)
            self._roll()

    def _parts(self, rows: pa.Table) -> Iterable[tuple[PartitionKey | None, pa.Table]]:
        if self._metadata.spec().is_unpartitioned():
            return [(None, rows)]
        return partitions_of(self._metadata, rows)

    def _roll(self) -> None:
        if self._open is not None:
            self._files.append(self._open.closed())
            self._open = None

    def _new_file(self, key: PartitionKey | None, repetitive: list[str] | bool) -> "_File":
        task = WriteTask(self._uuid, len(self._files), self._metadata.schema(), [])
        name = task.generate_data_file_filename("parquet")
        output = self._io.new_output(self._locations.new_data_location(name, key))
        return _File(self._metadata, output, key, repetitive)


class _File:
    """A data file that is being written.

    PyIceberg's write_file takes all rows at once, and turns null lists of structs into empty ones.
    """

    def __init__(
        self, metadata: TableMetadata, output: OutputFile, key: PartitionKey | None, repetitive: list[str] | bool
    ) -> None:
        self.size = 0
        self._metadata, self._output, self._key = metadata, output, key
        self._writer = ParquetFormatWriter(output, metadata.schema(), metadata.properties)
        use_dictionary(self._writer, repetitive)
        self._origins = OriginBounds(metadata.schema())

    def write(self, rows: pa.Table, size: int) -> None:
        self._writer.write(rows)
        self._origins.add(rows)
        self.size += size

    def closed(self) -> DataFile:
        statistics = self._writer.close()
        for column in statistics.column_aggregates.values():
            try:
                column.max_as_bytes()
            except UnicodeEncodeError:
                # PyIceberg makes a bound of cut text greater by its last character, and a surrogate follows U+D7FF.
                column.current_max = None
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._output.location,
            file_format=FileFormat.PARQUET,
            partition=self._key.partition if self._key else Record(),
            file_size_in_bytes=len(self._output),
            sort_order_id=self._metadata.default_sort_order_id or None,
            spec_id=self._metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **self._origins.added_to(statistics.to_serialized_dict()),
        )


class OriginBounds:
    """Bounds of partition, offset and timestamp in the metadata column, if the table has one.

    Queries skip files by them, and row retention drops files. Iceberg's Java writers keep bounds of struct fields;
    PyIceberg doesn't.
    """

    def __init__(self, schema: Schema) -> None:
        self._fields: list[tuple[str, NestedField, PrimitiveType]] = [
            (column.name, inner, inner.field_type)
            for column in schema.fields
            if isinstance(column.field_type, StructType) and {f.name for f in column.field_type.fields} >= _ORIGIN
            for inner in column.field_type.fields
            if isinstance(inner.field_type, (IntegerType, LongType, TimestamptzType))
        ]
        self._bounds: dict[int, tuple[int, int]] = {}

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        for column, field, _ in self._fields:
            values = pc.struct_field(rows.column(column), [field.name])
            # Microseconds, as everywhere in the table.
            ends = pc.min_max(values.cast(pa.int64())).as_py()
            if ends["min"] is None:
                continue
            least, most = self._bounds.get(field.field_id, (ends["min"], ends["max"]))
            self._bounds[field.field_id] = min(least, ends["min"]), max(most, ends["max"])

    def added_to(self, statistics: dict[str, Any]) -> dict[str, Any]:
        """Return a data file's statistics with these bounds."""
        kinds = {field.field_id: kind for _, field, kind in self._fields}
        bounds = [{key: to_bytes(kinds[key], ends[which]) for key, ends in self._bounds.items()} for which in (0, 1)]
        return {
            **statistics,
            "lower_bounds": {**(statistics.get("lower_bounds") or {}), **bounds[0]},
            "upper_bounds": {**(statistics.get("upper_bounds") or {}), **bounds[1]},
        }


def in_order(rows: pa.Table, order: SortOrder, schema: Schema) -> pa.Table:
    """Sort rows by the table's order, stable (https://iceberg.apache.org/spec/#sorting)."""
    if order.is_unsorted or len(rows) < 2:
        return rows
    keys: dict[str, pa.Array] = {}
    directions: list[tuple[str, str]] = []
    for number, field in enumerate(order.fields):
        name, kind = schema.find_column_name(field.source_id), schema.find_type(field.source_id)
        assert name is not None, "Iceberg keeps the columns of a sort order"
        first, *inner = [name] if name in rows.column_names else name.split(".")
        column = pc.struct_field(rows.column(first), inner) if inner else rows.column(first)
        values = field.transform.pyarrow_transform(kind)(column)
        # Arrow has one null placement for all keys, so a further key says whether the value is null.
        keys[f"null {number}"] = pc.is_null(values)
        keys[f"value {number}"] = values
        nulls = "descending" if field.null_order == NullOrder.NULLS_FIRST else "ascending"
        direction = "ascending" if field.direction == SortDirection.ASC else "descending"
        directions += [(f"null {number}", nulls), (f"value {number}", direction)]
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=directions))


def _repetitive(rows: pa.Table) -> list[str] | bool:
    """Return Parquet's paths of columns whose values repeat in the first rows; True for all columns.

    A dictionary of unique values, such as offsets, costs time and space. Lists always get one.
    """
    if len(rows) < _MIN_ROWS:
        return True
    some = rows.slice(0, _SAMPLE_ROWS)
    empty = io.BytesIO()
    pq.write_table(some.slice(0, 0), empty)
    paths = pq.read_metadata(empty).schema
    unique = {path for path, values in _leaves(some) if 2 * pc.count_distinct(values, mode="all").as_py() > len(some)}
    return [path for path in (paths.column(n).path for n in range(len(paths))) if path not in unique]


def _leaves(rows: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield paths and values of primitive columns, also inside structs."""
    todo = deque((name, rows.column(name)) for name in rows.column_names)
    while todo:
        path, values = todo.popleft()
        if pa.types.is_struct(values.type):
            inner = (f.name for f in values.type)
            todo.extend((f"{path}.{name}", pc.struct_field(values, [n])) for n, name in enumerate(inner))
        elif not pa.types.is_nested(values.type):
            yield path, values
