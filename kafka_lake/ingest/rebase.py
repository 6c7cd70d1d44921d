"""Rebase: append a staged commit's data files again at the head that another writer published meanwhile.

That is safe if all new snapshots are of foreign writers, and the schema and partition spec are unchanged.
"""

from dataclasses import replace
from itertools import takewhile

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from kafka_lake.catalog.branches import StagingBranch, branch_name
from kafka_lake.catalog.positions import ancestors, head_of, summary_of
from kafka_lake.errors import PublishRefusedError
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.record_keys import state_of
from kafka_lake.writers.staged import Staged, StagedTable

_OWN = "kafka-lake."


def rebase(context: Context, plan: Plan, staged: Staged) -> Staged | None:
    """Stage a commit's data files on a new branch at the head of ``main``; None if that isn't safe."""
    primary, connections = staged.primary, context.connections
    table = connections.catalog.table(primary.branch.identifier)
    before = table.metadata.snapshot_by_id(primary.appended) if table else None
    if table is None or before is None or not can_rebase(plan, staged):
        return None
    head = head_of(table)
    if head is None or not _is_compatible(table, before, primary):
        return None
    state = state_of(context.spec, table)
    name = branch_name(context.run_id, head)
    branch = StagingBranch(
        spark=connections.spark(),
        catalog=connections.catalog,
        identifier=primary.branch.identifier,
        name=name,
        head=head,
    )
    branch.create()
    try:
        properties = {key: value for key, value in summary_of(before).items() if key.startswith(_OWN)}
        branch.append(primary.data_files, properties)
        snapshot = branch.written(head)
        # Files of an expired snapshot are deleted unless another snapshot has them by then: these are safe if the
        # snapshot that they came from still exists once the new one does.
        if table.refresh().metadata.snapshot_by_id(primary.appended) is None:
            raise PublishRefusedError(
                f"Table {'.'.join(primary.branch.identifier)}: branch {primary.branch.name} was removed meanwhile."
            )
    except BaseException:
        branch.discard()
        raise
    primary.branch.discard()
    rebased = replace(primary, branch=branch, snapshot=snapshot.snapshot_id, appended=snapshot.snapshot_id, state=state)
    return replace(staged, primary=rebased)


def can_rebase(plan: Plan, staged: Staged) -> bool:
    """Return whether a commit only appends rows to one table."""
    # Dead letters name the snapshot that they were staged with, and may be published already.
    appends_only = plan.appends and not plan.deletes and staged.primary.snapshot == staged.primary.appended
    return appends_only and staged.dead_letters is None and staged.merge_result is None


def _is_compatible(table: Table, before: Snapshot, primary: StagedTable) -> bool:
    """Return whether all snapshots since the commit's head are of foreign writers, and files would be the same."""
    if table.format_version == 1 or table.metadata.current_schema_id != before.schema_id:
        return False
    if any(file.spec_id != table.metadata.default_spec_id for file in primary.data_files):
        return False
    since = list(takewhile(lambda s: s.snapshot_id != primary.branch.head, ancestors(table, head_of(table))))
    is_descendant = bool(since) and since[-1].parent_snapshot_id == primary.branch.head
    return is_descendant and not any(key.startswith(_OWN) for snapshot in since for key in summary_of(snapshot))
