"""How far a table has consumed its topic: read from the table's own snapshots, and from nowhere else."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IcebergType, StructType

from kafka_lake.common.errors import TableError
from kafka_lake.common.offsets import Position

POSITION = "kafka-lake.position"
DERIVED = "kafka-lake.derived"
"""What a table of tables was made of, as `derive.record` has it."""
RUN_ID = "kafka-lake.run-id"
LOSSES = "kafka-lake.data-loss"
RESET = "kafka-lake.reset"
ADOPTED = "kafka-lake.adopted-rows"
ADOPTED_FROM = "kafka-lake.adopted-from"
ADOPTED_AT = "kafka-lake.adopted-position"
"""A property of a table: the position at which it was taken over. Rows before it don't name their records."""
RESUMED_FROM = frozenset({POSITION, DERIVED})
"""A run resumes from the newest snapshot that tells one of these."""
_ORIGIN = {"topic", "topic_id", "partition", "offset"}


@dataclass(frozen=True)
class TableState:
    """A table as the planning of one commit saw it.

    Args:
        table: The PyIceberg table, as loaded at that moment.
        head: Snapshot id of ``main``; None for a table without a snapshot.
        position: Position of the newest ancestor of ``main`` that has one.
        rebuilt: Whether the position comes from the rows, since no snapshot has it any more.
        adopted: Rows of others that the table had before the topic's first commit.
    """

    table: Table
    head: int | None
    position: Position | None
    rebuilt: bool = False
    adopted: int = 0


def ancestors(table: Table, snapshot_id: int | None) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors, newest first, as far as they have not expired."""
    # PyIceberg looks each one up by going through all: thousands of ancestors would take a second and more.
    known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    while snapshot_id is not None:
        snapshot = known.get(snapshot_id)
        if snapshot is None:
            return
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def head_of(table: Table, branch: str = "main") -> int | None:
    """Return the snapshot id that a branch points to; None if there is no such branch."""
    ref = table.metadata.refs.get(branch)
    return ref.snapshot_id if ref else None


def summary_of(snapshot: Snapshot) -> dict[str, str]:
    """Return a snapshot's summary without its operation."""
    return dict(snapshot.summary.additional_properties) if snapshot.summary else {}


def adopted_position(table: Table) -> Position | None:
    """Return where a table was taken over from another writer; None if it wasn't.

    Raises:
        TableError: If its property can't be read.
    """
    text = table.properties.get(ADOPTED_AT)
    try:
        return None if text is None else Position.from_json(text)
    except ValueError as error:
        raise TableError(
            f"Table {'.'.join(table.name())}: its property {ADOPTED_AT} can't be read ({error}).",
            "Correct the property, or upgrade kafka_lake if a newer one wrote it.",
        ) from error


def has_origin(kind: IcebergType) -> bool:
    """Return whether a column of this type says which record a row was, as metadata columns do."""
    return isinstance(kind, StructType) and {inner.name for inner in kind.fields} >= _ORIGIN


def row_count(table: Table | None) -> int:
    """Return the rows of the table's current snapshot; 0 if there is no table.

    They are what the snapshot's summary tells, which counts deleted rows as long as they are in the files. Where it
    tells nothing, which the specification allows, they are counted: from the manifests, or from the files themselves
    where some of their rows are deleted.
    """
    snapshot = table.current_snapshot() if table else None
    if table is None or snapshot is None:
        return 0
    told = summary_of(snapshot).get("total-records")
    return _counted(table, snapshot) if told is None else int(told)


def _counted(table: Table, snapshot: Snapshot) -> int:
    manifests = snapshot.manifests(table.io)
    data = [each for each in manifests if each.content is ManifestContent.DATA]
    if len(data) < len(manifests):
        # PyIceberg can't read what is deleted by its values; rows that may be deleted count then, as in summaries.
        with suppress(ValueError):
            return table.scan().count()
    return sum(
        entry.data_file.record_count
        for each in data
        for entry in each.fetch_manifest_entry(table.io, discard_deleted=True)
    )


def read_state(table: Table) -> TableState:
    """Return head and position of ``main``, from one and the same load of the metadata.

    Raises:
        TableError: If a position is there but can't be read.
    """
    head = head_of(table)
    for snapshot in ancestors(table, head):
        if text := summary_of(snapshot).get(POSITION):
            try:
                return TableState(table, head, Position.from_json(text))
            except ValueError as error:
                raise TableError(
                    f"Table {'.'.join(table.name())}: snapshot {snapshot.snapshot_id} carries a {POSITION} that "
                    f"can't be read ({error}).",
                    "Roll the table back to an older snapshot, or upgrade kafka_lake if a newer one wrote it.",
                ) from error
    return TableState(table, head, None)
