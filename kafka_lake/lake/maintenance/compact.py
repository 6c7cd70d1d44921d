"""Compact: many small files become few; rows, and the position that the table's history carries, stay as they are."""

from itertools import takewhile
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import POSITION, ancestors, head_of, summary_of

# What a compaction has made is beyond this size soon, and no later one writes it again.
_SMALL_FILE_BYTES = 32 << 20


def commits_since_compaction(table: Table | None) -> int:
    """Return how many commits of ours ``main`` has since its last compaction, as far as they have not expired."""
    history = ancestors(table, head_of(table)) if table else iter(())
    return sum(POSITION in summary_of(each) for each in takewhile(lambda each: not _compacts(each), history))


def _compacts(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def compact(spark: Any, catalog: LakeCatalog, identifier: tuple[str, str]) -> tuple[int, int]:
    """Rewrite the small files of a table's partitions that have several of them, by Iceberg's own procedure.

    Args:
        spark: Runs the procedure (https://iceberg.apache.org/docs/latest/spark-procedures/#rewrite_data_files).
        catalog: Where the table is.
        identifier: Namespace and name of the table.

    Returns:
        How many files were rewritten, and how many they became.

    Raises:
        Exception: Whatever Spark raises, as when ``main`` has lost files of the rewritten ones meanwhile. The table is
            as it was then.
    """
    table = catalog.table(identifier)
    ordered = table is not None and bool(table.sort_order().fields)
    statement = catalog.call(
        "rewrite_data_files",
        identifier,
        strategy="'sort'" if ordered else "'binpack'",
        options=f"map('min-file-size-bytes', '{_SMALL_FILE_BYTES}', 'min-input-files', '2')",
    )
    result = spark.sql(statement).collect()[0]
    return result["rewritten_data_files_count"], result["added_data_files_count"]
