"""What a table keeps that no reader of it needs: delete files without a data file, and files of older snapshots."""

from datetime import UTC, datetime

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table

from kafka_lake.lake.positions import ancestors, head_of


def dangling_deletes(table: Table) -> int | None:
    """Return how many delete files of a table have no data file left that they could be about. Manifests are read.

    A compaction takes them away. A delete that may be about any file of a partition counts while there is one.

    Args:
        table: As it was loaded.

    Returns:
        None if PyIceberg can't tell: of deletes by value, and of deletion vectors.
    """
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    deletes = [each for each in manifests if each.content is not ManifestContent.DATA]
    if not deletes:
        return 0
    if table.format_version > 2:
        return None
    entries = (entry for each in deletes for entry in each.fetch_manifest_entry(table.io, discard_deleted=True))
    found = {entry.data_file.file_path for entry in entries}
    try:
        needed = {each.file_path for task in table.scan().plan_files() for each in task.delete_files}
    except ValueError:
        return None
    return len(found - needed)


def holders(table: Table) -> str:
    """Return who keeps old files of a table from being removed, the oldest first; from its metadata alone.

    Files go when no snapshot has them any more: so they are held by the oldest snapshot of ``main`` that is kept, by
    tags, and by other branches. As ``tag year_end (2025-12-31 23:00), main (its oldest of 100 snapshots is of
    2026-11-21 09:00)``; empty if a table has but one snapshot.
    """
    found: list[tuple[int, str]] = []
    for name, ref in table.metadata.refs.items():
        is_tag = ref.snapshot_ref_type == "tag"
        history = list(ancestors(table, ref.snapshot_id))[: 1 if is_tag else None]
        if not history or (name == "main" and len(history) == 1):
            continue
        oldest = history[-1].timestamp_ms
        if is_tag:
            found.append((oldest, f"tag {name} ({_moment(oldest)})"))
            continue
        if name != "main" and ref.snapshot_id == head_of(table):
            continue
        kind = "main" if name == "main" else f"branch {name}"
        found.append((oldest, f"{kind} (its oldest of {len(history):,} snapshots is of {_moment(oldest)})"))
    return ", ".join(text for _, text in sorted(found))


def _moment(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}"
