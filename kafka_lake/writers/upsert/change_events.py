"""Decoded records as changes of rows."""

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.cdc.task.change import DELETE, READ, TRUNCATE, UPSERT
from kafka_lake.cdc.unavailable import may_be_unavailable
from kafka_lake.common.sql_text import unsafe_condition
from kafka_lake.errors import ConfigurationError
from kafka_lake.formats.excepted import without_excepted
from kafka_lake.formats.rows import CHANGE, DELETED, change_columns, origin_of
from kafka_lake.formats.task.batches import CHANGE as TOLD
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.upsert.keys import (
    EVENT_TIME,
    INTERNAL,
    KEY_CHANGED,
    OPERATION,
    SNAPSHOT_MARKER,
    SOURCE_TABLE,
    UNCHANGED,
    quoted,
)

BEGINS = ("first", "first_in_data_collection")
ENDS = ("last", "last_in_data_collection")
"""Debezium's names for the first and the last row of a source snapshot."""
_TOLD_TYPE = "struct<operation: string, order: array<bigint>, at: bigint, snapshot: string, source: string>"


def changes_of(decoded: DataFrame, spec: TopicTable, topic_id: str) -> DataFrame:
    """Return the changes that decoded records stand for, without records that change nothing."""
    if TOLD not in decoded.columns:
        # The decoder looked at none of them.
        decoded = decoded.withColumn(TOLD, F.lit(None).cast(_TOLD_TYPE))
    told = F.col(TOLD)
    good = decoded.filter(F.col("error_class").isNull() & told["operation"].isNotNull())
    columns = [F.col("decoded.*"), origin_of(good, topic_id).alias(spec.metadata_column or "")]
    rows = good.select(*columns, told.alias(TOLD))
    does = F.col(TOLD)["operation"]
    if spec.delete_when is not None:
        gone = _condition(rows, spec, spec.delete_when)
        does = F.when(does.isin(UPSERT, READ) & gone, F.lit(DELETE)).otherwise(does)
    kind = decoded.schema["decoded"].dataType
    assert isinstance(kind, T.StructType)
    values = without_excepted(kind, spec)
    is_soft = spec.deletes == "soft"
    # A soft delete changes the row as any other change does.
    acts = F.col(TOLD)["operation"] if is_soft else does
    told_of = rows.schema[TOLD].dataType
    assert isinstance(told_of, T.StructType)
    kept = F.array().cast("array<string>")
    if spec.is_partial:
        kept = _untold(spec, values, acts)
    elif "unavailable" in told_of.names:
        kept = told["unavailable"]
    if is_soft:
        kept = F.when(F.col(TOLD)["operation"] == DELETE, _all_but_key(values, spec)).otherwise(kept)
    added = {
        OPERATION: does,
        UNCHANGED: kept,
        EVENT_TIME: F.timestamp_millis(told["at"]),
        SNAPSHOT_MARKER: told["snapshot"],
    }
    added[KEY_CHANGED] = F.lit(False)
    added[SOURCE_TABLE] = told["source"] if deletes_by_source(spec) else F.lit(None).cast("string")
    for field in change_columns(spec):
        if field.name == CHANGE:
            added[CHANGE] = F.struct(does.alias("op"), F.col(TOLD)["order"].alias("order"))
        if field.name == DELETED:
            added[DELETED] = does == DELETE
    made = {name: F.col(quoted(name)) for name in rows.columns if name != TOLD} | added
    if "old_key" not in told_of.names:
        return rows.select(*_named(made))
    return _with_moved(rows, made, told_of["old_key"].dataType.fieldNames(), spec, values=values)


def _with_moved(
    rows: DataFrame, made: dict[str, Column], key: Sequence[str], spec: TopicTable, values: T.StructType
) -> DataFrame:
    """Add to each change of a row's key the delete of the old key's row, with the same place and order."""
    old = F.col(TOLD)["old_key"]
    kinds = rows.select(*_named(made)).schema
    gone = {field.name: F.lit(None).cast(field.dataType) for field in kinds}
    shared = (*spec.order_by, spec.metadata_column, EVENT_TIME, SOURCE_TABLE)
    gone |= {name: made[name] for name in shared if name in made}
    gone |= {name: old[name] for name in key}
    gone |= {OPERATION: F.lit(DELETE), KEY_CHANGED: F.lit(True), UNCHANGED: F.array().cast("array<string>")}
    if spec.deletes == "soft":
        gone |= {UNCHANGED: _all_but_key(values, spec), DELETED: F.lit(True)}
    if CHANGE in made:
        gone[CHANGE] = F.struct(F.lit(DELETE).alias("op"), F.col(TOLD)["order"].alias("order"))
    is_moved = old.isNotNull() & reduce(or_, [~old[name].eqNullSafe(F.col(quoted(name))) for name in key])
    as_it_is, moved = (F.struct(*_named(columns)) for columns in (made, gone))
    both = F.when(is_moved, F.array(as_it_is, moved)).otherwise(F.array(as_it_is))
    return rows.select(F.explode(both).alias("change")).select("change.*")


def _all_but_key(values: T.StructType, spec: TopicTable) -> Column:
    """Return the columns that a soft delete leaves as they are.

    A delete by delete_when has the whole row; other deletes have the key alone, for which the metadata column stands.
    """
    return F.array(*[F.lit(name) for name in (*values.names, spec.metadata_column)])


def _condition(rows: DataFrame, spec: TopicTable, text: str) -> Column:
    about = f"delete_when: {text!r} isn't a condition on the rows of topic {spec.topic}"
    remedy = f"Its columns are {', '.join(name for name in rows.columns if name != TOLD)}."
    if unsafe := unsafe_condition(text):
        raise ConfigurationError(f"{about}: {unsafe}.", remedy)
    try:
        # Connect analyses the condition only when the schema is requested.
        rows.filter(F.expr(text)).schema  # noqa: B018
    except (AnalysisException, ParseException) as error:
        reason = str(error).splitlines()[0].partition(" SQLSTATE")[0].rstrip(" ;.")
        raise ConfigurationError(f"{about}: {reason}.", remedy) from error
    return F.expr(text)


def counted(spec: TopicTable) -> tuple[dict[str, Column], dict[str, Column]]:
    """Return aggregates over the changes of one key, and the aggregates that sum these up for the batch."""
    does = F.col(OPERATION)
    counts = {
        "changes": F.count_if(~F.col(KEY_CHANGED)),
        "deletes": F.count_if(does == DELETE),
        "truncates": F.count_if(does == TRUNCATE),
        "reads": F.count_if(F.col(SNAPSHOT_MARKER).isin(*BEGINS, *ENDS)),
    }
    parts = {f"{INTERNAL}{name}": count for name, count in counts.items()}
    totals = {name: F.coalesce(F.sum(f"{INTERNAL}{name}"), F.lit(0)) for name in counts}
    if not deletes_by_source(spec):
        return parts, {**totals, "sources": F.array().cast("array<string>")}
    first, last = f"{INTERNAL}first_source", f"{INTERNAL}last_source"
    parts |= {first: F.min(SOURCE_TABLE), last: F.max(SOURCE_TABLE)}
    return parts, {**totals, "sources": F.array_distinct(F.array_compact(F.array(F.min(first), F.max(last))))}


def deletes_by_source(spec: TopicTable) -> bool:
    """Return whether rows may go because one of the source's tables lacks them."""
    return spec.snapshot == "replace" or spec.on_truncate == "apply"


def can_leave_out(field: T.StructField, spec: TopicTable) -> bool:
    """Return whether a change may leave a column as it is."""
    if spec.deletes == "soft":
        return True
    if spec.ignore_null_updates:
        return spec.null_leaves(field.name)
    return spec.envelope == "debezium" and may_be_unavailable(field.dataType)


def _untold(spec: TopicTable, values: T.StructType, does: Column) -> Column:
    """Return the columns that a change leaves as they are by a null."""
    none = F.array().cast("array<string>")
    named = [name for name in values.names if spec.null_leaves(name) and name not in (*spec.key, *spec.order_by)]
    if not named:
        return none
    untold = F.array_compact(F.array(*[F.when(F.col(quoted(name)).isNull(), F.lit(name)) for name in named]))
    return F.when(does.isin(UPSERT, READ), untold).otherwise(none)


def _named(columns: dict[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]
