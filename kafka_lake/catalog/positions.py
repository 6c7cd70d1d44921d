"""How far a table has consumed its topics, and who made its snapshots: read from the table's own snapshots alone.

A snapshot has the positions of all topics of the table. A commit is of one topic and repeats the positions of the other
topics: its branch starts at the head that they were read from, and it is published only if that is still the head.
"""

import getpass
import os
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IcebergType, StructType

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.offsets import OffsetRange, Position, Positions, positions_from_json, positions_to_json
from kafka_lake.errors import TableError
from kafka_lake.spec.topic_table import TopicTable

POSITION = "kafka-lake.position"
"""In a snapshot's summary: how far the table has consumed each of its topics."""
TOPIC = "kafka-lake.topic"
"""In a snapshot's summary: the topic whose commit it is."""
DERIVED = "kafka-lake.derived"
"""In the summary of a derived table's snapshot: the upstream snapshots, as `derive.upstream` has them."""
RUN_ID = "kafka-lake.run-id"
LOSSES = "kafka-lake.data-loss"
RESET = "kafka-lake.reset"
ADOPTED = "kafka-lake.adopted-rows"
ADOPTED_FROM = "kafka-lake.adopted-from"
ADOPTED_AT = "kafka-lake.adopted-position"
"""A table property: the position at which it was taken over. Rows before it don't name their records."""
CREATED = "kafka-lake.created"
"""A table property: kafka_lake created the table."""
KIND = "kafka-lake.kind"
"""What a commit is for, as `Plan.kind` has it."""
OFFSETS = "kafka-lake.offsets"
"""The offsets of a commit that leaves the position where it is: ``0:5-9,1:0-3``, both ends inclusive."""
REMOVES = "kafka-lake.removes"
"""The snapshot that deletes the rows that this one replaces."""
KEEPS = "kafka-lake.keeps"
"""The snapshot after which this one restores deleted rows that Kafka no longer has."""
HOST = "kafka-lake.host"
USER = "kafka-lake.user"
AUTHOR = (RUN_ID, KIND, HOST, USER)
RECONCILE = "reconcile"
"""The kind of a commit that makes a dead-letter table fit its topic's table."""
EXPIRE_ROWS = "expire_rows"
"""The kind of a commit that deletes old rows."""
RESUMED_FROM = frozenset({POSITION, DERIVED})
"""A run resumes from the newest snapshot that has one of these."""
_ORIGIN = {"topic", "topic_id", "partition", "offset"}


@dataclass(frozen=True)
class TableState:
    """A table when a commit was planned.

    Args:
        head: Snapshot id of ``main``; None for a table without a snapshot.
        position: Position in the run's topic, of the newest ancestor of ``main`` that has one.
        adopted: Rows that the table had before it was taken over.
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
    # PyIceberg searches all snapshots for each one: thousands of ancestors would take seconds.
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    while snapshot_id is not None:
        snapshot = snapshots.get(snapshot_id)
        if snapshot is None:
            return
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def follows_another(snapshot: Snapshot) -> bool:
    """Return whether the table had an earlier snapshot, which may have expired.

    PyIceberg removes an expired parent from its child, so the sequence number counts too; format version 1 has none.
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
    """Return where a table was taken over from another writer; None if it wasn't."""
    text = table.properties.get(ADOPTED_AT)
    try:
        return None if text is None else Position.from_json(text)
    except ValueError as error:
        raise TableError(
            f"Table {'.'.join(table.name())}: its property {ADOPTED_AT} can't be read ({error}).",
            "Correct the property, or upgrade kafka_lake if a newer version wrote it.",
        ) from error


def has_origin(kind: IcebergType) -> bool:
    """Return whether a column of this type has a record's topic, partition and offset, as metadata columns do."""
    return isinstance(kind, StructType) and {inner.name for inner in kind.fields} >= _ORIGIN


def row_count(table: Table | None) -> int:
    """Return the rows of the table's current snapshot, deleted ones in its files included; 0 if there is no table.

    If the summary lacks the number, which the specification allows, rows are counted by manifests or files.
    """
    snapshot = table.current_snapshot() if table else None
    if table is None or snapshot is None:
        return 0
    total = summary_of(snapshot).get("total-records")
    return _counted(table, snapshot) if total is None else int(total)


def live_row_count(table: Table | None) -> int:
    """Return how many rows a reader finds, by the snapshot's summary; an upper bound with equality deletes."""
    snapshot = table.current_snapshot() if table else None
    summary = summary_of(snapshot) if snapshot else {}
    # Without the total, rows were counted one by one, without deleted ones.
    deleted = summary.get("total-position-deletes", "0") if "total-records" in summary else "0"
    return max(row_count(table) - int(deleted), 0)


def _counted(table: Table, snapshot: Snapshot) -> int:
    manifests = snapshot.manifests(table.io)
    data = [manifest for manifest in manifests if manifest.content is ManifestContent.DATA]
    if len(data) < len(manifests):
        # PyIceberg can't read equality deletes; deleted rows count then, as in summaries.
        with suppress(ValueError):
            return table.scan().count()
    return sum(entry.data_file.record_count for manifest in data for entry in manifest.fetch_manifest_entry(table.io))


def positions_in(summary: Mapping[str, str]) -> Positions:
    """Return the positions that a snapshot's summary carries; none if it has none."""
    return positions_from_json(summary[POSITION]) if POSITION in summary else {}


def positions_summary(own: Position, others: Positions) -> dict[str, str]:
    """Return what a snapshot's summary has of positions."""
    topic = own.identity.topic
    return {POSITION: positions_to_json({**others, topic: own}.values()), TOPIC: topic}


def position_in(positions: Positions, topic: str, topics: Collection[str]) -> Position | None:
    """Return a topic's position among those of a table."""
    is_foreign = bool(positions) and not positions.keys() & {topic, *topics}
    return next(iter(positions.values())) if is_foreign else positions.get(topic)


def read_positions(table: Table) -> Positions:
    """Return the positions that the newest ancestor of ``main`` with any has; none if none has."""
    for snapshot in ancestors(table, head_of(table)):
        try:
            positions = positions_in(summary_of(snapshot))
        except ValueError as error:
            raise TableError(
                f"Table {'.'.join(table.name())}: snapshot {snapshot.snapshot_id} has an invalid {POSITION} ({error}).",
                "Roll the table back to an older snapshot, or upgrade kafka_lake if a newer version wrote it.",
            ) from error
        if positions:
            return positions
    return {}


def read_state(table: Table, topic: str | None = None, topics: Collection[str] = ()) -> TableState:
    """Return head and positions of ``main``, from one and the same load of the metadata."""
    positions = read_positions(table)
    if topic is None:
        own = next(iter(positions.values())) if len(positions) == 1 else None
    else:
        own = position_in(positions, topic, topics)
    return TableState(
        table,
        head_of(table),
        own,
        others={name: position for name, position in positions.items() if position is not own},
    )


def state_of(spec: TopicTable, table: Table) -> TableState:
    """Return the head and the position of a loaded table."""
    return read_state(table, spec.topic, spec.topics)


def all_positions(
    catalog: LakeCatalog, identifiers: Iterable[tuple[str, str]]
) -> Mapping[tuple[str, str], Positions | Exception]:
    """Return the positions of tables by topic, or the error; a missing table has none.

    A server gets up to eight requests at a time.
    """
    wanted = list(dict.fromkeys(identifiers))

    def read(identifier: tuple[str, str]) -> Positions | Exception:
        try:
            table = catalog.table(identifier)
            return read_positions(table) if table else {}
        except Exception as error:
            return error

    at_once = min(catalog.backend.concurrent_requests, len(wanted))
    if at_once <= 1:
        return {identifier: read(identifier) for identifier in wanted}
    # The first request connects.
    first, *others = wanted
    known = {first: read(first)}
    with ThreadPoolExecutor(at_once) as pool:
        return known | dict(zip(others, pool.map(read, others), strict=True))


def removes_property(snapshot: int | None) -> dict[str, str]:
    """Return the snapshot property that names the snapshot deleting the replaced rows; None for none."""
    return {} if snapshot is None else {REMOVES: str(snapshot)}


def author_summary(run_id: str, kind: str, ranges: Iterable[OffsetRange] = ()) -> dict[str, str]:
    """Return the snapshot properties of its author: run, host, user, and the commit's kind."""
    offsets = ",".join(f"{r.partition}:{r.start}-{r.end - 1}" for r in ranges if len(r))
    return {RUN_ID: run_id, KIND: kind, HOST: _host(), USER: _user()} | ({OFFSETS: offsets} if offsets else {})


def offsets_of(text: str) -> list[OffsetRange]:
    """Parse the offsets of `author_summary`.

    >>> offsets_of("0:5-9,1:0-3")
    [OffsetRange(partition=0, start=5, end=10), OffsetRange(partition=1, start=0, end=4)]
    """
    ranges = []
    for part in filter(None, text.split(",")):
        partition, _, extent = part.partition(":")
        first, _, last = extent.partition("-")
        ranges.append(OffsetRange(int(partition), int(first), int(last) + 1))
    return ranges


@cache
def _host() -> str:
    return socket.gethostname()


@cache
def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        # A container's user needn't be in any list of users.
        return str(os.getuid()) if hasattr(os, "getuid") else ""
