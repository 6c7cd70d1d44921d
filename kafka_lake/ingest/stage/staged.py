"""What a plan became on the branches of its tables, not yet visible to anyone: plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from kafka_lake.executors.writing.spans import Span
from kafka_lake.ingest.decode.dead_letter_class import DeadLetterClass
from kafka_lake.ingest.keyed.check import KeyedBatch
from kafka_lake.ingest.keyed.history.check import HistoryBatch
from kafka_lake.ingest.rules.result import RuleResult
from kafka_lake.lake.author import AUTHOR
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.evolution.model import Conflict
from kafka_lake.lake.positions import POSITION, TableState, summary_of
from kafka_lake.lake.schema import Change


@dataclass(frozen=True)
class StagedTable:
    """One table's share of a commit, on its branch.

    Args:
        snapshot: The branch's tip, which is what will be published.
        appended: The snapshot that adds the rows; others on the branch take replaced rows away or keep missing ones.
        state: The table as it was before.
        rows: Rows that the appending snapshot adds, by its own summary.
        files: Data files that it adds.
        spans: The rows by task and Kafka partition, as their writers counted them; None if only a scan can tell.
        rules: What the table's rules of single rows found while the rows were written; None if no rule was asked then.
    """

    branch: StagingBranch
    snapshot: int
    appended: int
    state: TableState
    rows: int
    files: int
    size: int
    spans: tuple[Span, ...] | None = None
    rules: tuple[RuleResult, ...] | None = None
    summary: Mapping[str, str] = field(default_factory=dict)


def side_summary(summary: Mapping[str, str]) -> dict[str, str]:
    """Return what the snapshot of a side table says of the summary of the topic's table: position and author."""
    return {key: value for key, value in summary.items() if key in (POSITION, *AUTHOR)}


@dataclass(frozen=True)
class Vanished:
    """Rows of the table that Kafka no longer has, within what was read again."""

    partition: int
    rows: int
    first: int


@dataclass(frozen=True)
class Staged:
    """Everything that one plan became, not yet visible to anyone.

    Args:
        dead_letters: The dead-letter table, None if there is nothing new for it.
        records: Records read, as Spark counted them while it wrote.
        tombstones: Records without a value among them.
        failed: Records among them that became no row, for a reason.
        known_failed: Those of the failed that are in the dead-letter table already.
        vanished: Rows that would be lost by a replacement, since Kafka no longer has their records.
        failed_rows: The failed as rows of the dead-letter table, lazy.
        ignored: Columns that the records would have needed, and the topic's policy leaves out.
        conflicts: Types that the records brought and the columns don't take, and where such values go.
        schemas: How many records were written with which schema of the registry.
        oldest_ms: The least Kafka timestamp of the records, milliseconds since the epoch; None if none has any.
        unkept: What was in the records and is in no column: path → what is said of it.
        bytes_read: Of the keys, values and headers of the records.
        deletes: The table of deleted keys, None if there is nothing new for it.
        keyed: What became of the changes; None for a table that is appended to.
        rules: What the topic's rules found.
        untimed: How many of the records have no Kafka timestamp, or one that is no time.
    """

    primary: StagedTable
    dead_letters: StagedTable | None
    records: int
    tombstones: int
    failed: int
    known_failed: int
    classes: tuple[DeadLetterClass, ...] = ()
    vanished: tuple[Vanished, ...] = ()
    failed_rows: DataFrame | None = None
    ignored: tuple[Change, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    schemas: Mapping[str, int] = field(default_factory=dict)
    oldest_ms: int | None = None
    newest_ms: int | None = None
    unkept: Mapping[str, str] = field(default_factory=dict)
    bytes_read: int = 0
    deletes: StagedTable | None = None
    keyed: KeyedBatch | HistoryBatch | None = None
    rules: tuple[RuleResult, ...] = ()
    untimed: int = 0

    def tables(self) -> list[StagedTable]:
        """Return the tables in the order of publication: side tables first, the primary last."""
        return [t for t in (self.dead_letters, self.deletes, self.primary) if t is not None]

    def discard(self) -> None:
        """Remove what was staged and not published, files included."""
        for table in self.tables():
            table.branch.discard()


def staged_table(
    branch: StagingBranch, base: int | None, state: TableState, spans: tuple[Span, ...] | None = None
) -> StagedTable:
    """Return the snapshot that has just been appended to a branch that was at a base."""
    snapshot = branch.written(base)
    summary = summary_of(snapshot)
    return StagedTable(
        branch=branch,
        snapshot=snapshot.snapshot_id,
        appended=snapshot.snapshot_id,
        state=state,
        rows=int(summary.get("added-records", 0)),
        files=int(summary.get("added-data-files", 0)),
        size=int(summary.get("added-files-size", 0)),
        spans=spans,
        summary=summary,
    )
