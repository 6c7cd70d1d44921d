"""Decoded records become change events: the table's columns, and what the event does."""

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.cdc.changes import may_lack_values
from kafka_lake.cdc.task.change import DELETE, READ, TRUNCATE, UPSERT
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import ConfigurationError
from kafka_lake.formats.rows import CHANGE, DELETED, change_columns, origin_of
from kafka_lake.formats.table_compatibility import without_excepted
from kafka_lake.formats.task.batches import CHANGE as DECODED
from kafka_lake.spec.sql_text import unsafe_condition
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.upsert.keys import (
    EVENT_TIME,
    INTERNAL,
    KEY_CHANGED,
    OPERATION,
    SNAPSHOT_MARKER,
    SOURCE_TABLE,
    UNCHANGED,
)

SNAPSHOT_BEGINS = ("first", "first_in_data_collection")
SNAPSHOT_ENDS = ("last", "last_in_data_collection")
"""Debezium's names for the first and the last row of a source snapshot."""
INTERNAL_COLUMNS = T.StructType(
    [
        T.StructField(OPERATION, T.StringType()),
        T.StructField(UNCHANGED, T.ArrayType(T.StringType())),
        T.StructField(EVENT_TIME, T.TimestampType()),
        T.StructField(SNAPSHOT_MARKER, T.StringType()),
        T.StructField(SOURCE_TABLE, T.StringType()),
        T.StructField(KEY_CHANGED, T.BooleanType()),
    ]
)
_DECODED_TYPE = "struct<operation: string, order: array<bigint>, at: bigint, snapshot: string, source: string>"


def change_events(decoded: DataFrame, spec: TopicTable, topic_id: str) -> DataFrame:
    """Return the change events of decoded records; records that change nothing are left out."""
    if DECODED not in decoded.columns:
        decoded = decoded.withColumn(DECODED, F.lit(None).cast(_DECODED_TYPE))
    decoded_change = F.col(DECODED)
    good = decoded.filter(F.col("error_class").isNull() & decoded_change["operation"].isNotNull())
    metadata = origin_of(good, topic_id).alias(METADATA_COLUMN)
    rows = good.select("decoded.*", metadata, decoded_change.alias(DECODED))
    decoded_operation = operation = decoded_change["operation"]
    if spec.delete_when is not None:
        is_deleted = operation.isin(UPSERT, READ) & _condition(rows, spec, spec.delete_when)
        operation = F.when(is_deleted, F.lit(DELETE)).otherwise(operation)
    row_type, change_type = decoded.schema["decoded"].dataType, rows.schema[DECODED].dataType
    assert isinstance(row_type, T.StructType)
    assert isinstance(change_type, T.StructType)
    values = without_excepted(row_type, spec)
    is_soft = spec.marks_deletes
    unchanged = no_names()
    if spec.is_partial:
        # A soft delete by delete_when changes the row as any other event does.
        unchanged = _ignored_nulls(spec, values, decoded_operation if is_soft else operation)
    elif "unavailable" in change_type.names:
        unchanged = decoded_change["unavailable"]
    if is_soft:
        unchanged = F.when(decoded_operation == DELETE, _all_but_key(values, spec)).otherwise(unchanged)
    events = {name: F.col(quoted(name)) for name in rows.columns if name != DECODED}
    events |= {
        OPERATION: operation,
        UNCHANGED: unchanged,
        EVENT_TIME: F.timestamp_millis(decoded_change["at"]),
        SNAPSHOT_MARKER: decoded_change["snapshot"],
        KEY_CHANGED: F.lit(False),
        SOURCE_TABLE: decoded_change["source"] if needs_source_table(spec) else F.lit(None).cast("string"),
    }
    for field in change_columns(spec):
        if field.name == CHANGE:
            events[CHANGE] = F.struct(operation.alias("op"), decoded_change["order"].alias("order"))
        if field.name == DELETED:
            events[DELETED] = operation == DELETE
    if "old_key" not in change_type.names:
        return rows.select(*_named(events))
    return _with_key_changes(rows, events, change_type["old_key"].dataType.fieldNames(), spec, values=values)


def _with_key_changes(
    rows: DataFrame, events: dict[str, Column], key: Sequence[str], spec: TopicTable, values: T.StructType
) -> DataFrame:
    """Add to each update of a row's key the delete of the old key, with the same offset and order."""
    old = F.col(DECODED)["old_key"]
    delete = {field.name: F.lit(None).cast(field.dataType) for field in rows.select(*_named(events)).schema}
    shared = (*spec.order_by, METADATA_COLUMN, EVENT_TIME, SOURCE_TABLE)
    delete |= {name: events[name] for name in shared if name in events}
    delete |= {name: old[name] for name in key}
    delete |= {OPERATION: F.lit(DELETE), KEY_CHANGED: F.lit(True), UNCHANGED: no_names()}
    if spec.marks_deletes:
        delete |= {UNCHANGED: _all_but_key(values, spec), DELETED: F.lit(True)}
    if CHANGE in events:
        delete[CHANGE] = F.struct(F.lit(DELETE).alias("op"), F.col(DECODED)["order"].alias("order"))
    is_changed = old.isNotNull() & reduce(or_, [~old[name].eqNullSafe(F.col(quoted(name))) for name in key])
    event, delete_event = (F.struct(*_named(columns)) for columns in (events, delete))
    both = F.when(is_changed, F.array(event, delete_event)).otherwise(F.array(event))
    return rows.select(F.explode(both).alias("event")).select("event.*")


def _all_but_key(values: T.StructType, spec: TopicTable) -> Column:
    """Return the columns that a soft delete leaves unchanged, the metadata column included: it marks partial rows."""
    return F.array(*[F.lit(name) for name in (*values.names, METADATA_COLUMN)])


def _condition(rows: DataFrame, spec: TopicTable, text: str) -> Column:
    problem = f"delete_when: {text!r} isn't a condition on the rows of topic {spec.topic}"
    remedy = f"Its columns are {', '.join(name for name in rows.columns if name != DECODED)}."
    if unsafe := unsafe_condition(text):
        raise ConfigurationError(f"{problem}: {unsafe}.", remedy)
    try:
        # Connect analyses the condition only when the schema is requested.
        rows.filter(F.expr(text)).schema  # noqa: B018
    except (AnalysisException, ParseException) as error:
        reason = str(error).splitlines()[0].partition(" SQLSTATE")[0].rstrip(" ;.")
        raise ConfigurationError(f"{problem}: {reason}.", remedy) from error
    return F.expr(text)


def event_counts(spec: TopicTable) -> tuple[dict[str, Column], dict[str, Column]]:
    """Return aggregates over the events of one key, and aggregates that sum these up for the batch."""
    operation = F.col(OPERATION)
    counts = {
        "changes": F.count_if(~F.col(KEY_CHANGED)),
        "deletes": F.count_if(operation == DELETE),
        "truncates": F.count_if(operation == TRUNCATE),
        "snapshot_markers": F.count_if(F.col(SNAPSHOT_MARKER).isin(*SNAPSHOT_BEGINS, *SNAPSHOT_ENDS)),
    }
    per_key = {f"{INTERNAL}{name}": count for name, count in counts.items()}
    totals = {name: F.coalesce(F.sum(f"{INTERNAL}{name}"), F.lit(0)) for name in counts}
    if not needs_source_table(spec):
        return per_key, {**totals, "sources": no_names()}
    first, last = f"{INTERNAL}first_source", f"{INTERNAL}last_source"
    per_key |= {first: F.min(SOURCE_TABLE), last: F.max(SOURCE_TABLE)}
    return per_key, {**totals, "sources": F.array_distinct(F.array_compact(F.array(F.min(first), F.max(last))))}


def needs_source_table(spec: TopicTable) -> bool:
    """Return whether rows are deleted because a table of the source lacks them."""
    return spec.replaces_by_snapshot or spec.applies_truncates


def may_be_unchanged(field: T.StructField, spec: TopicTable) -> bool:
    """Return whether an event may leave a column unchanged."""
    if spec.marks_deletes:
        return True
    if spec.ignore_null_updates:
        return spec.null_leaves(field.name)
    return spec.envelope == "debezium" and may_lack_values(field)


def _ignored_nulls(spec: TopicTable, values: T.StructType, operation: Column) -> Column:
    """Return the columns whose null leaves them unchanged."""
    names = [name for name in values.names if spec.null_leaves(name) and name not in (*spec.key, *spec.order_by)]
    if not names:
        return no_names()
    nulls = F.array_compact(F.array(*[F.when(F.col(quoted(name)).isNull(), F.lit(name)) for name in names]))
    return F.when(operation.isin(UPSERT, READ), nulls).otherwise(no_names())


def no_names() -> Column:
    """Return an empty list of column names."""
    return F.array().cast("array<string>")


def _named(columns: dict[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]
