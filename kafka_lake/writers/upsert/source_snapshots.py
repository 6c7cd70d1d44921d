"""Source snapshots and truncates of a batch: which rows and changes no longer count.

The rows of a source snapshot have its position in the source's log as their order, and later changes later positions.
So a row whose key the snapshot lacks is older than the snapshot. It goes at the snapshot's end, if the table has read
the snapshot as a whole.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-snapshots
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.catalog.positions import LOSSES, POSITION, RESET, TableState, ancestors, summary_of
from kafka_lake.common.offsets import Position
from kafka_lake.common.text import is_over, limit_of
from kafka_lake.errors import ChangeRefusedError
from kafka_lake.formats.rows import CHANGE
from kafka_lake.runtime.context import Context
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.upsert.change_events import BEGINS, ENDS, deletes_by_source
from kafka_lake.writers.upsert.keys import SNAPSHOT_MARKER, Keys, quoted
from kafka_lake.writers.upsert.truncates import (
    TRUNCATED,
    Emptied,
    Truncate,
    newer_of,
    newest_truncate,
    place_of,
    remembered_truncate,
    truncate_of,
)

READING = "kafka-lake.source-snapshot"
"""Snapshot property: the source snapshot that is being read."""
SOURCES = "kafka-lake.source-tables"
"""Snapshot property: the source's tables of the changes so far, two at most."""


@dataclass(frozen=True)
class Reading:
    """A source snapshot that is being read.

    Args:
        begin: Its first row; None if none is being read, or its first row isn't known.
        is_known: Whether it is known that none is being read, or which.
        dead_letters: Dead letters of the commits since it began.
    """

    begin: Truncate | None = None
    is_known: bool = True
    dead_letters: int = 0


@dataclass(frozen=True)
class Ended:
    """A source snapshot that has been read as a whole.

    Args:
        dead_letters: Dead letters of the commits since it began.
        until: The offset to read up to before rows go: in a compacted topic, a newer change may have replaced a row of
            the snapshot.
    """

    at: Truncate
    dead_letters: int = 0
    until: int = 0


@dataclass(frozen=True)
class Remembered:
    """What a table knows of the snapshots of its source; ``waiting`` has ended, and its missing rows haven't gone."""

    reading: Reading
    waiting: Ended | None = None

    def to_json(self) -> str:
        """Return the text for a snapshot's summary."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Remembered":
        """Parse what `to_json` wrote."""
        parsed = json.loads(text)
        reading, waiting = parsed["reading"], parsed["waiting"]
        begin = reading.pop("begin")
        return cls(
            Reading(begin and Truncate.of(begin), **reading),
            None if waiting is None else Ended(Truncate.of(waiting.pop("at")), **waiting),
        )


NONE, UNKNOWN = Reading(), Reading(is_known=False)


@dataclass(frozen=True)
class Mark:
    """The first or last row of a source snapshot; ``kind`` is the envelope's name for it."""

    kind: str
    at: Truncate


@dataclass(frozen=True)
class Walk:
    """What a batch shows of source snapshots.

    Args:
        reading: The one that is being read at its end.
        ended: The newest one that ended.
        left: Offsets at which others ended that the table hasn't read as a whole.
    """

    reading: Reading
    ended: Ended | None = None
    left: tuple[int, ...] = ()


def walk(before: Reading, marks: Sequence[Mark]) -> Walk:
    """Go through the marks of a batch in Kafka's order. Pure."""
    found = Walk(before)
    for mark in marks:
        reading = found.reading
        if mark.kind in BEGINS:
            found = replace(found, reading=Reading(mark.at))
        elif not reading.is_known:
            found = replace(found, reading=NONE, left=(*found.left, mark.at.offset))
        else:
            # The only row of a table ends its snapshot and doesn't begin it. An earlier snapshot may have broken off.
            begin = reading.begin if reading.begin and reading.begin.order == mark.at.order else mark.at
            found = replace(found, reading=NONE, ended=Ended(begin, reading.dead_letters))
    return found


def with_dead_letters(found: Walk, count: int) -> Walk:
    """Count a batch's dead letters, each of which may be a row of a source snapshot. Pure."""
    if not count:
        return found
    reading, ended = found.reading, found.ended
    reading = replace(reading, dead_letters=reading.dead_letters + count) if reading.begin else UNKNOWN
    ended = ended and replace(ended, dead_letters=ended.dead_letters + count)
    return replace(found, reading=reading, ended=ended)


def due(ended: Ended | None, waiting: Ended | None, position: int, end: int) -> tuple[Ended | None, Ended | None]:
    """Return the snapshot whose missing rows go now, and the one that waits. Pure."""
    if ended is not None:
        return (ended, None) if position >= end else (None, replace(ended, until=end))
    if waiting is not None and position >= waiting.until:
        return waiting, None
    return None, waiting


def remembered(state: TableState, summary: Mapping[str, str]) -> Remembered:
    """Return what the table knows before a batch; nothing if the batch's summary says that records were skipped."""
    if LOSSES in summary or RESET in summary:
        return Remembered(UNKNOWN)
    summaries = (summary_of(snapshot) for snapshot in ancestors(state.table, state.head))
    newest = next((found for found in summaries if POSITION in found), {})
    return Remembered.from_json(newest[READING]) if READING in newest else Remembered(UNKNOWN)


def marks_of(changes: DataFrame, keys: Keys) -> list[Mark]:
    """Return the rows of a one-partition batch that begin or end source snapshots."""
    reads, order = F.col(SNAPSHOT_MARKER).alias("kind"), F.col(f"{CHANGE}.order").alias("order")
    found = changes.filter(reads.isin(*BEGINS, *ENDS)).select(reads, order, *place_of(F.col(quoted(keys.metadata))))
    return [Mark(row["kind"], truncate_of(row, is_read=True)) for row in found.orderBy("offset").collect()]


@dataclass(frozen=True)
class Told:
    """A batch of changes.

    Args:
        figures: Its ``truncates``, ``reads`` and ``sources``, as `counted` defines them.
        failed: Returns the number of its dead letters.
    """

    changes: DataFrame
    figures: Any
    summary: Mapping[str, str]
    failed: Callable[[], int]

    @property
    def position(self) -> Position:
        """Return the position after the batch."""
        return Position.from_json(self.summary[POSITION])


@dataclass(frozen=True)
class Past:
    """What no longer counts.

    Args:
        emptied: Everything older is gone.
        ended: The source snapshot at which it went; None if it was a truncate.
        marks: Snapshot properties that remember it.
    """

    emptied: Emptied | None = None
    ended: Ended | None = None
    marks: Mapping[str, str] = field(default_factory=dict)


def past_of(context: Context, state: TableState, batch: Told, keys: Keys) -> Past:
    """Return what no longer counts, by a batch and by what the table remembers."""
    spec = context.spec
    ended, marks = None, dict[str, str]()
    if spec.snapshot == "replace":
        ended, known = _snapshots(context, state, batch, keys)
        marks[READING] = known.to_json()
    new = _truncate(spec, batch, keys)
    sources = _sources(spec, state, batch)
    for at in (*([new] if new else []), *([ended.at] if ended else [])):
        _check_sources(spec, sources, at)
    marks[SOURCES] = json.dumps(sources)
    if ended is not None:
        newest = newer_of(ended.at, new, keys)
        new = newest.at if newest else None
    emptied = newer_of(new, remembered_truncate(state), keys)
    if emptied is None:
        return Past(marks=marks)
    is_ended = ended is not None and emptied.is_new and emptied.at == ended.at
    return Past(emptied, ended if is_ended else None, {**marks, TRUNCATED: emptied.at.to_json()})


def _truncate(spec: TopicTable, batch: Told, keys: Keys) -> Truncate | None:
    if spec.on_truncate != "apply" or not batch.figures["truncates"]:
        return None
    newest, partitions = newest_truncate(batch.changes, keys), len(batch.position.offsets)
    if not keys.has_order and partitions > 1:
        raise ChangeRefusedError(
            f"Topic {spec.topic}: the record in partition {newest.partition} at offset {newest.offset} empties the "
            f"table, and offsets of the topic's {partitions} partitions can't be compared with it.",
            "main is as it was. Let the source write to one partition, or set on_truncate: ignore and delete the rows "
            "with SQL.",
        )
    return newest


def _snapshots(context: Context, state: TableState, batch: Told, keys: Keys) -> tuple[Ended | None, Remembered]:
    """Return the snapshot whose missing rows go with a batch, and what the table remembers."""
    spec, position = context.spec, batch.position
    if len(position.offsets) > 1:
        raise ChangeRefusedError(
            f"Topic {spec.topic}: on_snapshot: replace needs a topic with one partition, and it has "
            f"{len(position.offsets)}. The end of a snapshot in one partition says nothing of the others.",
            "main is as it was. Let the connector write to a topic with one partition, or set on_snapshot: merge.",
        )
    before = remembered(state, batch.summary)
    if state.position is not None and state.position.offsets == position.offsets:
        # These records were read before.
        return None, before
    found = walk(before.reading, marks_of(batch.changes, keys) if batch.figures["reads"] else ())
    found = with_dead_letters(found, batch.failed())
    ((partition, offset),) = position.offsets.items()
    for at in found.left:
        context.observer.warn(
            f"Topic {spec.topic}: the snapshot of the source that ended in partition {partition} at offset {at} began "
            "before what the table has read. Rows that it lacks stay in the table."
        )
    end = context.connections.cluster.watermarks_of(spec.topic).end[partition] if found.ended is not None else 0
    ended, waiting = due(found.ended, before.waiting, offset, end)
    return ended, Remembered(found.reading, waiting)


def _sources(spec: TopicTable, state: TableState, batch: Told) -> list[str]:
    """Return the source's tables of all changes so far, two at most; empty where no rows can go by them."""
    if not deletes_by_source(spec):
        return []
    summaries = (summary_of(snapshot) for snapshot in ancestors(state.table, state.head))
    known = next((found[SOURCES] for found in summaries if SOURCES in found), "[]")
    return sorted({*json.loads(known), *batch.figures["sources"]})[:2]


def _check_sources(spec: TopicTable, sources: Sequence[str], at: Truncate) -> None:
    """Refuse to delete rows that one source table lacks and that may be another's."""
    if len(sources) > 1:
        what = "is of a snapshot that has ended" if at.is_read else "empties the source's table"
        raise ChangeRefusedError(
            f"Topic {spec.topic}: the record in partition {at.partition} at offset {at.offset} {what}, and the topic "
            f"has changes of several tables of the source: {', '.join(sources)}. Whose rows shall go isn't known.",
            "main is as it was. Let each table of the source have a topic of its own, which is the default of "
            "Debezium and Canal; or set on_truncate: ignore and on_snapshot: merge. If it is one table that was "
            "renamed, a run with those settings forgets its old name.",
        )


def check_removal(spec: TopicTable, ended: Ended, rows: int, older: int) -> None:
    """Refuse to remove the rows that a source snapshot lacks if that may be wrong."""
    if not older:
        return
    began = f"the snapshot of the source that began in partition {ended.at.partition} at offset {ended.at.offset}"
    if ended.dead_letters:
        raise ChangeRefusedError(
            f"Topic {spec.topic}: {began} lacks {older} of {rows} rows, and {ended.dead_letters} records of its "
            "commits are dead letters, which may be of those rows.",
            "main is as it was. Mend the cause, and let a run go on with on_snapshot: merge; the rows stay until the "
            "next snapshot.",
        )
    if is_over(limit_of(spec.max_removed, "max_deletes"), older, of=rows):
        raise ChangeRefusedError(
            f"Topic {spec.topic}: {began} lacks {older} of {rows} rows, and the limit is on_snapshot: max_deletes: "
            f"{spec.max_removed}.",
            "main is as it was. If the source has lost these rows, raise max_deletes: for a run. If the "
            "snapshot was of a part of the table, let a run go on with on_snapshot: merge, and the rows stay.",
        )
