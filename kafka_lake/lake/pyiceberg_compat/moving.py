"""Has a table refer to copies of data files instead of the files themselves, by a snapshot of operation ``replace``.

PyIceberg knows ``overwrite``, after which others must take the rows for new ones: tables that are made of this table
would be computed again, and readers of changes would read all of it.
"""

from collections.abc import Mapping
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Summary

from kafka_lake.common.errors import TableError
from kafka_lake.common.tested_versions import is_tested


def replace_by_copies(
    transaction: Transaction, io: FileIO, branch: str, summary: Mapping[str, str], copies: Mapping[DataFile, DataFile]
) -> None:
    """Put a snapshot on a branch that has copies instead of files, as part of a transaction.

    Private: ``_OverwriteFiles._summary``, which tells the operation.

    Args:
        transaction: Of the table, not committed yet.
        io: Of the table.
        branch: Its tip has the files.
        summary: Properties of the snapshot.
        copies: The copy of each file, of the table's current partition spec.

    Raises:
        TableError: If PyIceberg is of a version that this wasn't tested with.
        ValidationException: If one of the files isn't there.
    """
    if not is_tested("pyiceberg"):
        raise TableError(
            "Files can't be moved: a snapshot that replaces files by copies is made by private parts of PyIceberg, "
            "and the version that is installed wasn't tested.",
            "Install a version of PyIceberg that kafka_lake was tested with, or take tier: out of maintenance:.",
        )
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    class _Replace(_OverwriteFiles):
        def _summary(self, *arguments: Any, **named: Any) -> Summary:
            told = super()._summary(*arguments, **named)
            return Summary(operation=Operation.REPLACE, **told.additional_properties)

    update = _Replace(
        operation=Operation.OVERWRITE,
        transaction=transaction,
        io=io,
        branch=branch,
        snapshot_properties=dict(summary),
    )
    with update as replace:
        for file, copy in copies.items():
            replace.delete_data_file(file)
            replace.append_data_file(copy)
