"""Staged tables: snapshots on branches, which aren't published yet."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import TableState, summary_of
from kafka_lake.quality.result import RuleResult
from kafka_lake.runtime.decoding import Written
from kafka_lake.runtime.task.report import DeadLetterClass, Span
from kafka_lake.schema.evolution.model import Conflict
from kafka_lake.schema.rules import Change
from kafka_lake.writers.history.versions import HistoryResult
from kafka_lake.writers.upsert.merge import UpsertResult


@dataclass(frozen=True)
class StagedTable:
    """A table on its branch.

    Args:
        snapshot: The branch's tip, which will be published.
        appended: The snapshot that adds the rows; others on the branch delete replaced rows or keep missing ones.
        size: Bytes of the added data files.
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


@dataclass(frozen=True)
class Vanished:
    """Rows of a partition whose records were to be replayed, and that Kafka no longer has."""

    partition: int
    rows: int
    first: int


@dataclass(frozen=True)
class Staged:
    """A staged commit.

    Args:
        dead_letters: The dead-letter table; None if nothing was added to it.
        tombstones: Number of records without a value.
        known_failed: Dead letters that the table has already.
        vanished: Rows that a replay would lose, since Kafka no longer has their records.
        failed_rows: All dead letters as rows of their table, lazy.
        ignored: Columns that the policy leaves out.
        oldest_ms: The least Kafka timestamp, in milliseconds since the epoch; None if there is none.
        unkept: Values of the records that are in no column, by path.
        bytes_read: Bytes of keys, values and headers.
        untimed: Number of records without a valid Kafka timestamp.
        decoded_singly: Number of records that the fast decoder refused; they were decoded one by one.
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
    merge_result: UpsertResult | HistoryResult | None = None
    rules: tuple[RuleResult, ...] = ()
    untimed: int = 0
    decoded_singly: int = 0

    def tables(self) -> list[StagedTable]:
        """Return the tables in the order of publication."""
        return [t for t in (self.dead_letters, self.deletes, self.primary) if t is not None]

    def discard(self) -> None:
        """Remove the branches and their files."""
        for table in self.tables():
            table.branch.discard()


def staged_table(
    branch: StagingBranch, base: int | None, state: TableState, written: Written | None = None
) -> StagedTable:
    """Return the table after a snapshot was appended to its branch at ``base``."""
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
        spans=written.spans if written else None,
        rules=written.rules if written else None,
        summary=summary,
    )
