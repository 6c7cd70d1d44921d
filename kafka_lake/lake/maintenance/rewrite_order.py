"""In which order a compaction writes rows: that of the table, or one that is asked for. Pure."""

from collections.abc import Sequence

from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortDirection
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestamptzType,
)

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.catalog import literal, quoted, quoted_path
from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake.lake.tables.layout import parse_sort_field

# Of these Iceberg knows how to interleave bits: spark/actions/SparkZOrderUDF.java.
_INTERLEAVED = (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestamptzType,
)


def rewrite_arguments(schema: Schema, policy: Maintenance | None, ordered: bool, name: str) -> dict[str, str]:
    """Return the arguments of ``rewrite_data_files`` that tell the order, as SQL.

    Args:
        schema: The table's.
        policy: What is asked for; None for the table's own order.
        ordered: Whether the table has an order of its own.
        name: Of the table, for messages.

    Raises:
        ConfigurationError: If a column isn't there, or can't be ordered so.
    """
    if policy is not None and policy.compact_z_order:
        for column in policy.compact_z_order:
            kind = schema.find_field(_known(schema, column, "compact_z_order", name)).field_type
            if not isinstance(kind, _INTERLEAVED):
                raise ConfigurationError(
                    f"Table {name}: maintenance: compact_z_order: {column} is of type {kind}, which Iceberg can't "
                    "order so.",
                    "Name columns of numbers, texts, dates or timestamps with a time zone; decimals aren't among them.",
                )
        columns = ", ".join(quoted(each) for each in policy.compact_z_order)
        return {"strategy": "'sort'", "sort_order": literal(f"zorder({columns})")}
    if policy is not None and policy.compact_sort:
        return {"strategy": "'sort'", "sort_order": literal(_sorted_by(schema, policy.compact_sort, name))}
    return {"strategy": "'sort'" if ordered else "'binpack'"}


def _sorted_by(schema: Schema, texts: Sequence[str], name: str) -> str:
    parts = []
    for column, direction in map(parse_sort_field, texts):
        path = quoted_path(_known(schema, column, "compact_sort", name), [field.name for field in schema.fields])
        parts.append(f"{path} {'DESC NULLS LAST' if direction is SortDirection.DESC else 'ASC NULLS FIRST'}")
    return ", ".join(parts)


def _known(schema: Schema, column: str, setting: str, name: str) -> str:
    try:
        schema.find_field(column)
    except ValueError as error:
        raise ConfigurationError(
            f"Table {name}: maintenance: {setting}: {column} is no column of the table.",
            f"Its columns are {', '.join(each.name for each in schema.fields)}.",
        ) from error
    return column
