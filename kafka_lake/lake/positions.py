"""How far a table has consumed its topic: read from the table's own snapshots, and from nowhere else.

A snapshot has the positions of all topics of the table. A commit is of one topic, and carries on the positions of the
others: its branch starts at the head that those were read from, and it is published only if that is still the head.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IcebergType, StructType

from kafka_lake.common.offsets import Position, Positions, positions_from_json, positions_to_json
from kafka_lake.errors import TableError

POSITION = "kafka-lake.position"
"""In a snapshot's summary: how far the table has consumed each of its topics."""
TOPIC = "kafka-lake.topic"
"""In a snapshot's summary: the topic whose commit it is."""
DERIVED = "kafka-lake.derived"
"""What a table of tables was made of, as `derive.upstream` has it."""
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
        position: Position in the run's topic, of the newest ancestor of ``main`` that has one.
        rebuilt: Whether the position comes from the rows, since no snapshot has it any more.
        adopted: Rows of others that the table had before the topic's first commit.
        others: Positions in the table's other topics, from the same snapshot.
    """

    table: Table
    head: int | None
    position: Position | None
    rebuilt: bool = False
    adopted: int = 0
    others: Positions = field(default_factory=dict)

    @property
    def positions(self) -> Positions:
        """Return the positions in all topics of the table."""
        return {**self.others, **({self.position.identity.topic: self.position} if self.position else {})}


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


def follows_another(snapshot: Snapshot) -> bool:
    """Return whether a snapshot was committed to a table that had one before, which may have expired since.

    The parent alone doesn't show it: PyIceberg takes a parent that expires out of its child. Snapshots of format
    version 1 have no sequence number, and show nothing after that.
    """
    return snapshot.parent_snapshot_id is not None or (snapshot.sequence_number or 0) > 1


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


def live_row_count(table: Table | None) -> int:
    """Return how many rows a reader finds in the table's current snapshot, as its summary tells; 0 if there is none.

    Rows that are deleted by their position are left out. How many are deleted by their values no summary tells: of a
    table with such deletes, it is how many there are at most.
    """
    snapshot = table.current_snapshot() if table else None
    told = summary_of(snapshot) if snapshot else {}
    # Rows that are counted one by one are none of the deleted ones.
    deleted = told.get("total-position-deletes", "0") if "total-records" in told else "0"
    return max(row_count(table) - int(deleted), 0)


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


def positions_in(summary: Mapping[str, str]) -> Positions:
    """Return the positions that a snapshot's summary carries; none if it has none.

    Raises:
        ValueError: If they can't be read.
    """
    return positions_from_json(summary[POSITION]) if POSITION in summary else {}


def positions_summary(own: Position, others: Positions) -> dict[str, str]:
    """Return what a snapshot's summary has of positions.

    Args:
        own: Of the topic whose commit it is.
        others: Of the table's other topics.
    """
    topic = own.identity.topic
    return {POSITION: positions_to_json({**others, topic: own}.values()), TOPIC: topic}


def position_in(found: Positions, topic: str, topics: Collection[str]) -> Position | None:
    """Return a topic's position among those of a table.

    Args:
        topics: The topics that the table is meant for. If it has positions of none of them, the position is one of
            another topic, which a plan refuses: the table must not be taken for an empty one.
    """
    is_foreign = bool(found) and not found.keys() & {topic, *topics}
    return next(iter(found.values())) if is_foreign else found.get(topic)


def read_positions(table: Table) -> Positions:
    """Return the positions that the newest ancestor of ``main`` with any has; none if none has.

    Raises:
        TableError: If positions are there but can't be read.
    """
    for snapshot in ancestors(table, head_of(table)):
        try:
            found = positions_in(summary_of(snapshot))
        except ValueError as error:
            raise TableError(
                f"Table {'.'.join(table.name())}: snapshot {snapshot.snapshot_id} carries a {POSITION} that "
                f"can't be read ({error}).",
                "Roll the table back to an older snapshot, or upgrade kafka_lake if a newer one wrote it.",
            ) from error
        if found:
            return found
    return {}


def read_state(table: Table, topic: str | None = None, topics: Collection[str] = ()) -> TableState:
    """Return head and positions of ``main``, from one and the same load of the metadata.

    Args:
        topic: The topic whose position is meant; None for that of the table's only topic.
        topics: The topics that the table is meant for, as for `position_in`.

    Raises:
        TableError: If a position is there but can't be read.
    """
    found = read_positions(table)
    if topic is None:
        own = next(iter(found.values())) if len(found) == 1 else None
    else:
        own = position_in(found, topic, topics)
    return TableState(
        table, head_of(table), own, others={name: each for name, each in found.items() if each is not own}
    )
