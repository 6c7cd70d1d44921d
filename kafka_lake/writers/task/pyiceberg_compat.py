"""What leans on private parts of PyIceberg in Spark's Python workers, each with what happens without it.

These are the machines' PyIceberg, which may be another version than the driver's.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.io.pyarrow import ParquetFormatWriter
from pyiceberg.partitioning import PartitionKey
from pyiceberg.table.metadata import TableMetadata


def partitions_of(metadata: TableMetadata, rows: pa.Table) -> Iterator[tuple[PartitionKey, pa.Table]]:
    """Give rows by the partition of a table that they belong to.

    Private: ``pyiceberg.io.pyarrow._determine_partitions``; PyIceberg's public ways write the files as well. Without it
    the task fails with ImportError, and the run's error names it.
    """
    from pyiceberg.io.pyarrow import _determine_partitions

    for part in _determine_partitions(metadata.spec(), metadata.schema(), rows):
        yield part.partition_key, part.arrow_table_partition


def use_dictionary(writer: ParquetFormatWriter, columns: list[str] | bool) -> None:
    """Say which columns of a Parquet file shall have dictionaries, before its first rows.

    Private: ``ParquetFormatWriter._parquet_writer_kwargs``; no property of a table says it. Without it all columns have
    them, which takes somewhat more time and room.
    """
    options = getattr(writer, "_parquet_writer_kwargs", None)
    if isinstance(options, dict):
        options["use_dictionary"] = columns
