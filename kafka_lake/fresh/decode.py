"""Decode a topic's unread records as the next commit would: the same decoder, the same columns, the same rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from kafka_lake.catalog.positions import TableState
from kafka_lake.cdc.task.change import DELETE, READ, TRUNCATE, UPSERT
from kafka_lake.common.offsets import TopicIdentity
from kafka_lake.engine.interop import from_arrow_schema, to_arrow_schema
from kafka_lake.errors import FreshReadError
from kafka_lake.formats.decoder import Decoder
from kafka_lake.formats.rows import row_type
from kafka_lake.formats.table_compatibility import refuse_excepted, refuse_other_keys
from kafka_lake.formats.task.batches import dumped, loaded
from kafka_lake.formats.task.decoded import NOTHING, Observed
from kafka_lake.formats.task.decoders import RecordDecoder, unpack_decoder
from kafka_lake.formats.task.shapes import column_of
from kafka_lake.fresh.conditions import condition_of, holds
from kafka_lake.fresh.tail import Chunk
from kafka_lake.quality.row_rules import RowRules, row_rules
from kafka_lake.quality.task.rules import RuleChecker
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.decoding import decoder_of
from kafka_lake.runtime.snapshot_rows import Database, columns_of, plain
from kafka_lake.spec.rule import BY_ARROW
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.schema_changes import allowed_changes, may_bring_columns, plan_schema, refuse_changes
from kafka_lake.writers.task.writer import Work, decode

OPERATION, CHANGE_EVENT = "__kafka_lake_operation", "__kafka_lake_event"
"""Columns of change events: what an event does, and the rest of what its envelope says."""
_PASSES = 8


@dataclass(frozen=True)
class Decoded:
    """The rows of a chunk.

    Args:
        rows: With the metadata column, and for change events `OPERATION` and `CHANGE_EVENT`.
        records: Number of records that are the table's.
        dead_letters: Number of records that the next commit would make dead letters.
        by: The data of the tasks' decoder that made them.
    """

    rows: pa.Table
    records: int
    dead_letters: int
    observed: Observed
    by: Mapping[str, Any]


class TopicDecoder:
    """Decodes the records of one topic for a table at one snapshot.

    Args:
        condition: Which of the topic's records are the table's, in DuckDB's SQL; None for all.

    Attributes:
        columns: The columns of the table after the next commit.
        key: The columns of the key; empty if the key is the record's key.

    Raises:
        FreshReadError: If the table has a setting that fresh reads don't support.
    """

    def __init__(
        self,
        database: Database,
        spec: TopicTable,
        connections: Connections,
        state: TableState,
        *,
        condition: str | None,
    ) -> None:
        refuse_unsupported(spec)
        refuse_other_keys(spec, state.table)
        refuse_excepted(spec, state.table)
        self.spec = may_bring_columns(spec, state)
        self._database, self._state, self._condition = database, state, condition
        self._first: Decoder = decoder_of(spec, connections, state)
        self._data: Mapping[str, Any] = {}
        self._plan(self._first)

    def decode(self, chunks: Sequence[Chunk], identity: TopicIdentity) -> list[Decoded]:
        """Decode records; once more if they show columns that the table lacks.

        Raises:
            SchemaRefusedError: If the table's policy forbids a change of the columns.
            FreshReadError: If an event deletes rows or empties the table, and a fresh read can't show that.
        """
        if self._decoder is not self._first and any(chunk.decoded is None for chunk in chunks):
            # New records may give learned columns other types.
            self._plan(self._first)
        for _ in range(_PASSES):
            made, seen = [], NOTHING
            for chunk in chunks:
                if chunk.decoded is None or chunk.decoded.by is not self._data:
                    chunk.decoded = self._decode(chunk.records, identity)
                made.append(chunk.decoded)
                seen = seen.and_(chunk.decoded.observed).within(self.spec.max_columns + 1)
            learned = self._decoder.learn(seen, None, self._target)
            if learned is None:
                break
            if not self._plan(learned.decoder):
                break
        return made

    def _plan(self, decoder: Decoder) -> bool:
        """Plan the columns by what a decoder knows; return whether records are decoded differently from now on."""
        spec, table = self.spec, self._state.table
        plan = plan_schema(spec, decoder, self._state)
        refuse_changes(spec, plan.refused)
        if plan.renamed:
            raise FreshReadError(
                f"Table {'.'.join(spec.identifier)}: the next commit renames columns "
                f"({', '.join(f'{c.before} → {c.after}' for c in plan.renamed)}).",
                f"Run the topic first: `kafka-lake ingest {spec.full_topic}`.",
            )
        rows, declared = row_type(plan.target.columns, spec), decoder.fixed is not None
        _, _, ignored = allowed_changes(spec, table, rows, plan=plan, declared=declared)
        self._decoder = decoder
        of_tasks = decoder.of_partitions(len(self._state.position.offsets) if self._state.position else 1)
        self.key = of_tasks.key_in(plan.target)
        data = of_tasks.for_tasks(plan.target, spec.max_record_bytes)
        if data == self._data:
            return False
        self._target, self._data = plan.target, data
        self._task: RecordDecoder = unpack_decoder(data)
        self.columns = columns_of(table)
        if not ignored:
            new = plain(to_arrow_schema(rows))
            self.columns = pa.unify_schemas([self.columns, new], promote_options="permissive")
        kinds: T.StructType = from_arrow_schema(self.columns, prefer_timestamp_ntz=True)
        self._rules: RowRules = row_rules(f"Topic {spec.topic}", spec.named_rules, kinds, declared)
        return True

    def _decode(self, records: pa.RecordBatch, identity: TopicIdentity) -> Decoded:
        if self._condition is not None:
            where = f"where: of table {'.'.join(self.spec.identifier)}"
            rows = pa.Table.from_batches([records])
            records = records.filter(holds(self._database, rows, self._condition, where))
        work = Work("", {}, {}, topic=identity.topic, topic_id=identity.topic_id)
        rows, kept, failed, decoded = decode(records, work, self._task)
        if decoded.change is not None:
            rows = self._as_events(rows, decoded.change, decoded.places)
        rows, broken = self._without_broken(rows, kept)
        seen = loaded([dumped(decoded.seen, records)] if decoded.seen else [], self.spec.max_columns)
        return Decoded(rows, len(records), len(failed) + broken, observed=seen, by=self._data)

    def _as_events(self, rows: pa.Table, change: pa.StructArray, places: Any) -> pa.Table:
        """Add what each event does to a row."""
        spec, operations = self.spec, change.field("operation")
        refused = {DELETE: spec.deletes == "fail", TRUNCATE: spec.on_truncate != "ignore"}
        for operation in (name for name, is_refused in refused.items() if is_refused):
            if count := pc.sum(pc.equal(operations, operation)).as_py():
                what = "delete rows" if operation == DELETE else "empty the table"
                raise FreshReadError(
                    f"Topic {spec.topic}: {count} of the unread records {what}, which a fresh read can't show.",
                    f"Run the topic, whose next commit handles them: `kafka-lake ingest {spec.full_topic}`.",
                )
        events = change.take(pa.array(places))
        rows = rows.append_column(OPERATION, events.field("operation")).append_column(CHANGE_EVENT, events)
        if spec.delete_when is not None:
            setting = f"delete_when: of topic {spec.topic}"
            is_deleted = f"{OPERATION} IN ('{UPSERT}', '{READ}') AND {condition_of(spec.delete_when, setting)}"
            # Spark compares a float with a literal as doubles.
            wide = [f.with_type(pa.float64()) if pa.types.is_float32(f.type) else f for f in rows.schema]
            deleted = holds(self._database, rows.cast(pa.schema(wide)), is_deleted, setting)
            operations = pc.if_else(deleted, DELETE, rows.column(OPERATION))
            rows = rows.set_column(rows.column_names.index(OPERATION), OPERATION, operations)
        return rows

    def _without_broken(self, rows: pa.Table, kept: pa.RecordBatch) -> tuple[pa.Table, int]:
        """Return the rows that break no rule by which they would become dead letters, and the number of the others."""
        if not self._rules.tests or not len(rows):
            return rows, 0
        checker = RuleChecker(self._rules.tests, self.columns)
        unchanged = None
        if CHANGE_EVENT in rows.column_names:
            event = rows.column(CHANGE_EVENT).combine_chunks()
            unchanged = event.field("unavailable") if event.type.get_field_index("unavailable") >= 0 else None
        refused = pa.array(checker.refuses(checker.add(rows, kept, unchanged)))
        if OPERATION in rows.column_names:
            refused = pc.and_(refused, pc.not_equal(rows.column(OPERATION).combine_chunks(), DELETE))
        return rows.filter(pc.invert(refused)), pc.sum(refused).as_py() or 0


def in_columns(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return rows with these columns in their types, and with the columns of change events if there are any."""
    more = [rows.field(name) for name in (OPERATION, CHANGE_EVENT) if name in rows.column_names]
    fields = pa.schema([*columns, *more])
    return pa.Table.from_arrays([column_of(rows, field) for field in fields], schema=fields)


def refuse_unsupported(spec: TopicTable) -> None:
    """Refuse settings that fresh reads don't support."""
    reasons = {
        "transform:, which needs Spark": spec.transform is not None,
        "on_snapshot: replace": spec.is_keyed and spec.snapshot == "replace",
        "several topics with write: upsert or history": spec.is_keyed and len(spec.each_topic) > 1,
        "ignore_null_updates in a history": spec.write == "history" and spec.is_partial,
        "rules and ignore_null_updates": spec.is_partial and any(rule.error_class for rule in spec.named_rules),
    }
    of_spark = [rule.name for rule in spec.named_rules if rule.error_class and rule.kind not in BY_ARROW]
    found = [reason for reason, applies in reasons.items() if applies]
    if of_spark:
        found.append(f"rules that need Spark ({', '.join(of_spark)})")
    if found:
        raise FreshReadError(
            f"Table {'.'.join(spec.identifier)} has {' and '.join(found)}; fresh reads don't support that.",
            "Query the table without its unread records.",
        )
