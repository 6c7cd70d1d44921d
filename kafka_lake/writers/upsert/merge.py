"""MERGE deduplicated change events into a branch as one snapshot, and audit what Spark merged."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.cdc.task.change import DELETE, READ, UPSERT
from kafka_lake.engine.settings import SNAPSHOT_PROPERTY
from kafka_lake.quality.validation import ValidationResult
from kafka_lake.writers.upsert.cutoff import AppliedCutoff
from kafka_lake.writers.upsert.deduplicate import value_order_column
from kafka_lake.writers.upsert.keys import OPERATION, UNCHANGED, KeyBounds, Keys
from kafka_lake.writers.upsert.missing_values import MissingValue

_MERGED_ROWS = "spark.merge-into.num-target-rows-"


def run_merge(spark: Any, rows: DataFrame, summary: Mapping[str, str], statement: Callable[[str], str]) -> None:
    """Run a MERGE; ``statement`` returns it for the name of a view of the rows."""
    view = f"kafka_lake_{uuid4().hex}"
    # Dropping a view of a cached frame would uncache the frame itself.
    rows.filter(F.lit(True)).createOrReplaceTempView(view)
    try:
        with _snapshot_properties(spark, summary):
            spark.sql(statement(view)).collect()
    finally:
        spark.catalog.dropTempView(view)


def merge_statement(
    table: str, view: str, columns: Sequence[str], keys: Keys, *, nullable: Sequence[str], bounds: KeyBounds
) -> str:
    """Return the MERGE of an upsert table; ``nullable`` are columns that an event may leave unchanged."""
    internal = {OPERATION, UNCHANGED, *map(value_order_column, range(len(nullable)))}
    names = [name for name in columns if name not in internal]
    newer = keys.is_newer("s", "t")
    if not keys.has_order:
        fails = keys.raise_other_partition("s", "t")
        newer = f"(CASE WHEN {keys.other_partition('s', 't')} THEN {fails} ELSE {newer} END)"
    sets = []
    for name in names:
        column = quoted(name)
        value = f"s.{column}"
        if name in nullable:
            order = f"s.{value_order_column(nullable.index(name))}"
            value = f"CASE WHEN {order} IS NOT NULL AND {order} >= {keys.order('t')} THEN {value} ELSE t.{column} END"
        sets.append(f"t.{column} = {value}")
    condition = " AND ".join([keys.same_key("t", "s"), *bounds.conditions("t")])
    delete = [] if keys.is_soft else [f"WHEN MATCHED AND {newer} AND s.{OPERATION} = '{DELETE}' THEN DELETE"]
    values = ", ".join(f"s.{quoted(name)}" for name in names)
    return "\n".join(
        [
            f"MERGE INTO {table} AS t USING {view} AS s ON {condition}",
            *delete,
            f"WHEN MATCHED AND {newer} THEN UPDATE SET {', '.join(sets)}",
            f"WHEN NOT MATCHED AND {inserts_row('s', keys)} "
            f"THEN INSERT ({', '.join(map(quoted, names))}) VALUES ({values})",
        ]
    )


def inserts_row(alias: str, keys: Keys) -> str:
    """Return the condition that an event inserts a row if there is none. A soft delete with all values does."""
    operation = f"{alias}.{OPERATION}"
    soft = f" OR ({operation} = '{DELETE}' AND size({alias}.{UNCHANGED}) = 0)" if keys.is_soft else ""
    return f"({operation} IN ('{UPSERT}', '{READ}'){soft})"


@contextmanager
def _snapshot_properties(spark: Any, summary: Mapping[str, str]) -> Iterator[None]:
    """Set snapshot properties by Spark's settings: MERGE takes no options."""
    names = [f"{SNAPSHOT_PROPERTY}{key}" for key in summary]
    try:
        for name, value in zip(names, summary.values(), strict=True):
            spark.conf.set(name, value)
        yield
    finally:
        for name in names:
            spark.conf.unset(name)


@dataclass(frozen=True)
class MergeCounts:
    """Rows that a MERGE changed, by its own counters and by the files that it wrote.

    Args:
        added: Rows in new data files, without copied ones.
        removed: Rows in new delete files; None if data files were rewritten instead.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    added: int = 0
    removed: int | None = 0

    @classmethod
    def of(cls, summary: Mapping[str, str]) -> "MergeCounts":
        """Return the counts in a snapshot's summary."""
        names = ("inserted", "updated", "deleted", "copied")
        counts = {name: int(summary.get(f"{_MERGED_ROWS}{name}", 0)) for name in names}
        added = int(summary.get("added-records", 0)) - counts.pop("copied")
        # A new deletion vector has the rows of the one that it replaces, too.
        new, replaced = (int(summary.get(f"{name}-position-deletes", 0)) for name in ("added", "removed"))
        return cls(**counts, added=added, removed=None if "deleted-data-files" in summary else new - replaced)

    def problems(self, keys: int, rows: int) -> tuple[str, ...]:
        """Return what is wrong, given the number of merged keys and of those whose event has a row."""
        written, removed = self.inserted + self.updated, self.updated + self.deleted
        problems = []
        if written > rows:
            problems.append(f"{written} rows were inserted or updated, but only {rows} keys have a change with a row")
        if written + self.deleted > keys:
            changed = written + self.deleted
            problems.append(f"{changed} rows were changed by the changes of {keys} keys: a key has several rows")
        if self.added != written:
            problems.append(
                f"{self.inserted} rows were inserted and {self.updated} updated, but the new files have {self.added}"
            )
        if self.removed not in (None, removed):
            problems.append(
                f"{self.updated} rows were updated and {self.deleted} deleted, but the delete files have {self.removed}"
            )
        return tuple(problems)


@dataclass(frozen=True)
class UpsertResult:
    """Result of a batch of change events in an upsert table.

    Args:
        changes: Records that were applied.
        late: Keys whose event is older than a remembered delete.
        rows: Merged keys whose event has a row.
        cutoff: The truncate or source snapshot before which no event counts.
    """

    changes: int
    keys: int
    deletes: int
    late: int
    rows: int = 0
    merged: MergeCounts = field(default_factory=MergeCounts)
    missing_values: tuple[MissingValue, ...] = ()
    cutoff: AppliedCutoff | None = None
    validation: ValidationResult = field(default_factory=ValidationResult)

    @property
    def ignored(self) -> int:
        """Return the number of keys without an effect: older than the row, or a delete without a row."""
        return self.keys - self.merged.inserted - self.merged.updated - self.merged.deleted

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong."""
        cutoff = self.cutoff.problems if self.cutoff else ()
        return (*self.merged.problems(self.keys - self.late, self.rows), *cutoff)

    @property
    def facts(self) -> dict[str, int]:
        """Return the figures for the check's metadata."""
        return {
            "keys": self.keys,
            "rows_inserted": self.merged.inserted,
            "rows_updated": self.merged.updated,
            "rows_deleted": self.merged.deleted,
            "keys_ignored": self.ignored,
            "keys_later_deleted": self.late,
            **(self.cutoff.facts if self.cutoff else {}),
        }
