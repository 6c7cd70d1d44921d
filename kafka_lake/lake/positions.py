"""How far a table has consumed its topic: read from the table's own snapshots, and from nowhere else.

A table may have several topics. A commit is of one of them: its snapshot has that topic's position, and carries on the
others'. Its branch starts at the head that those were read from, and it is published only if that is still the head.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
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
OTHERS = "kafka-lake.other-positions"
"""In a snapshot's summary: a JSON list of the newest positions of the table's other topics."""
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
        others: Positions of other topics that have rows in the table, from the same snapshot.
    """

    table: Table
    head: int | None
    position: Position | None
    rebuilt: bool = False
    adopted: int = 0
    others: tuple[Position, ...] = ()


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


def positions_in(summary: Mapping[str, str]) -> tuple[Position, ...]:
    """Return the positions that a snapshot's summary carries, its own topic's first; none if it has none.

    Raises:
        ValueError: If they can't be read.
    """
    if not (text := summary.get(POSITION)):
        return ()
    own = Position.from_json(text)
    others = json.loads(summary.get(OTHERS) or "[]")
    if not isinstance(others, list):
        raise ValueError(f"not a list of positions: {summary[OTHERS]!r}")
    return (own, *(Position.from_json(json.dumps(each)) for each in others))


def positions_summary(own: Position, others: Iterable[Position]) -> dict[str, str]:
    """Return what a snapshot's summary has of positions.

    Args:
        own: Of the topic whose commit it is.
        others: Of the table's other topics; one of the same topic is left out.
    """
    kept = {each.identity.topic: each for each in others if each.identity.topic != own.identity.topic}
    found = {POSITION: own.to_json()}
    if kept:
        found[OTHERS] = f"[{','.join(kept[topic].to_json() for topic in sorted(kept))}]"
    return found


def of_topic(
    found: tuple[Position, ...], topic: str | None, shared: bool
) -> tuple[Position | None, tuple[Position, ...]]:
    """Return a topic's position among those of a snapshot, and the others.

    Args:
        found: As `positions_in` gave them.
        topic: The topic's name; None for the topic whose commit the snapshot was.
        shared: Whether the table is meant for several topics. If it isn't, and the topic has no position there, the
            position is that of the snapshot's own topic: nobody may take the table for an empty one.
    """
    own = next((each for each in found if topic is None or each.identity.topic == topic), None)
    if own is None and not shared and found:
        own = found[0]
    return own, tuple(each for each in found if each is not own)


def carried_positions(table: Table) -> dict[str, str]:
    """Return what the newest snapshot with a position tells of it, for one that says the same."""
    told = (summary_of(each) for each in ancestors(table, head_of(table)))
    newest = next((each for each in told if each.keys() & RESUMED_FROM), {})
    return {key: newest[key] for key in (*sorted(RESUMED_FROM), OTHERS) if key in newest}


def read_positions(table: Table) -> tuple[Position, ...]:
    """Return the positions that the newest ancestor of ``main`` with any has, its own topic's first; none if none has.

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
    return ()


def read_state(table: Table, topic: str | None = None, shared: bool = False) -> TableState:
    """Return head and position of ``main``, from one and the same load of the metadata.

    Args:
        table: As it was loaded.
        topic: The topic whose position is meant; None for that of the newest commit.
        shared: Whether the table is meant for several topics; `of_topic` says what that changes.

    Raises:
        TableError: If a position is there but can't be read.
    """
    own, others = of_topic(read_positions(table), topic, shared)
    return TableState(table, head_of(table), own, others=others)
