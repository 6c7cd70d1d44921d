"""What a staged change of files comes to, so that it can be made once more at a head that others have moved to.

Rows that were written again needn't be written a second time because somebody appended others meanwhile.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from kafka_lake.common.errors import PublishRefusedError
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.positions import ancestors, head_of


@dataclass(frozen=True)
class ReplacedFiles:
    """Data files that go, and those that come instead.

    Args:
        gone: Files of the head that the change was staged at.
        new: Files that were written for it.
    """

    gone: tuple[DataFile, ...]
    new: tuple[DataFile, ...]


def replaced_files(table: Table, head: int, tip: int) -> ReplacedFiles | None:
    """Return how a staged snapshot differs from the head that it was staged at; None if not by data files alone.

    Args:
        table: Has both snapshots.
        head: The head.
        tip: The staged snapshot.
    """
    before, after = data_files(table, head), data_files(table, tip)
    if before is None or after is None or table.format_version != 2:
        return None
    gone = tuple(file for path, file in before.items() if path not in after)
    return ReplacedFiles(gone, tuple(file for path, file in after.items() if path not in before))


def data_files(table: Table, snapshot: int) -> dict[str, DataFile] | None:
    """Return a snapshot's data files by path; None if it has delete files too, or is gone."""
    known = table.metadata.snapshot_by_id(snapshot)
    manifests = known.manifests(table.io) if known else []
    if known is None or any(each.content is not ManifestContent.DATA for each in manifests):
        return None
    entries = (entry for each in manifests for entry in each.fetch_manifest_entry(table.io, discard_deleted=True))
    return {entry.data_file.file_path: entry.data_file for entry in entries}


def can_be_made_at(table: Table, change: ReplacedFiles, before: int) -> bool:
    """Return whether a change that was staged at one head of ``main`` means the same at the one that it has now.

    Args:
        table: As it is now.
        change: What was staged.
        before: The head that it was staged at: what came since has only added to it.
    """
    head = head_of(table)
    now = data_files(table, head) if head is not None else None
    follows = any(each.snapshot_id == before for each in ancestors(table, head))
    same_spec = all(each.spec_id == table.metadata.default_spec_id for each in change.new)
    return follows and same_spec and now is not None and all(each.file_path in now for each in change.gone)


def stage_once_more(
    branch: StagingBranch, change: ReplacedFiles, summary: Mapping[str, str], staged: tuple[StagingBranch, int]
) -> int:
    """Make a change on a branch at the new head, and return the snapshot.

    Args:
        branch: Was made at the new head.
        change: What was staged before.
        summary: Properties of the snapshot.
        staged: The branch where it was, and the snapshot that keeps the new files alive.

    Raises:
        PublishRefusedError: If files of the change are gone.
    """
    before, tip = staged
    name = ".".join(branch.identifier)
    try:
        branch.replace_files(change.gone, change.new, summary)
    except ValidationException as error:
        raise PublishRefusedError(f"Table {name}: its files were replaced meanwhile.") from error
    written = branch.written(branch.head).snapshot_id
    # Who expires a snapshot deletes its files after that, unless another one has them by then.
    if branch.staged is None or branch.staged.refresh().metadata.snapshot_by_id(tip) is None:
        raise PublishRefusedError(f"Table {name}: branch {before.name} was taken away meanwhile.")
    return written
