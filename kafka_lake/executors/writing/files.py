"""Data files of a table, written from rows as they come."""

import io
from collections import deque
from collections.abc import Iterable, Iterator
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import OutputFile, load_file_io
from pyiceberg.io.pyarrow import ParquetFormatWriter, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.table import WriteTask
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import Record

from kafka_lake.executors.pyiceberg_compat import partitions_of, use_dictionary
from kafka_lake.executors.writing.order import in_order
from kafka_lake.executors.writing.origin_bounds import OriginBounds
from kafka_lake.executors.writing.shapes import column_of, small_offsets
from kafka_lake.executors.writing.work import Work

_WORTH_A_LOOK, _LOOKED_AT = 1000, 10_000


class Files:
    """Gathers rows and writes them as data files of a table.

    Where the table has no partitions and no sort order, a file gets a row group whenever enough has been gathered, so
    that the memory stays small and warm. Else the rows of a file are gathered, and each of the partitions gets a file
    of its own. A file's rows are sorted; those of two files may overlap.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._metadata = TableMetadataUtil.parse_raw(work.metadata)
        self._order = self._metadata.sort_order()
        self._whole = self._metadata.spec().is_unpartitioned() and self._order.is_unsorted
        self._io = load_file_io(dict(work.io), self._metadata.location)
        self.columns = pa.schema([small_offsets(f) for f in schema_to_pyarrow(self._metadata.schema())])
        self._locations = load_location_provider(self._metadata.location, self._metadata.properties)
        self._rows: list[pa.Table] = []
        self._bytes = 0
        self._uuid = uuid4()
        self._open: _File | None = None
        self._files: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        """Take rows; write those that were gathered if they are enough."""
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= (self._work.group_bytes if self._whole else self._work.file_bytes):
            self._write()

    def close(self) -> list[DataFile]:
        """Write what is left, and return Iceberg's descriptions of all files."""
        if self._rows:
            self._write()
        self._roll()
        return self._files

    def _write(self) -> None:
        rows = pa.concat_tables(self._rows)
        size, self._rows, self._bytes = self._bytes, [], 0
        rows = pa.Table.from_arrays([column_of(rows, each) for each in self.columns], schema=self.columns)
        if self._whole:
            self._open = self._open or self._begun(None, _repetitive(rows))
            self._open.write(rows, size)
            if self._open.size >= self._work.file_bytes:
                self._roll()
            return
        repetitive = _repetitive(rows)
        for key, part in self._parts(rows):
            self._open = self._begun(key, repetitive)
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
        use_dictionary(self._writer, repetitive)
        self._origins = OriginBounds(metadata.schema())

    def write(self, rows: pa.Table, size: int) -> None:
        self._writer.write(rows)
        self._origins.add(rows)
        self.size += size

    def closed(self) -> DataFile:
        statistics = self._writer.close()
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
