"""Fields of records that a topic's settings leave out of its table: `except`."""

from collections.abc import Sequence

from pyiceberg.table import Table
from pyspark.sql import types as T

from kafka_lake.catalog.tables import sources_of
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.spec.topic_table import TopicTable


def without_excepted(fields: T.StructType, spec: TopicTable) -> T.StructType:
    """Return fields without those that the settings leave out."""
    if not spec.except_columns:
        return fields
    return T.StructType([field for field in fields if field.name not in spec.except_columns])


def refuse_excepted(spec: TopicTable, table: Table) -> None:
    """Stop a run whose table has a column that the settings leave out: its values would stay as they are, or go."""
    if not spec.except_columns:
        return
    sources = sources_of(table)
    found = [
        name
        for name in (field.name for field in table.schema().fields)
        if name in spec.except_columns or sources.get(name) in spec.except_columns
    ]
    if found:
        name = ".".join(spec.identifier)
        drops = "; ".join(f"ALTER TABLE {name} DROP COLUMN {each}" for each in found)
        raise TableError(
            f"Table {name} has the columns {', '.join(found)}, which exclude_fields: leaves out.",
            f"Drop them ({drops}), or take them out of exclude_fields:.",
        )


def refuse_excepted_key(spec: TopicTable, key: Sequence[str]) -> None:
    """Stop a run that leaves out a column of the key, which the records' keys have."""
    if found := [name for name in key if name in spec.except_columns]:
        raise ConfigurationError(
            f"exclude_fields: topic {spec.topic} has {', '.join(found)} in its records' keys, which tell rows apart.",
            "Take that out of exclude_fields:, or name other columns with write: key:.",
        )
