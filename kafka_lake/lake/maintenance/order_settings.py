"""What the settings of maintenance say of the order of rows, and which columns they name. Pure."""

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake.lake.tables.layout import parse_sort_field


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
