"""A batch of changes of a keyed table, and where they go."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import TableState
from kafka_lake.formats.rows import change_columns
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.record_keys import at_version
from kafka_lake.writers.frames import shaped
from kafka_lake.writers.upsert.change_events import can_leave_out
from kafka_lake.writers.upsert.keys import (
    EVENT_TIME,
    KEY_CHANGED,
    OPERATION,
    SNAPSHOT_MARKER,
    SOURCE_TABLE,
    UNCHANGED,
    Keys,
    are_few,
)
from kafka_lake.writers.upsert.source_snapshots import Ended
from kafka_lake.writers.upsert.truncates import Emptied


@dataclass(frozen=True)
class ChangeBatch:
    """A batch's changes, and where they go.

    Args:
        state: The table as the plan saw it, with the columns that the batch needs.
        branch: Of the table, at its head.
        key: The table's columns that tell rows apart; empty if it is the record's key as it is.
        tasks: How many tasks write deleted keys.
        failed: Tells how many records became dead letters, once the changes have been read.
        emptied: What is older than that doesn't count; None if there is nothing of the kind.
        ended: The snapshot of the source that lacks what is older; None if there is none, or not for the first time.
        declared: Whether the settings declare all columns.
    """

    context: Context
    plan: Plan
    state: TableState
    branch: StagingBranch
    changes: DataFrame
    key: Sequence[str]
    topic_id: str
    summary: Mapping[str, str]
    tasks: int
    failed: Callable[[], int]
    emptied: Emptied | None = None
    ended: Ended | None = None
    declared: bool = False

    @cached_property
    def columns(self) -> T.StructType:
        """The table's columns."""
        name = self.context.connections.catalog.spark_name(self.context.spec.identifier)
        columns: T.StructType = self.context.connections.spark().table(name).schema
        return columns

    @property
    def few(self) -> bool:
        """Return whether the keys of the changes are listed where rows of the table are looked for."""
        return are_few(self.plan.records_at_most - self.plan.elsewhere)

    @cached_property
    def keys(self) -> Keys:
        """What tells rows apart, and changes older from newer."""
        return Keys.of(self.context.spec, self.key, self.topic_id, self.columns)

    @cached_property
    def may_lack(self) -> list[str]:
        """The columns that a change may leave as they are."""
        spec, keys = self.context.spec, self.keys
        about = [field.name for field in change_columns(spec)]
        others = (
            spec.metadata_column,
            OPERATION,
            UNCHANGED,
            EVENT_TIME,
            SNAPSHOT_MARKER,
            SOURCE_TABLE,
            KEY_CHANGED,
            *about,
        )
        values = [name for name in self.changes.columns if name not in others]
        told = (*keys.columns, *keys.order_by)
        return [f.name for f in self.columns if f.name not in told and f.name in values and can_leave_out(f, spec)]

    def rows(self, snapshot: int | None = None) -> DataFrame:
        """Return the table's rows in a snapshot; those that the branch starts from and the batch leaves, if None."""
        name, head = self.context.connections.catalog.spark_name(self.context.spec.identifier), self.state.head
        assert head is not None, "ensure_table gives every table a first snapshot"
        rows = at_version(self.context.connections.spark(), name, head if snapshot is None else snapshot)
        # An older snapshot is read with the columns that it was written with.
        rows = shaped(rows, self.columns)
        if snapshot is not None or self.emptied is None or not self.emptied.is_new:
            return rows
        return rows.alias("t").filter(~F.expr(self.emptied.at.is_behind(self.keys, "t")))
