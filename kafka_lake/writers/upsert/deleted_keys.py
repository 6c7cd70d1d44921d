"""The table of deleted keys, which remembers tombstones: a late event must not bring back a deleted row."""

import time
from collections.abc import Iterator, Sequence

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.catalog.positions import head_of
from kafka_lake.catalog.tables import ensure_table, schema_of
from kafka_lake.cdc.task.change import DELETE, READ
from kafka_lake.common.text import seconds_of
from kafka_lake.engine.frames import at_version
from kafka_lake.engine.interop import to_arrow_schema
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.formats.columns import nullable_all
from kafka_lake.formats.rows import CHANGE
from kafka_lake.runtime.context import Context
from kafka_lake.schema.rules import needed_changes
from kafka_lake.writers.upsert.cutoff import Cutoff
from kafka_lake.writers.upsert.keys import OPERATION, WITHOUT_ORDER, Keys

_DELETED_AT = "_deleted_at"
_IS_TOMBSTONE = "_is_tombstone"
_DAY = 86_400
_PLACE = ("topic_id", "partition", "offset", "key")


def deleted_keys(events: DataFrame, keys: Keys) -> DataFrame:
    """Return the deletes among events as rows of the table: key, order, and place in Kafka."""
    place = F.col(quoted(METADATA_COLUMN))
    without_order = F.col(WITHOUT_ORDER) if WITHOUT_ORDER in events.columns else F.lit(False)
    deletes = events.filter(F.col(OPERATION) == DELETE)
    return _rows(deletes, keys, [place[name] for name in _PLACE], F.col(CHANGE), is_tombstone=without_order)


def keys_missing_in_snapshot(rows: DataFrame, cutoff: Cutoff, keys: Keys) -> DataFrame:
    """Return rows that a source snapshot lacks as rows of the table.

    Their order is that of a row of the snapshot: if that row is read again, it brings its key back.
    """
    kinds = rows.schema[METADATA_COLUMN].dataType
    assert isinstance(kinds, T.StructType)
    place = [F.lit(vars(cutoff)[name]).cast(kinds[name].dataType) for name in _PLACE[:-1]]
    order = F.lit(list(cutoff.order)).cast("array<bigint>")
    change = F.struct(F.lit(READ).alias("op"), order.alias("order"))
    return _rows(rows, keys, [*place, F.col(quoted(METADATA_COLUMN))["key"]], change, is_tombstone=F.lit(False))


def _rows(rows: DataFrame, keys: Keys, place: Sequence[Column], change: Column, *, is_tombstone: Column) -> DataFrame:
    columns = [F.col(quoted(name)) for name in dict.fromkeys([*keys.columns, *keys.order_by])]
    metadata = F.struct(*[value.alias(name) for name, value in zip(_PLACE, place, strict=True)]).alias(METADATA_COLUMN)
    order = [change.alias(CHANGE)] if keys.has_envelope else []
    tombstone = [is_tombstone.alias(_IS_TOMBSTONE)] if keys.order_by else []
    return rows.select(*columns, *order, metadata, *tombstone, F.current_timestamp().alias(_DELETED_AT))


def without_late(context: Context, events: DataFrame, keys: Keys) -> DataFrame | None:
    """Return the events that are newer than the remembered delete of their key; None if no delete is remembered."""
    table = context.connections.catalog.table(context.spec.deletes_table)
    head = head_of(table) if table else None
    if table is None or head is None:
        return None
    name = context.connections.catalog.spark_name(context.spec.deletes_table)
    since = F.timestamp_seconds(F.lit(time.time() - seconds_of(context.spec.keep_deletes)))
    deletes = at_version(context.connections.spark(), name, head).filter(F.col(_DELETED_AT) >= since).alias("d")
    late = f"NOT {keys.is_newer('s', 'd')}"
    if keys.order_by:
        # A tombstone that found no row has no order. Kafka's order holds for it.
        tombstone = [keys.has_no_order("d"), *([f"d.{_IS_TOMBSTONE}"] if _IS_TOMBSTONE in deletes.columns else [])]
        is_before = f"NOT {keys.is_later_in_kafka('s', 'd')} AND {keys.is_later_in_kafka('d', 's')}"
        late = f"({late} OR (coalesce({' OR '.join(tombstone)}, false) AND {is_before}))"
    if not keys.has_order:
        fails = keys.raise_other_partition("s", "d")
        late = f"CASE WHEN {keys.other_partition('s', 'd')} THEN {fails} ELSE {late} END"
    return events.alias("s").join(deletes, F.expr(f"{keys.same_key('d', 's')} AND {late}"), "left_anti")


def ensure_deletes_table(context: Context, rows: T.StructType) -> Table:
    """Return the table of deleted keys with the columns of these rows; create it if need be.

    It is partitioned by day, so that expiry rewrites no file.
    """
    kind = nullable_all(rows)
    assert isinstance(kind, T.StructType)
    schema = schema_of(to_arrow_schema(kind))
    table = ensure_table(context.connections.catalog, context.spec.deletes_table, schema, [f"day({_DELETED_AT})"])
    names = {field.name for field in table.schema().fields}
    renames = context.spec.renames.items()
    if renamed := [(old, new) for old, new in renames if old in names and new in rows.names and new not in names]:
        with table.update_schema() as update:
            for old, new in renamed:
                update.rename_column(old, new)
    if needed_changes(table.schema(), schema):
        with table.update_schema() as update:
            update.union_by_name(schema)
    return table


def expire_deleted_keys(context: Context, branch: StagingBranch, table: Table) -> None:
    """Remove whole days older than `delete_retention` from a branch of the table."""
    first_day = int((time.time() - seconds_of(context.spec.keep_deletes)) // _DAY)
    if any(day < first_day for day in _days(table)):
        until = f"timestamp_seconds({first_day} * {_DAY})"
        context.connections.spark().sql(f"DELETE FROM {branch.write_name} WHERE {_DELETED_AT} < {until}").collect()


def _days(table: Table) -> Iterator[int]:
    """Yield the first day of each manifest, counted since 1970."""
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        for partition in manifest.partitions or ():
            if partition.lower_bound is not None:
                yield int.from_bytes(partition.lower_bound, "little", signed=True)
