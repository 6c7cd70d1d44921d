"""A preview of the next run's schema changes, from the newest records; nothing is changed."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyspark.sql import DataFrame

from kafka_lake.catalog.positions import state_of
from kafka_lake.catalog.tables import schema_of
from kafka_lake.common.offsets import OffsetRange, Position, Watermarks
from kafka_lake.engine.frames import cached
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.error_classification import may_be_a_record_time
from kafka_lake.errors import KafkaLakeError
from kafka_lake.formats.decoder import Decoder, batch_metrics, decoded
from kafka_lake.formats.rows import dead_letters_of, transformed
from kafka_lake.formats.task.batches import OBSERVED, loaded
from kafka_lake.ingest.audit import noted
from kafka_lake.ingest.read import read
from kafka_lake.routing.by_value import knowing
from kafka_lake.routing.conditions import records_of
from kafka_lake.runtime.commit import ColumnNote
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.decoding import SchemaPlan, decoder_of
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.task.report import DeadLetterClass
from kafka_lake.schema.rules import Change, needed_changes
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.dead_letters import classes_of
from kafka_lake.writers.schema_changes import (
    arrow_columns,
    plan_schema,
    refuse_changes,
    refuse_too_many,
    refuse_unknown,
)

_PASSES = 4


@dataclass(frozen=True)
class Preview:
    """The newest records, and what they would change.

    Args:
        refused: The error of the next run; empty if it would succeed.
    """

    records: int
    tombstones: int
    classes: tuple[DeadLetterClass, ...]
    schemas: Mapping[str, int]
    notes: tuple[ColumnNote, ...]
    refused: str = ""


def newest(now: Watermarks, records: int) -> tuple[OffsetRange, ...]:
    """Return the newest offsets of a topic, shared evenly by its partitions.

    >>> from kafka_lake.common.offsets import TopicIdentity
    >>> now = Watermarks(TopicIdentity("c", "i", "t"), {0: 5, 1: 0}, {0: 100, 1: 3})
    >>> [(r.partition, r.start, r.end) for r in newest(now, 20)]
    [(0, 90, 100), (1, 0, 3)]
    """
    count = max(1, records // max(1, len(now.partitions)))
    ranges = (OffsetRange(p, max(now.low[p], now.end[p] - count), now.end[p]) for p in now.partitions)
    return tuple(r for r in ranges if len(r))


def preview(spec: TopicTable, connections: Connections, records: int, topic: TopicTable | None = None) -> Preview:
    """Decode a topic's newest records as the next run would, and change nothing."""
    now = connections.cluster.watermarks_of(spec.topic)
    ranges = newest(now, records)
    if not ranges:
        return Preview(records=0, tombstones=0, classes=(), schemas={}, notes=())
    topic, todo = topic or spec, Plan(ranges, Position(now.identity, now.end), 0)
    try:
        return _of_records(todo, topic, spec, connections)
    except Exception as error:
        if not may_be_a_record_time(error):
            raise
        return _of_records(replace(todo, by_client=True), topic, spec, connections)


def _of_records(todo: Plan, topic: TopicTable, spec: TopicTable, connections: Connections) -> Preview:
    own = connections.catalog.table(topic.identifier)
    sample = read(connections, todo, spec.topic)
    sample = records_of(sample, knowing(topic, own.properties if own else {}), spec, connections)
    with ExitStack() as held:
        return _previewed(spec, connections, cached(sample, held))


def _previewed(spec: TopicTable, connections: Connections, sample: DataFrame) -> Preview:
    table = connections.catalog.table(spec.identifier)
    state = state_of(spec, table) if table else None
    decoder = decoder_of(spec, connections, state)
    decoder = decoder if state else decoder.inspect(sample)
    plan, counts = plan_schema(spec, decoder, state), {}
    for _ in range(_PASSES):
        counts = _counted(decoder, sample, plan, spec.max_columns)
        learned = decoder.learn(counts[OBSERVED], sample, plan.target)
        if learned is None:
            break
        wiser = plan_schema(spec, learned.decoder, state)
        is_final = not learned.again and wiser.target == plan.target
        decoder, plan = learned.decoder, wiser
        if is_final:
            break
    if state is None:
        refuse_unknown(spec, plan.target)
    found = decoded(sample, decoder, plan.target, spec.max_record_bytes)
    schema = schema_of(arrow_columns(transformed(found, spec).schema, plan.target.columns, write=spec.write))
    before = _renamed(state.table, plan.renamed) if state else None
    changes = _changes(before, schema)
    ignored = (*plan.ignored, *(c for c in changes if c.kind == "added" and spec.ignores_new_fields))
    done = [c for c in (*plan.renamed, *changes) if c not in ignored]
    refused = ""
    try:
        refuse_changes(spec, [*plan.refused, *(c for c in done if not c.safe or spec.is_frozen)])
        if decoder.fixed is None:
            refuse_too_many(spec, before, schema)
    except KafkaLakeError as error:
        refused = str(error)
    return Preview(
        records=counts["records"],
        tombstones=counts["tombstones"],
        classes=classes_of(dead_letters_of(found, "")) if counts["failed"] else (),
        schemas=decoder.schema_counts(counts[OBSERVED]),
        notes=noted(spec, done, ignored=ignored, conflicts=plan.conflicts, unkept=decoder.not_stored()),
        refused=refused,
    )


def _counted(decoder: Decoder, sample: DataFrame, plan: SchemaPlan, max_columns: int) -> dict[str, Any]:
    counted: dict[str, Any] = decoded(sample, decoder, plan.target).agg(*batch_metrics()).collect()[0].asDict()
    return {**counted, OBSERVED: loaded(counted[OBSERVED], max_columns)}


def _renamed(table: Table, renamed: Sequence[Change]) -> Schema:
    """Return the table's schema after renames."""
    uncommitted = table.transaction()
    with uncommitted.update_schema() as update:
        for change in renamed:
            update.rename_column(change.column, change.after)
    return uncommitted.table_metadata.schema()


def _changes(before: Schema | None, schema: Schema) -> list[Change]:
    if before is None:
        return [Change(f.name, "added", "", str(f.field_type)) for f in schema.fields if f.name != METADATA_COLUMN]
    return needed_changes(before, schema)
