"""Snapshots of the source: where one began, and that it has ended, so that keys which it lacks can go.

A snapshot's rows have its position as their order, which is older than all that the source tells afterwards. So a row
of a key that it lacks is older than its first row, which is what is remembered between commits.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-snapshots
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import NOTHING
from kafka_lake.ingest.decode.rows import CHANGE
from kafka_lake.ingest.keyed.keys import DOES, READS, Keys, quoted
from kafka_lake.ingest.keyed.truncates import Truncate
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
        dead_letters: How many records became dead letters since it began.
    """

    begin: Truncate | None = None
    is_known: bool = True
    dead_letters: int = 0

    def to_json(self) -> str:
        """Return the text that a snapshot's summary carries."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Reading":
        """Parse what `to_json` wrote."""
        told = json.loads(text)
        begin = told.pop("begin")
        return cls(begin and Truncate.from_json(json.dumps(begin)), **told)


UNKNOWN = Reading(is_known=False)


@dataclass(frozen=True)
class Mark:
    """A row that a snapshot begins or ends with.

    Args:
        kind: What the envelope calls it.
        at: Where it is, as a change that is older than all of the snapshot's.
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
class Ended:
    """A snapshot that has ended.

    Args:
        begin: Its first row.
        dead_letters: How many records became dead letters in the meantime.
    """

    begin: Truncate
    dead_letters: int


@dataclass(frozen=True)
class Walk:
    """What a batch says of snapshots.

    Args:
        reading: How far one has been read at its end.
        ended: The newest one that has ended in it.
        unknown_at: Offset of the last row of one whose first row isn't known.
    """

    reading: Reading
    ended: Ended | None = None
    unknown_at: int | None = None


def walk(before: Reading, marks: Sequence[Mark], between: Sequence[Between]) -> Walk:
    """Go through a batch. Pure.

    A snapshot has ended with its last row, or when other changes follow: the first of several tables doesn't mark the
    end of a single row.

    Args:
        before: How far one had been read before.
        marks: In the order of Kafka.
        between: One more of them.
    """
    found = Walk(before)
    for mark, passed in zip((*marks, None), between, strict=True):
        found = _passed(found, passed)
        if mark is not None and mark.kind in BEGINS:
            found = replace(found, reading=Reading(mark.at))
        elif mark is not None:
            found = _at_end(found, mark)
    return found


def _passed(found: Walk, between: Between) -> Walk:
    reading = found.reading
    if between.streamed is None:
        is_unknown = between.read is not None and reading.begin is None
        return replace(found, reading=UNKNOWN) if is_unknown else found
    ended = found.ended if reading.begin is None else Ended(reading.begin, reading.dead_letters)
    # The beginning of what follows has been compacted away.
    goes_on = between.read is not None and between.read > between.streamed
    return replace(found, reading=UNKNOWN if goes_on else Reading(), ended=ended)


def _at_end(found: Walk, mark: Mark) -> Walk:
    reading = found.reading
    if not reading.is_known:
        return replace(found, reading=Reading(), unknown_at=mark.at.offset)
    # Its only row ends a table's snapshot and doesn't begin it.
    return replace(found, reading=Reading(), ended=Ended(reading.begin or mark.at, reading.dead_letters))


def remembered_reading(state: TableState, summary: dict[str, str]) -> Reading:
    """Return how far the table knows that a snapshot of the source had been read before a batch.

    Args:
        state: The table.
        summary: Of the batch's snapshot; if records were passed over, nothing is known.
    """
    if LOSSES in summary or RESET in summary:
        return UNKNOWN
    summaries = (summary_of(snapshot) for snapshot in ancestors(state.table, state.head))
    newest = next((found for found in summaries if POSITION in found), {})
    return Reading.from_json(newest[READING]) if READING in newest else UNKNOWN


def marks_of(changes: DataFrame, keys: Keys) -> tuple[list[Mark], list[Between]]:
    """Return what begins and ends snapshots in a batch of one Kafka partition, and what is between.

    Args:
        changes: What `changes_of` gave, in the table's types.
        keys: Name the metadata column.
    """
    place, reads = F.col(quoted(keys.metadata)), F.col(READS)
    order = F.col(f"{CHANGE}.order")
    found = (
        changes.filter(reads.isin(*BEGINS, *ENDS))
        .select(
            reads.alias("kind"),
            order.alias("order"),
            *[place[name].alias(name) for name in ("topic_id", "partition", "offset")],
        )
        .orderBy("offset")
        .collect()
    )
    marks = [
        Mark(row["kind"], Truncate(tuple(row["order"]), row["topic_id"], row["partition"], row["offset"], is_read=True))
        for row in found
    ]
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
