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
from kafka_lake.lake.catalog import literal, quoted
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


def order_problem(policy: Maintenance) -> str:
    """Return why the order that is asked for can't be, whatever the table; empty if it can."""
    if policy.compact_sort and policy.compact_z_order:
        return "maintenance: compact_sort and compact_z_order ask for two orders. Write one of them."
    if (policy.compact_sort or policy.compact_z_order) and policy.compact_every is None:
        asked = "compact_sort" if policy.compact_sort else "compact_z_order"
        return f"maintenance: {asked} has no effect with compact_every: null. Leave one of them out."
    for text in policy.compact_sort:
        try:
            parse_sort_field(text)
        except ConfigurationError:
            return f"maintenance: compact_sort: {text!r} is not understood. Write `column` or `column desc`."
    if len(policy.compact_z_order) == 1:
        return "maintenance: compact_z_order needs two columns at least. For one, write compact_sort."
    if nested := [name for name in policy.compact_z_order if "." in name]:
        return f"maintenance: compact_z_order: {nested[0]} is within a struct, where Iceberg can't order it so."
    return ""


def columns_of(policy: Maintenance) -> dict[str, list[str]]:
    """Return the columns that the settings name, by setting: those that a compaction needs, and a count of values."""
    return {
        "compact_sort": [parse_sort_field(text)[0] for text in policy.compact_sort],
        "compact_z_order": list(policy.compact_z_order),
        "statistics": list(policy.statistics),
    }


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
        path = ".".join(quoted(each) for each in _known(schema, column, "compact_sort", name).split("."))
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
