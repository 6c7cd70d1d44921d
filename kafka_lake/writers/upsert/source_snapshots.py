"""Snapshots (bootstraps) of the source, and the cutoff of a batch: which rows and events no longer count.

The rows of a source snapshot have its log position as their order, and later changes have later positions. So a row
whose key the snapshot lacks is older than the snapshot. `on_snapshot: replace` deletes it at the snapshot's end, if the
table has read the whole snapshot.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-snapshots
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.catalog.positions import LOSSES, POSITION, RESET, TableState, ancestors, summary_of
from kafka_lake.common.offsets import Position, positions_from_json
from kafka_lake.common.text import is_over, limit_of
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import ChangeRefusedError
from kafka_lake.formats.rows import CHANGE
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.upsert.batch import ChangeBatch
from kafka_lake.writers.upsert.change_events import SNAPSHOT_BEGINS, SNAPSHOT_ENDS, needs_source_table
from kafka_lake.writers.upsert.cutoff import (
    CUTOFF,
    AppliedCutoff,
    Cutoff,
    cutoff_of,
    newer_cutoff,
    newest_truncate,
    place_columns,
    remembered_cutoff,
)
from kafka_lake.writers.upsert.deduplicate import EventStatistics
from kafka_lake.writers.upsert.keys import SNAPSHOT_MARKER, Keys

_SNAPSHOT = "kafka-lake.source-snapshot"
"""Snapshot property: the source snapshot that is being read."""
_SOURCES = "kafka-lake.source-tables"
"""Snapshot property: the source's tables of the events so far, two at most."""


@dataclass(frozen=True)
class OpenSnapshot:
    """A source snapshot that is being read.

    Args:
        first: Its first row; None if no snapshot is being read, or if its first row isn't known.
        is_known: Whether it is known which snapshot is being read, if any.
        dead_letters: Dead letters of the commits since it began.
    """

    first: Cutoff | None = None
    is_known: bool = True
    dead_letters: int = 0


@dataclass(frozen=True)
class CompleteSnapshot:
    """A source snapshot that has been read from its first to its last row.

    Args:
        dead_letters: Dead letters of the commits since it began.
        until: The offset to read up to before rows are deleted. In a compacted topic, a newer event may have replaced a
            row of the snapshot.
    """

    cutoff: Cutoff
    dead_letters: int = 0
    until: int = 0


NO_SNAPSHOT, UNKNOWN_SNAPSHOT = OpenSnapshot(), OpenSnapshot(is_known=False)


@dataclass(frozen=True)
class SnapshotState:
    """Source snapshots as remembered by a table; rows of ``pending`` are to be deleted."""

    reading: OpenSnapshot
    pending: CompleteSnapshot | None = None

    def to_json(self) -> str:
        """Return the text for a snapshot's summary."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "SnapshotState":
        """Parse the text in a snapshot's summary."""
        parsed = json.loads(text)
        reading, pending = parsed["reading"], parsed["pending"]
        first = reading.pop("first")
        return cls(
            OpenSnapshot(first and Cutoff.of(first), **reading),
            None if pending is None else CompleteSnapshot(Cutoff.of(pending.pop("cutoff")), **pending),
        )


@dataclass(frozen=True)
class SnapshotMarker:
    """The first or last row of a source snapshot; ``kind`` is Debezium's name for it."""

    kind: str
    at: Cutoff


@dataclass(frozen=True)
class SnapshotProgress:
    """Source snapshots in a batch.

    Args:
        reading: The snapshot that is being read at the batch's end.
        complete: The newest snapshot that was read as a whole.
        partial: Offsets at which snapshots ended whose beginning the table hasn't read.
    """

    reading: OpenSnapshot
    complete: CompleteSnapshot | None = None
    partial: tuple[int, ...] = ()


def follow_snapshots(before: OpenSnapshot, markers: Sequence[SnapshotMarker]) -> SnapshotProgress:
    """Follow the markers of a batch in Kafka's order. Pure."""
    progress = SnapshotProgress(before)
    for marker in markers:
        reading = progress.reading
        if marker.kind in SNAPSHOT_BEGINS:
            progress = replace(progress, reading=OpenSnapshot(marker.at))
        elif not reading.is_known:
            progress = replace(progress, reading=NO_SNAPSHOT, partial=(*progress.partial, marker.at.offset))
        else:
            # The only row of a table is marked as the last. An earlier snapshot may have been interrupted.
            has_begun = reading.first is not None and reading.first.order == marker.at.order
            first = reading.first if has_begun and reading.first else marker.at
            progress = replace(progress, reading=NO_SNAPSHOT, complete=CompleteSnapshot(first, reading.dead_letters))
    return progress


def with_dead_letters(progress: SnapshotProgress, count: int) -> SnapshotProgress:
    """Count a batch's dead letters, each of which may be a row of a source snapshot. Pure."""
    if not count:
        return progress
    reading, complete = progress.reading, progress.complete
    reading = replace(reading, dead_letters=reading.dead_letters + count) if reading.first else UNKNOWN_SNAPSHOT
    complete = complete and replace(complete, dead_letters=complete.dead_letters + count)
    return replace(progress, reading=reading, complete=complete)


def due_snapshot(
    complete: CompleteSnapshot | None, pending: CompleteSnapshot | None, position: int, end: int
) -> tuple[CompleteSnapshot | None, CompleteSnapshot | None]:
    """Return the snapshot whose missing rows are deleted now, and the one that stays pending. Pure."""
    if complete is not None:
        return (complete, None) if position >= end else (None, replace(complete, until=end))
    if pending is not None and position >= pending.until:
        return pending, None
    return None, pending


def find_cutoff(
    batch: ChangeBatch, events: DataFrame, statistics: EventStatistics
) -> tuple[AppliedCutoff | None, CompleteSnapshot | None, Mapping[str, str]]:
    """Return the batch's cutoff, its source snapshot if it is a new one of a snapshot, and the snapshot properties."""
    spec, state, keys = batch.context.spec, batch.state, batch.keys
    position = positions_from_json(batch.summary[POSITION])[spec.topic]
    snapshot, properties = None, dict[str, str]()
    if spec.replaces_by_snapshot:
        snapshot, snapshots = _snapshots(batch, events, statistics, position)
        properties[_SNAPSHOT] = snapshots.to_json()
    new = _truncate(spec, events, keys, position) if statistics.counts["truncates"] else None
    sources = _source_tables(spec, state, statistics)
    for cutoff in (new, snapshot.cutoff if snapshot else None):
        if cutoff is not None:
            _check_one_source(spec, sources, cutoff)
    properties[_SOURCES] = json.dumps(sources)
    if snapshot is not None:
        newest = newer_cutoff(snapshot.cutoff, new, keys)
        new = newest.cutoff if newest else None
    applied = newer_cutoff(new, remembered_cutoff(state), keys)
    if applied is None:
        return None, None, properties
    is_snapshot = snapshot is not None and applied.is_new and applied.cutoff == snapshot.cutoff
    properties[CUTOFF] = applied.cutoff.to_json()
    return applied, snapshot if is_snapshot else None, properties


def _truncate(spec: TopicTable, events: DataFrame, keys: Keys, position: Position) -> Cutoff | None:
    if not spec.applies_truncates:
        return None
    newest, partitions = newest_truncate(events, keys), len(position.offsets)
    if not keys.has_order and partitions > 1:
        raise ChangeRefusedError(
            f"Topic {spec.topic}: the record in partition {newest.partition} at offset {newest.offset} truncates the "
            f"table, and its order among the records of {partitions} partitions is unknown.",
            "main is unchanged. Let the source write to one partition, or set on_truncate: ignore and delete the rows "
            "with SQL.",
        )
    return newest


def _snapshots(
    batch: ChangeBatch, events: DataFrame, statistics: EventStatistics, position: Position
) -> tuple[CompleteSnapshot | None, SnapshotState]:
    """Return the snapshot whose missing rows are deleted with a batch, and the state that the table remembers."""
    context, state = batch.context, batch.state
    topic = context.spec.topic
    if len(position.offsets) > 1:
        raise ChangeRefusedError(
            f"Topic {topic}: on_snapshot: replace needs a topic with one partition, and it has "
            f"{len(position.offsets)}. The end of a snapshot in one partition doesn't apply to the others.",
            "main is unchanged. Let the connector write to a topic with one partition, or set on_snapshot: merge.",
        )
    before = _remembered_snapshots(state, batch.summary)
    if state.position is not None and state.position.offsets == position.offsets:
        # These records were read before.
        return None, before
    markers = snapshot_markers(events, batch.keys) if statistics.counts["snapshot_markers"] else []
    progress = with_dead_letters(follow_snapshots(before.reading, markers), batch.failed())
    ((partition, offset),) = position.offsets.items()
    for end in progress.partial:
        context.observer.warn(
            f"Topic {topic}: the snapshot of the source that ended in partition {partition} at offset {end} began "
            "before the first record that the table has read. Rows that it lacks stay in the table."
        )
    has_end = progress.complete is not None
    end = context.connections.cluster.watermarks_of(topic).end[partition] if has_end else 0
    due, pending = due_snapshot(progress.complete, before.pending, offset, end)
    return due, SnapshotState(progress.reading, pending)


def _remembered_snapshots(state: TableState, summary: Mapping[str, str]) -> SnapshotState:
    """Return the table's snapshot state before a batch; unknown if the batch's summary says that it skips records."""
    if LOSSES in summary or RESET in summary:
        return SnapshotState(UNKNOWN_SNAPSHOT)
    summaries = (summary_of(snapshot) for snapshot in ancestors(state.table, state.head))
    newest = next((earlier for earlier in summaries if POSITION in earlier), {})
    return SnapshotState.from_json(newest[_SNAPSHOT]) if _SNAPSHOT in newest else SnapshotState(UNKNOWN_SNAPSHOT)


def snapshot_markers(events: DataFrame, keys: Keys) -> list[SnapshotMarker]:
    """Return the rows of a one-partition batch that begin or end source snapshots."""
    kind, order = F.col(SNAPSHOT_MARKER).alias("kind"), F.col(f"{CHANGE}.order").alias("order")
    marked = events.filter(kind.isin(*SNAPSHOT_BEGINS, *SNAPSHOT_ENDS))
    rows = marked.select(kind, order, *place_columns(F.col(quoted(METADATA_COLUMN)))).orderBy("offset").collect()
    return [SnapshotMarker(row["kind"], cutoff_of(row, is_snapshot=True)) for row in rows]


def _source_tables(spec: TopicTable, state: TableState, statistics: EventStatistics) -> list[str]:
    """Return the source's tables of all events so far, two at most; empty if the settings don't need them."""
    if not needs_source_table(spec):
        return []
    summaries = (summary_of(snapshot) for snapshot in ancestors(state.table, state.head))
    known = next((summary[_SOURCES] for summary in summaries if _SOURCES in summary), "[]")
    return sorted({*json.loads(known), *statistics.counts["sources"]})[:2]


def _check_one_source(spec: TopicTable, sources: Sequence[str], cutoff: Cutoff) -> None:
    """Refuse to delete rows if they may come from several tables of the source."""
    if len(sources) > 1:
        what = "is of a snapshot that has ended" if cutoff.is_snapshot else "empties the source's table"
        raise ChangeRefusedError(
            f"Topic {spec.topic}: the record in partition {cutoff.partition} at offset {cutoff.offset} {what}, and the "
            f"topic has changes of several source tables: {', '.join(sources)}. The rows to delete are ambiguous.",
            "main is unchanged. Let each source table have its own topic, which is the default of Debezium and "
            "Canal; or set on_truncate: ignore and on_snapshot: merge. If the source table was renamed, a run with "
            "these settings forgets its old name.",
        )


def check_snapshot_deletes(spec: TopicTable, snapshot: CompleteSnapshot, rows: int, older: int) -> None:
    """Refuse to delete the ``older`` rows that a source snapshot lacks if that may be wrong."""
    if not older:
        return
    at = snapshot.cutoff
    what = (
        f"the snapshot of the source that began in partition {at.partition} at offset {at.offset} lacks {older} of "
        f"{rows} rows"
    )
    if snapshot.dead_letters:
        raise ChangeRefusedError(
            f"Topic {spec.topic}: {what}, and {snapshot.dead_letters} records of its commits are dead letters, which "
            "may belong to those rows.",
            "main is unchanged. Fix the cause, and set on_snapshot: merge for one run; the rows stay until the next "
            "snapshot.",
        )
    if is_over(limit_of(spec.max_removed, "max_deletes"), older, of=rows):
        raise ChangeRefusedError(
            f"Topic {spec.topic}: {what}, and the limit is on_snapshot: max_deletes: {spec.max_removed}.",
            "main is unchanged. If the source has lost these rows, raise max_deletes: for one run. If the snapshot "
            "covered only a part of the table, set on_snapshot: merge for one run, and the rows stay.",
        )
