"""One published snapshot, as plain data: for those who are told of it, for reports and for tests."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from kafka_lake.common.offsets import OffsetRange, Position
from kafka_lake.ingest.decode.dead_letter_class import DeadLetterClass
from kafka_lake.ingest.finding import ColumnNote, Finding


@dataclass(frozen=True)
class Commit:
    """One published snapshot.

    Args:
        ranges: The offsets that it holds.
        after: The position that it carries.
        rows_by_partition: Rows per Kafka partition; empty without metadata columns.
        kind: What the commit was for, as in `Plan.kind`.
        classes: The dead letters by class.
        waited: How long its records had waited when it was published; None if none has a time, or all were there
            before.
        published_at: When readers could see it, in seconds since the epoch; None if nobody noted it.
        bytes_read: Of the keys, values and headers of the records.
        elsewhere: Records of the offsets that are not this table's.
        ignored: Records that no route took, and no table has.
        without_table: Records whose value has no table, and that no other table takes.
        untimed: Records read whose Kafka timestamp is null in the table, since it is no time.
    """

    snapshot: int
    ranges: tuple[OffsetRange, ...]
    after: Position
    records: int
    rows: int
    dead_letters: int
    tombstones: int
    files: int
    size: int
    rows_by_partition: Mapping[int, int]
    findings: tuple[Finding, ...]
    kind: str = "append"
    classes: tuple[DeadLetterClass, ...] = ()
    waited: "Waited | None" = None
    published_at: float | None = None
    bytes_read: int = 0
    elsewhere: int = 0
    ignored: int = 0
    without_table: int = 0
    untimed: int = 0

    @property
    def topic(self) -> str:
        """Return the name of the topic that it is of."""
        return self.after.identity.topic

    @property
    def invisible(self) -> int:
        """Return how many of the offsets had no record: aborted, transaction markers, compacted away."""
        return max(0, sum(len(r) for r in self.ranges) - self.records - self.elsewhere)

    def told(self) -> list[Finding]:
        """Return what the gates found, with the commit's time and snapshot on what happened to columns."""
        when = "" if self.published_at is None else moment(datetime.fromtimestamp(self.published_at, UTC))
        stamp = {"when": when, "snapshot": str(self.snapshot)}
        return [
            replace(each, changes=tuple(PublishedNote(**asdict(note), **stamp) for note in each.changes))
            for each in self.findings
        ]


@dataclass(frozen=True)
class PublishedNote(ColumnNote):
    """One line about a column, and by which commit it came.

    Args:
        when: When the commit was published, ISO 8601; empty if nobody noted it.
        snapshot: The commit's snapshot id, as text; empty if there is none yet.
    """

    when: str = ""
    snapshot: str = ""


def moment(at: datetime) -> str:
    """Return a time as notes about columns have it: ISO 8601, to the second."""
    return at.isoformat(timespec="seconds")


@dataclass(frozen=True)
class Waited:
    """How old records were at the moment when readers could see them, by the records' Kafka timestamps.

    Args:
        oldest: Age of the oldest, in seconds.
        newest: Age of the newest, in seconds.
    """

    oldest: float
    newest: float

    def merged(self, other: "Waited") -> "Waited":
        """Return what holds for the records of both."""
        return Waited(max(self.oldest, other.oldest), min(self.newest, other.newest))
