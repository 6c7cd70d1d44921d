"""What a plan becomes: data files, then snapshots on the branches of its tables, not yet visible to anyone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import AUTHOR, POSITION, TableState, summary_of
from kafka_lake.quality.result import RuleResult
from kafka_lake.runtime.dead_letter_class import DeadLetterClass
from kafka_lake.runtime.decode_options import Written
from kafka_lake.runtime.task.report import Span
from kafka_lake.schema.evolution.model import Conflict
from kafka_lake.schema.rules import Change
from kafka_lake.writers.history.versions import HistoryResult
from kafka_lake.writers.upsert.merge import UpsertResult


@dataclass(frozen=True)
class StagedTable:
    """One table's part of a commit, on its branch.

    Args:
        snapshot: The branch's tip, which will be published.
        appended: The snapshot that adds the rows; others on the branch delete replaced rows or keep missing ones.
        state: The table as it was before.
        rows: Rows that the appending snapshot adds, by its own summary.
        files: Data files that it adds.
        spans: As in `Written`.
        rules: As in `Written`.
        data_files: As in `Written`; empty if Spark wrote them.
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
    data_files: tuple[Any, ...] = ()
    summary: Mapping[str, str] = field(default_factory=dict)


def side_summary(summary: Mapping[str, str]) -> dict[str, str]:
    """Return the snapshot properties of a side table by those of the topic's table: position and author."""
    return {key: value for key, value in summary.items() if key in (POSITION, *AUTHOR)}


@dataclass(frozen=True)
class Vanished:
    """Rows of the table that Kafka no longer has, within what was read again."""

    partition: int
    rows: int
    first: int


@dataclass(frozen=True)
class Staged:
    """Everything that a plan became, not yet visible to anyone.

    Args:
        dead_letters: The dead-letter table, None if there is nothing new for it.
        records: How many were read.
        tombstones: How many of them have no value.
        failed: How many became no row, for a reason.
        known_failed: How many of the failed are in the dead-letter table already.
        vanished: Rows that a replacement would lose, since Kafka no longer has their records.
        failed_rows: The failed as rows of the dead-letter table, lazy.
        ignored: Columns that the policy leaves out.
        conflicts: Types that don't fit the columns, and where such values go.
        schemas: How many records were written with which schema of the registry.
        oldest_ms: The least Kafka timestamp, milliseconds since the epoch; None if there is none.
        unkept: What was in the records and is in no column, by path.
        bytes_read: Of keys, values and headers.
        deletes: The table of deleted keys, None if there is nothing new for it.
        keyed: What became of the changes; None for a table that is appended to.
        untimed: How many records have no Kafka timestamp, or one that is no time.
        decoded_singly: How many records no fast decoder took, so that they were decoded one by one.
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
    keyed: UpsertResult | HistoryResult | None = None
    rules: tuple[RuleResult, ...] = ()
    untimed: int = 0
    decoded_singly: int = 0

    def tables(self) -> list[StagedTable]:
        """Return the tables in the order of publication: side tables first, the primary last."""
        return [t for t in (self.dead_letters, self.deletes, self.primary) if t is not None]

    def discard(self) -> None:
        """Remove what was staged and not published, files included."""
        for table in self.tables():
            table.branch.discard()


def staged_table(
    branch: StagingBranch, base: int | None, state: TableState, written: Written | None = None
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
        spans=written.spans if written else None,
        rules=written.rules if written else None,
        data_files=written.files if written else (),
        summary=summary,
    )
