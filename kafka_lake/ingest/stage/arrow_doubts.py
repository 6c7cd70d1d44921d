"""Whether a batch can go by Arrow: what Spark alone can decode or write, goes by Spark."""

from urllib.parse import urlsplit

from pyiceberg.schema import sanitize_column_names
from pyiceberg.table import Table
from pyiceberg.transforms import UnknownTransform, VoidTransform

from kafka_lake.ingest.decode.decoder import Decoder
from kafka_lake.ingest.decode.target import Target
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import TableState

_SCHEMES = ("", "file", "s3", "s3a", "s3n", "gs", "abfs", "abfss")


def why_not(spec: TopicTable, decoder: Decoder, target: Target, state: TableState) -> str:
    """Return why a batch can't go by Arrow, empty if it can. Pure.

    Args:
        target: The columns to decode into.
        state: The table with the columns that it will be written with.
    """
    if spec.is_keyed:
        return "changes are merged by Spark"
    if spec.transform is not None:
        return "rows are transformed"
    return why_not_written(state.table)


def why_not_written(table: Table) -> str:
    """Return why Arrow can't write a table's files, empty if it can. Pure."""
    metadata = table.metadata
    properties = metadata.properties
    if metadata.format_version != 2 or properties.get("write.format.default", "parquet") != "parquet":
        return "the table's format is written by Spark only"
    if any(name.startswith(("write.parquet.bloom-filter", "encryption.")) for name in properties):
        return "the table's properties ask for what Spark alone does"
    if sanitize_column_names(table.schema()) != table.schema():
        return "a column's name is written by Spark only"
    if any(isinstance(f.transform, UnknownTransform | VoidTransform) for f in metadata.spec().fields):
        return "the partition transform is Spark's"
    if urlsplit(table.location()).scheme not in _SCHEMES:
        return "the file system is Spark's"
    return ""
