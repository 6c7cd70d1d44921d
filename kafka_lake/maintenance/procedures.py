"""Iceberg's procedures: compaction and the expiry of snapshots. Rows, and the table's position, stay as they are."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from kafka_lake.catalog.history import keep_losses
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import summary_of
from kafka_lake.errors import TableError
from kafka_lake.maintenance.policy import COMPACTED, Limits, expirable

# Compacted files soon exceed this size, so that later compactions leave them alone.
_SMALL_FILE_BYTES = 32 << 20
_OPTIONS = {
    "min-input-files": "2",
    # Less than the share at which the policy asks for a compaction.
    "delete-ratio-threshold": "0.1",
    # Groups are written one after the other, and a few at a time committed: if a process dies, or another writer
    # interferes, those stay done.
    "max-file-group-size-bytes": str(512 << 20),
    "max-concurrent-file-group-rewrites": "1",
    "partial-progress.enabled": "true",
    # Otherwise deletes without data files stay for ever: https://github.com/apache/iceberg/issues/12838.
    "remove-dangling-deletes": "true",
}


@dataclass(frozen=True)
class Compacted:
    """What a compaction did.

    Args:
        size: Bytes that were read.
    """

    before: int
    after: int
    size: int
    deletes: int


def compact(spark: Any, catalog: LakeCatalog, identifier: tuple[str, str]) -> Compacted:
    """Rewrite small files, and files with many deleted rows, by Iceberg's procedures, in the table's sort order.

    The remaining position deletes are merged too: a table with updates gets some with each commit.
    """
    table = catalog.table(identifier)
    options = {**_OPTIONS, "min-file-size-bytes": str(_small(table))}
    strategy = "'sort'" if table is not None and table.sort_order().fields else "'binpack'"
    deletes = _delete_files(table)
    rewritten = _rewrite(spark, catalog, identifier, {"options": _map(options), "strategy": strategy})
    table = catalog.table(identifier)
    if _delete_files(table) > 1:
        spark.sql(
            catalog.call("rewrite_position_delete_files", identifier, options="map('min-input-files', '2')")
        ).collect()
    _remember(catalog, identifier)
    return Compacted(
        before=rewritten["rewritten_data_files_count"],
        after=rewritten["added_data_files_count"],
        size=rewritten["rewritten_bytes_count"],
        deletes=max(0, deletes - _delete_files(catalog.table(identifier))),
    )


def _rewrite(spark: Any, catalog: LakeCatalog, identifier: tuple[str, str], arguments: Mapping[str, str]) -> Any:
    result = spark.sql(catalog.call("rewrite_data_files", identifier, **arguments)).collect()[0]
    if failed := result["failed_data_files_count"]:
        raise TableError(
            f"Table {'.'.join(identifier)}: {failed} files could not be compacted: another writer deleted some of "
            "their rows during the compaction, or a file can't be read. No rows changed.",
            "Let only one writer at a time change rows; the next compaction tries these files again. If it fails "
            "too, Spark's log has the reason.",
        )
    return result


def _map(options: Mapping[str, str]) -> str:
    pairs = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
    return f"map({pairs})"


def _small(table: Table | None) -> int:
    """Return the size below which a file is small; Iceberg demands less than the target size of new files."""
    target = table.properties.get("write.target-file-size-bytes", "") if table else ""
    return min(_SMALL_FILE_BYTES, int(target) * 3 // 4) if target.isdigit() else _SMALL_FILE_BYTES


def _remember(catalog: LakeCatalog, identifier: tuple[str, str]) -> None:
    table = catalog.table(identifier)
    head = table.current_snapshot() if table else None
    if table is None or head is None or not head.sequence_number:
        return
    # If another commit comes first, the compaction's own snapshot shows it.
    with suppress(CommitFailedException), table.transaction() as transaction:
        transaction.set_properties({COMPACTED: str(head.sequence_number)})


def _delete_files(table: Table | None) -> int:
    head = table.current_snapshot() if table else None
    return int(summary_of(head).get("total-delete-files", 0)) if head else 0


def expire(spark: Any, catalog: LakeCatalog, identifier: tuple[str, str], limits: Limits) -> int:
    """Expire the snapshots of `expirable` by Iceberg's procedure, and return how many were removed."""
    table = catalog.table(identifier)
    expiring = expirable(table, limits) if table else None
    if table is None or expiring is None or not expiring.times:
        return 0
    before = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    keep_losses(table, expiring.times[-1])
    # Iceberg keeps the snapshot of that very moment.
    until = datetime.fromtimestamp((expiring.times[-1] + 1) / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    arguments = {"older_than": f"TIMESTAMP '{until}'", "retain_last": str(expiring.kept), "stream_results": "true"}
    spark.sql(catalog.call("expire_snapshots", identifier, **arguments)).collect()
    table = catalog.table(identifier)
    return len(before - {snapshot.snapshot_id for snapshot in table.metadata.snapshots}) if table else 0
