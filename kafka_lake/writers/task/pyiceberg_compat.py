"""Private parts of PyIceberg that tasks use, each with the effect if it is missing.

Spark's machines may have another version of PyIceberg than the driver.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.io.pyarrow import ParquetFormatWriter
from pyiceberg.partitioning import PartitionKey
from pyiceberg.table.metadata import TableMetadata


def partitions_of(metadata: TableMetadata, rows: pa.Table) -> Iterator[tuple[PartitionKey, pa.Table]]:
    """Yield a table's rows by partition.

    Private: ``pyiceberg.io.pyarrow._determine_partitions``; PyIceberg's public functions also write the files. Without
    it the task fails with ImportError, and the run's error names it.
    """
    from pyiceberg.io.pyarrow import _determine_partitions

    for part in _determine_partitions(metadata.spec(), metadata.schema(), rows):
        yield part.partition_key, part.arrow_table_partition


def use_dictionary(writer: ParquetFormatWriter, columns: list[str] | bool) -> None:
    """Set which columns of a Parquet file have dictionaries, before its first rows.

    Private: ``ParquetFormatWriter._parquet_writer_kwargs``; no table property exists for it. Without it, all columns
    have dictionaries, which costs some time and space.
    """
    options = getattr(writer, "_parquet_writer_kwargs", None)
    if isinstance(options, dict):
        options["use_dictionary"] = columns
