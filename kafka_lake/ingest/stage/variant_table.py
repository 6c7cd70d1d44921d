"""Tables with a variant column: Iceberg's format version 3, which Spark can make and PyIceberg can't yet."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform, TruncateTransform
from pyspark.sql import types as T

from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog, literal, quoted, quoted_path
from kafka_lake.lake.layout import parse_partition_field, parse_sort_field
from kafka_lake.lake.pyiceberg_compat.variant import require_variants
from kafka_lake.lake.tables import location_of, table_properties
from kafka_lake.spark.ddl import ddl


def has_variant(columns: T.StructType) -> bool:
    """Return whether a table of these columns has a variant among them."""
    return any(isinstance(f.dataType, T.VariantType) for f in columns)


def without_variants(columns: T.StructType) -> T.StructType:
    """Return the columns that Arrow and PyIceberg have types for."""
    return T.StructType([f for f in columns if not isinstance(f.dataType, T.VariantType)])


def create_variant_table(
    spec: TopicTable, connections: Connections, columns: T.StructType, properties: Mapping[str, str]
) -> None:
    """Create a topic's table with a first snapshot for branches to start from, unless it is there.

    Args:
        spec: Partition spec, sort order and properties.
        properties: Of the table, besides those of the settings.

    Raises:
        ConfigurationError: If this PyIceberg couldn't load it. Nothing is created then.
    """
    require_variants()
    connections.catalog.ensure_namespace(spec.namespace)
    spark, name = connections.spark(), connections.catalog.spark_name(spec.identifier)
    ours = {"write.distribution-mode": "hash" if spec.partition_by else "none"}
    given = {**table_properties(ours, {**properties, **spec.table_properties}), "format-version": "3"}
    listed = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in given.items())
    declared = ", ".join(f"{quoted(f.name)} {ddl(f.dataType)}" for f in columns)
    names = columns.fieldNames()
    by = ", ".join(_partition(text, names) for text in spec.partition_by)
    partitioned = f" PARTITIONED BY ({by})" if by else ""
    location = location_of(connections.catalog, spec.identifier, spec.table_properties)
    at = f" LOCATION {literal(location)}" if location else ""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({declared}) USING iceberg{partitioned}{at} TBLPROPERTIES ({listed})")
    if spec.sort_by:
        fields = map(parse_sort_field, spec.sort_by)
        order = ", ".join(f"{quoted_path(column, names)} {direction.value}" for column, direction in fields)
        spark.sql(f"ALTER TABLE {name} WRITE LOCALLY ORDERED BY {order}")
    table = connections.catalog.table(spec.identifier)
    if table is not None and table.current_snapshot() is None:
        append_nothing(connections, spec.identifier)


class Writes(Protocol):
    """What has a catalog and a Spark."""

    @property
    def catalog(self) -> LakeCatalog:
        """Where the tables are."""

    @property
    def spark(self) -> Callable[[], Any]:
        """Gives the session."""


def append_nothing(connections: Writes, identifier: tuple[str, str]) -> None:
    """Give a table its first snapshot, by Spark, which writes what PyIceberg can't."""
    name = connections.catalog.spark_name(identifier)
    connections.spark().table(name).limit(0).writeTo(name).append()


def _partition(text: str, names: Collection[str]) -> str:
    column, transform = parse_partition_field(text)
    return _call(quoted_path(column, names), transform)


def _call(column: str, transform: Transform[object, object]) -> str:
    if isinstance(transform, IdentityTransform):
        return column
    if isinstance(transform, BucketTransform):
        return f"bucket({transform.num_buckets}, {column})"
    if isinstance(transform, TruncateTransform):
        return f"truncate({transform.width}, {column})"
    return f"{transform}s({column})"
