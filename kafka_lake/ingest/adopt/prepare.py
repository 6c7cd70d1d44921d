"""What an adopted table gets beside its position: the metadata column, and the note of where it was taken over."""

from pyspark.sql import types as T

from kafka_lake.common.errors import TableError
from kafka_lake.common.offsets import Position
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decode.rows import METADATA
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import ADOPTED_AT
from kafka_lake.lake.schema import needed_changes
from kafka_lake.lake.tables.create import schema_of
from kafka_lake.lake.tables.schema_update import apply_changes
from kafka_lake.spark.compat.arrow_types import to_arrow_schema


def prepare_table(spec: TopicTable, connections: Connections, position: Position) -> None:
    """Add the metadata column if the table lacks it, and note the position among its properties.

    The note stays when snapshots expire: rows before it don't name their records, so they must never be read again.
    Nothing of it concerns readers, nor a table whose position isn't written afterwards.

    Args:
        spec: The topic and its table.
        connections: The catalog.
        position: Where the table resumes.

    Raises:
        TableError: If the table is gone.
    """
    table = connections.catalog.table(spec.identifier)
    if table is None:
        raise TableError(f"Table {'.'.join(spec.identifier)} is gone.", "Nothing was changed.")
    with table.transaction() as transaction:
        transaction.set_properties({ADOPTED_AT: position.to_json()})
    if spec.metadata_column is None:
        return
    # Whatever evolution: says: who takes a table over wants its rows told apart.
    target = schema_of(to_arrow_schema(T.StructType([T.StructField(spec.metadata_column, METADATA)])))
    apply_changes(table, target, needed_changes(table.schema(), target))
