"""Snapshots of the source: where one began, and that it has ended, so that rows which it lacks can go.

All rows of a snapshot have its position in the source's log as their order, and what the source tells afterwards has a
later one. So a row of a key that it lacks is older than the snapshot. That must be known to have been read as a whole:
from its first row to its last one, with nothing passed over in between.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-snapshots
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import NOTHING
from kafka_lake.ingest.decode.rows import CHANGE
from kafka_lake.ingest.keyed.keys import DOES, READS, Keys, quoted
from kafka_lake.ingest.keyed.truncates import Truncate, place_of, truncate_of
from kafka_lake.lake.positions import LOSSES, POSITION, RESET, TableState, ancestors, summary_of

READING = "kafka-lake.source-snapshot"
"""In a snapshot's summary: how far a snapshot of the source has been read."""
BEGINS = ("first", "first_in_data_collection")
ENDS = ("last", "last_in_data_collection")
AMONG = "true"
"""What Debezium calls the rows of a snapshot of all; those of an incremental one have other names."""


@dataclass(frozen=True)
class Reading:
    """How far a snapshot of the source has been read.

    Args:
        begin: Its first row; None if none is being read, or its first row isn't known.
        is_known: Whether it is known that none is being read, or which.
        dead_letters: How many records became dead letters in the commits since it began.
    """

    begin: Truncate | None = None
    is_known: bool = True
    dead_letters: int = 0


@dataclass(frozen=True)
class Ended:
    """A snapshot that has ended, and was read as a whole.

    Args:
        dead_letters: How many records became dead letters in the commits since it began.
        until: The offset up to which the topic is read before rows go: in a compacted topic, a newer change may stand
            for a row of the snapshot. 0 if nothing is to be waited for.
    """

    at: Truncate
    dead_letters: int = 0
    until: int = 0


@dataclass(frozen=True)
class Remembered:
    """What a table knows of the snapshots of its source.

    Args:
        reading: How far one has been read.
        waiting: One that has ended, whose missing rows have not gone yet; None if there is none.
    """

    reading: Reading
    waiting: Ended | None = None

    def to_json(self) -> str:
        """Return the text that a snapshot's summary carries."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Remembered":
        """Parse what `to_json` wrote."""
        told = json.loads(text)
        reading, waiting = told["reading"], told["waiting"]
        return cls(
            Reading(_place(reading.pop("begin")), **reading),
            None if waiting is None else Ended(_place(waiting.pop("at")), **waiting),
        )


def _place(told: Any) -> Any:
    return told and Truncate.of(told)


NONE, UNKNOWN = Reading(), Reading(is_known=False)


@dataclass(frozen=True)
class Mark:
    """A row that a snapshot begins or ends with.

    Args:
        kind: What the envelope calls it.
    """

    kind: str
    at: Truncate


@dataclass(frozen=True)
class Between:
    """What is between two such rows, or before the first, or behind the last.

    Args:
        streamed: Offset of the first change that is none of a snapshot's.
        read: Offset of the last other row of a snapshot.
    """

    streamed: int | None = None
    read: int | None = None


@dataclass(frozen=True)
class Walk:
    """What a batch says of snapshots.

    Args:
        reading: How far one has been read at its end.
        ended: The newest one that has ended in it.
        left: Those that take no rows away: an offset of each, and why.
    """

    reading: Reading
    ended: Ended | None = None
    left: tuple[tuple[int, str], ...] = ()


NO_END = "began, and other changes follow before its end: it broke off, or it has one row and is the first of several"
NO_BEGINNING = "ended, and its beginning isn't known: the table has not read all of it"
OTHER_POSITION = "ended, and its first row has another position in the source's log"


def walk(before: Reading, marks: Sequence[Mark], between: Sequence[Between]) -> Walk:
    """Go through a batch. Pure.

    Args:
        before: How far one had been read before.
        marks: In the order of Kafka.
    """
    found = Walk(before)
    for mark, passed in zip((*marks, None), between, strict=True):
        found = _passed(found, passed)
        if mark is not None and mark.kind in BEGINS:
            found = replace(found, reading=Reading(mark.at))
        elif mark is not None:
            found = _at_end(found, mark.at)
    return found


def _passed(found: Walk, between: Between) -> Walk:
    begin = found.reading.begin
    if between.streamed is None:
        is_unknown = between.read is not None and begin is None
        return replace(found, reading=UNKNOWN) if is_unknown else found
    left = found.left if begin is None else (*found.left, (begin.offset, NO_END))
    goes_on = between.read is not None and between.read > between.streamed
    return replace(found, reading=UNKNOWN if goes_on else NONE, left=left)


def _at_end(found: Walk, at: Truncate) -> Walk:
    reading, why = found.reading, ""
    # A table's only row ends its snapshot and doesn't begin it.
    begin = reading.begin or at
    if not reading.is_known:
        why = NO_BEGINNING
    elif begin.order != at.order:
        why = OTHER_POSITION
    if why:
        return replace(found, reading=NONE, left=(*found.left, (at.offset, why)))
    return replace(found, reading=NONE, ended=Ended(begin, reading.dead_letters))


def with_dead_letters(found: Walk, count: int) -> Walk:
    """Count a batch's dead letters, each of which may be a row of a snapshot. Pure.

    Args:
        found: What the batch says otherwise.
        count: How many of its records became dead letters.
    """
    if not count:
        return found
    reading, ended = found.reading, found.ended
    reading = replace(reading, dead_letters=reading.dead_letters + count) if reading.begin else UNKNOWN
    ended = ended and replace(ended, dead_letters=ended.dead_letters + count)
    return replace(found, reading=reading, ended=ended)


def due(ended: Ended | None, waiting: Ended | None, position: int, end: int) -> tuple[Ended | None, Ended | None]:
    """Return the snapshot whose missing rows go now, and the one that waits. Pure.

    Args:
        position: The offset up to which the batch goes.
        end: Where the topic ends now; of interest only if there is one of the batch.
    """
    if ended is not None:
        return (ended, None) if position >= end else (None, replace(ended, until=end))
    if waiting is not None and position >= waiting.until:
        return waiting, None
    return None, waiting


def remembered(state: TableState, summary: Mapping[str, str]) -> Remembered:
    """Return what the table knows of the snapshots of its source before a batch.

    Args:
        summary: Of the batch's snapshot; if records were passed over, nothing is known.
    """
    if LOSSES in summary or RESET in summary:
        return Remembered(UNKNOWN)
    summaries = (summary_of(snapshot) for snapshot in ancestors(state.table, state.head))
    newest = next((found for found in summaries if POSITION in found), {})
    return Remembered.from_json(newest[READING]) if READING in newest else Remembered(UNKNOWN)


def marks_of(changes: DataFrame, keys: Keys) -> tuple[list[Mark], list[Between]]:
    """Return what begins and ends snapshots in a batch of one Kafka partition, and what is between.

    Args:
        changes: What `changes_of` gave, in the table's types.
    """
    place, reads = F.col(quoted(keys.metadata)), F.col(READS)
    order = F.col(f"{CHANGE}.order")
    found = (
        changes.filter(reads.isin(*BEGINS, *ENDS))
        .select(reads.alias("kind"), order.alias("order"), *place_of(place))
        .orderBy("offset")
        .collect()
    )
    marks = [Mark(row["kind"], truncate_of(row, is_read=True)) for row in found]
    offsets = F.array(*[F.lit(each.at.offset) for each in marks]).cast("array<bigint>")
    offset: Any = place["offset"]
    is_streamed = reads.isNull() & order.isNotNull() & (F.col(DOES) != NOTHING)
    rows = changes.select(
        F.size(F.filter(offsets, lambda mark: mark < offset)).alias("behind"),
        F.when(is_streamed, offset).alias("streamed"),
        F.when(reads == AMONG, offset).alias("read"),
    )
    counted = rows.groupBy("behind").agg(F.min("streamed").alias("streamed"), F.max("read").alias("read")).collect()
    between = {row["behind"]: Between(row["streamed"], row["read"]) for row in counted}
    return marks, [between.get(number, Between()) for number in range(len(marks) + 1)]
