"""Merge: a batch's changes, one for each key, into a branch as one snapshot; and the audit of what was merged."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.cdc.task.change import DELETE, READ, UPSERT
from kafka_lake.engine.settings import SNAPSHOT_PROPERTY
from kafka_lake.quality.validation import ValidationResult
from kafka_lake.writers.upsert.deduplicate import MissingValue, order_of
from kafka_lake.writers.upsert.keys import OPERATION, OTHER_PARTITION, UNCHANGED, Bounds, Keys, quoted, stop
from kafka_lake.writers.upsert.truncates import Emptied

_MERGED = "spark.merge-into.num-target-rows-"


@dataclass(frozen=True)
class MergePlan:
    """How changes meet the rows of a table.

    Args:
        may_lack: Columns that a change may leave as they are.
        within: Bounds of the changes' keys.
    """

    keys: Keys
    may_lack: Sequence[str]
    within: Bounds


def merge(spark: Any, branch: StagingBranch, changes: DataFrame, how: MergePlan, *, summary: Mapping[str, str]) -> None:
    """Merge changes, one for each key and none of them late, into a branch; `StagingBranch.written` checks it."""
    run_merge(spark, changes, summary, lambda view: statement(branch.write_name, view, changes.columns, how))


def run_merge(spark: Any, rows: DataFrame, summary: Mapping[str, str], statement_of: Callable[[str], str]) -> None:
    """Run the MERGE that a function returns for the name of a view of the rows."""
    view = f"kafka_lake_{uuid4().hex}"
    # Dropping a view of a cached frame would uncache the frame itself.
    rows.filter(F.lit(True)).createOrReplaceTempView(view)
    try:
        with _summary(spark, summary):
            spark.sql(statement_of(view)).collect()
    finally:
        spark.catalog.dropTempView(view)


def statement(table: str, view: str, columns: Sequence[str], how: MergePlan) -> str:
    """Return the MERGE. Pure."""
    keys, may_lack = how.keys, how.may_lack
    ours = {OPERATION, UNCHANGED, *(order_of(number) for number in range(len(may_lack)))}
    names = [name for name in columns if name not in ours]
    newer, does = keys.is_newer("s", "t"), f"s.{OPERATION}"
    if not keys.has_order:
        stopped = stop(OTHER_PARTITION, keys, "s", "t")
        newer = f"(CASE WHEN {keys.other_partition('s', 't')} THEN {stopped} ELSE {newer} END)"
    sets, values = [], []
    for name in names:
        column = quoted(name)
        if name in may_lack:
            told = f"s.{order_of(may_lack.index(name))}"
            is_newer = f"{told} IS NOT NULL AND {told} >= {keys.order('t')}"
            sets.append(f"t.{column} = CASE WHEN {is_newer} THEN s.{column} ELSE t.{column} END")
        else:
            sets.append(f"t.{column} = s.{column}")
        values.append(f"s.{column}")
    matched = [f"WHEN MATCHED AND {newer} AND {does} = '{DELETE}' THEN DELETE"] if not keys.is_soft else []
    conditions = " AND ".join([keys.same("t", "s"), *how.within.hold_for("t")])
    return "\n".join(
        [
            f"MERGE INTO {table} AS t USING {view} AS s ON {conditions}",
            *matched,
            f"WHEN MATCHED AND {newer} THEN UPDATE SET {', '.join(sets)}",
            f"WHEN NOT MATCHED AND {brings('s', keys)} "
            f"THEN INSERT ({', '.join(map(quoted, names))}) VALUES ({', '.join(values)})",
        ]
    )


def brings(alias: str, keys: Keys) -> str:
    """Return the condition that a change inserts a row if there is none; a soft delete with all values does."""
    does = f"{alias}.{OPERATION}"
    marked = f" OR ({does} = '{DELETE}' AND size({alias}.{UNCHANGED}) = 0)" if keys.is_soft else ""
    return f"({does} IN ('{UPSERT}', '{READ}'){marked})"


@contextmanager
def _summary(spark: Any, summary: Mapping[str, str]) -> Iterator[None]:
    """Set snapshot properties for the block by Spark's settings: MERGE takes no options."""
    names = [f"{SNAPSHOT_PROPERTY}{key}" for key in summary]
    try:
        for name, value in zip(names, summary.values(), strict=True):
            spark.conf.set(name, value)
        yield
    finally:
        for name in names:
            spark.conf.unset(name)


@dataclass(frozen=True)
class Merged:
    """What a merge did, as Spark counted it, and as the writers of its files did.

    Args:
        added: Rows in new data files, without copied ones.
        gone: Rows in new delete files; None if data files were rewritten instead.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    added: int = 0
    gone: int | None = 0

    @classmethod
    def of(cls, summary: Mapping[str, str]) -> "Merged":
        """Return the counts in the summary of a merge's snapshot."""
        found = {name: int(summary.get(f"{_MERGED}{name}", 0)) for name in ("inserted", "updated", "deleted", "copied")}
        added = int(summary.get("added-records", 0)) - found.pop("copied")
        # A deletion vector replaces the one before it, and has its rows too.
        deletes = [int(summary.get(f"{each}-position-deletes", 0)) for each in ("added", "removed")]
        return cls(**found, added=added, gone=None if "deleted-data-files" in summary else deletes[0] - deletes[1])

    def problems(self, keys: int, brings: int) -> tuple[str, ...]:
        """Return what is wrong with the merge of so many keys, of which ``brings`` have a change with a row."""
        written, gone = self.inserted + self.updated, self.updated + self.deleted
        found = []
        if written > brings:
            found.append(
                f"{written} rows were inserted or updated, but only {brings} keys have a change that brings one"
            )
        if written + self.deleted > keys:
            found.append(f"{written + self.deleted} rows were changed by the changes of {keys} keys: a key has several")
        if self.added != written:
            found.append(
                f"{self.inserted} rows were inserted and {self.updated} updated, but the new files have {self.added}"
            )
        if self.gone not in (None, gone):
            found.append(
                f"{self.updated} rows were updated and {self.deleted} deleted, but the delete files have {self.gone}"
            )
        return tuple(found)


@dataclass(frozen=True)
class UpsertResult:
    """What became of a batch of changes.

    Args:
        changes: Records that were applied.
        keys: Number of their keys.
        late: Keys whose change is older than a remembered delete.
        brings: Merged keys whose change has a row.
        not_sent: Changes that lack values, by partition and offset.
        emptied: The truncate before which nothing counts.
        verdict: Result of the rules.
    """

    changes: int
    keys: int
    deletes: int
    late: int
    brings: int = 0
    merged: Merged = field(default_factory=Merged)
    not_sent: tuple[MissingValue, ...] = ()
    emptied: Emptied | None = None
    verdict: ValidationResult = field(default_factory=ValidationResult)

    @property
    def ignored(self) -> int:
        """Return the number of keys without an effect: older than the row, or a delete without a row."""
        return self.keys - self.merged.inserted - self.merged.updated - self.merged.deleted

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong."""
        emptied = self.emptied.problems if self.emptied else ()
        return (*self.merged.problems(self.keys - self.late, self.brings), *emptied)

    @property
    def facts(self) -> dict[str, int]:
        """Return the figures for the check's page."""
        return {
            "keys": self.keys,
            "rows_inserted": self.merged.inserted,
            "rows_updated": self.merged.updated,
            "rows_deleted": self.merged.deleted,
            "keys_ignored": self.ignored,
            "keys_later_deleted": self.late,
            **(self.emptied.facts if self.emptied else {}),
        }
