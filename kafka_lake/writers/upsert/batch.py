"""A batch of change events for an upsert table or a history."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import TableState, row_count
from kafka_lake.engine.frames import at_version
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.formats.rows import change_columns
from kafka_lake.quality.result import refused_mark
from kafka_lake.quality.validation import ValidationResult
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.writers.frames import shaped
from kafka_lake.writers.upsert.change_events import INTERNAL_COLUMNS, may_be_unchanged
from kafka_lake.writers.upsert.cutoff import AppliedCutoff
from kafka_lake.writers.upsert.keys import Keys, filtered_records


@dataclass(frozen=True)
class ChangeBatch:
    """Change events of a batch, and the branch that they are merged into.

    Args:
        state: The table as planned, with the columns that the batch needs.
        key: Key columns of the table; empty if the key is the record's key.
        tasks: Number of tasks that write deleted keys.
        failed: Returns the number of dead letters, once the events have been read.
        cutoff: Older rows and events don't count.
    """

    context: Context
    plan: Plan
    state: TableState
    branch: StagingBranch
    events: DataFrame
    columns: T.StructType
    key: Sequence[str]
    topic_id: str
    summary: Mapping[str, str]
    tasks: int
    failed: Callable[[], int]
    declared: bool = False
    cutoff: AppliedCutoff | None = None
    is_complete: bool = False

    @property
    def table_name(self) -> str:
        """The table's name in Spark."""
        return self.context.connections.catalog.spark_name(self.context.spec.identifier)

    @property
    def filtered_records(self) -> int:
        """Return the maximum number of the batch's records, or 0 if its keys can't filter the table."""
        types = [self.columns[name].dataType for name in self.key] or [T.BinaryType()]
        return filtered_records(self.plan.records_at_most - self.plan.elsewhere, row_count(self.state.table), types)

    @cached_property
    def keys(self) -> Keys:
        """Key and order of the events."""
        return Keys.of(self.context.spec, self.key, self.topic_id)

    @cached_property
    def nullable(self) -> list[str]:
        """The columns that an event may leave unchanged."""
        if self.is_complete:
            return []
        spec, keys = self.context.spec, self.keys
        others = {METADATA_COLUMN, *INTERNAL_COLUMNS.names, *(field.name for field in change_columns(spec))}
        values = {*self.events.columns} - others - {*keys.columns, *keys.order_by}
        return [field.name for field in self.columns if field.name in values and may_be_unchanged(field, spec)]

    def rows(self) -> DataFrame:
        """Return the table's rows at the head that the branch starts from, without those older than a new cutoff."""
        head = self.state.head
        assert head is not None, "ensure_table gives every table a first snapshot"
        # An older snapshot is read with the columns that it was written with.
        rows = shaped(at_version(self.context.connections.spark(), self.table_name, head), self.columns)
        if self.cutoff is None or not self.cutoff.is_new:
            return rows
        return rows.alias("t").filter(~F.expr(self.cutoff.cutoff.is_older(self.keys, "t")))

    def without_refused(self, validation: ValidationResult) -> "ChangeBatch":
        """Return a batch that counts records refused by rules among its dead letters."""
        refused, failed = validation.refused, self.failed
        if refused is None:
            return self
        summary = {**self.summary, **refused_mark(refused.by_rule)}
        return replace(self, failed=lambda: failed() + len(refused), summary=summary)
