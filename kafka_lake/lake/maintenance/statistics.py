"""Statistics: how many distinct values columns have, in a Puffin file that query engines plan joins by."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.catalog import LakeCatalog, literal
from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake.lake.positions import head_of

STATISTICS_COMPUTED = "kafka-lake.statistics-computed"
"""A property of a table: when its statistics were computed last, in milliseconds since 1970."""
_PAUSE_MS = 86_400_000


def why_compute(table: Table, policy: Maintenance, now_ms: int) -> str:
    """Return why a table's statistics shall be computed; empty if they needn't yet. Pure.

    Args:
        table: As it was loaded.
        policy: What is asked for.
        now_ms: The time, in milliseconds since 1970.
    """
    head = head_of(table)
    if not policy.statistics or head is None:
        return ""
    if any(each.snapshot_id == head for each in table.metadata.statistics):
        return ""
    last = table.properties.get(STATISTICS_COMPUTED, "")
    # A clock that was ahead is no reason to wait for it.
    if last.isdigit() and 0 <= now_ms - int(last) < _PAUSE_MS:
        return ""
    return f"statistics of {', '.join(policy.statistics)}"


def compute_statistics(
    spark: Any, catalog: LakeCatalog, identifier: tuple[str, str], columns: Sequence[str], now_ms: int
) -> None:
    """Count the distinct values of columns, by Iceberg's own procedure. It reads these columns of the whole table.

    Args:
        spark: Runs the procedure (https://iceberg.apache.org/docs/latest/spark-procedures/#compute_table_stats).
        catalog: Where the table is.
        identifier: Namespace and name of the table.
        columns: Their names.
        now_ms: The time, in milliseconds since 1970: once a day is enough.

    Raises:
        ConfigurationError: If the table lacks one of the columns, or it is within a struct.
        Exception: Whatever Spark raises. The table has the statistics that it had.
    """
    table = catalog.table(identifier)
    if table is None:
        return
    known = [each.name for each in table.schema().fields if each.field_type.is_primitive]
    if missing := [each for each in columns if each not in known]:
        raise ConfigurationError(
            f"Table {'.'.join(identifier)}: maintenance: statistics: {missing[0]} is no column of the table whose "
            "values can be counted.",
            f"Those are {', '.join(known)}.",
        )
    names = ", ".join(literal(each) for each in columns)
    spark.sql(catalog.call("compute_table_stats", identifier, columns=f"array({names})")).collect()
    # Somebody else's commit in this very moment: then the next run counts once more.
    with suppress(CommitFailedException), table.refresh().transaction() as transaction:
        transaction.set_properties({STATISTICS_COMPUTED: str(now_ms)})
