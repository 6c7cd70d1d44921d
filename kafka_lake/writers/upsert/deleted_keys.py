"""The table of deleted keys: a late change must not bring back a row that was deleted after it."""

import time
from collections.abc import Iterator, Sequence

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import head_of
from kafka_lake.catalog.tables import ensure_table, schema_of
from kafka_lake.cdc.task.change import DELETE, READ
from kafka_lake.common.text import seconds_of
from kafka_lake.engine.interop import to_arrow_schema
from kafka_lake.formats.columns import nullable_all
from kafka_lake.formats.rows import CHANGE
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.record_keys import at_version
from kafka_lake.schema.rules import needed_changes
from kafka_lake.writers.upsert.keys import OPERATION, OTHER_PARTITION, WITHOUT_ORDER, Keys, quoted, stop
from kafka_lake.writers.upsert.truncates import Truncate

DELETED_AT = "_deleted_at"
"""When a run recorded the delete."""
IS_TOMBSTONE = "_is_tombstone"
"""Whether a delete has no order of its own: it is newer than everything before it in its Kafka partition."""
_DAY = 86_400
_PLACE = ("topic_id", "partition", "offset", "key")


def deletes_of(changes: DataFrame, keys: Keys) -> DataFrame:
    """Return the deletes among changes as rows of the table of deleted keys: key, order, and place in Kafka."""
    place = F.col(quoted(keys.metadata))
    untold = F.col(WITHOUT_ORDER) if WITHOUT_ORDER in changes.columns else F.lit(False)
    gone = changes.filter(F.col(OPERATION) == DELETE)
    return _gone(gone, keys, [place[name] for name in _PLACE], F.col(CHANGE), untold=untold)


def deletes_by_snapshot(rows: DataFrame, at: Truncate, keys: Keys) -> DataFrame:
    """Return rows that a source snapshot lacks as rows of the table of deleted keys.

    Their order is that of ``at``, a row of the snapshot: a row of it that is read again brings its key back.
    """
    kinds = rows.schema[keys.metadata].dataType
    assert isinstance(kinds, T.StructType)
    place = [F.lit(vars(at)[name]).cast(kinds[name].dataType) for name in _PLACE[:-1]]
    order = F.lit(list(at.order)).cast("array<bigint>")
    change = F.struct(F.lit(READ).alias("op"), order.alias("order"))
    return _gone(rows, keys, [*place, F.col(quoted(keys.metadata))["key"]], change, untold=F.lit(False))


def _gone(rows: DataFrame, keys: Keys, place: Sequence[Column], change: Column, *, untold: Column) -> DataFrame:
    told = [F.col(quoted(name)) for name in dict.fromkeys([*keys.columns, *keys.order_by])]
    origin = F.struct(*[value.alias(name) for name, value in zip(_PLACE, place, strict=True)]).alias(keys.metadata)
    order = [change.alias(CHANGE)] if keys.has_envelope else []
    tombstone = [untold.alias(IS_TOMBSTONE)] if keys.order_by else []
    return rows.select(*told, *order, origin, *tombstone, F.current_timestamp().alias(DELETED_AT))


def without_late(context: Context, changes: DataFrame, keys: Keys) -> DataFrame | None:
    """Return the changes that no remembered delete of their key is newer than; None if no delete is remembered."""
    table = context.connections.catalog.table(context.spec.deletes_table)
    head = head_of(table) if table else None
    if table is None or head is None:
        return None
    name = context.connections.catalog.spark_name(context.spec.deletes_table)
    since = F.timestamp_seconds(F.lit(time.time() - seconds_of(context.spec.keep_deletes)))
    held = at_version(context.connections.spark(), name, head).filter(F.col(DELETED_AT) >= since).alias("d")
    late = f"NOT {keys.is_newer('s', 'd')}"
    if keys.order_by:
        is_tombstone = [f"d.{IS_TOMBSTONE}"] if IS_TOMBSTONE in held.columns else []
        # Such a delete found no row.
        is_tombstone.append(keys.is_untold("d"))
        is_before = f"NOT {keys.is_behind('s', 'd')} AND {keys.is_behind('d', 's')}"
        late = f"({late} OR (coalesce({' OR '.join(is_tombstone) or 'false'}, false) AND {is_before}))"
    if not keys.has_order:
        late = (
            f"CASE WHEN {keys.other_partition('s', 'd')} THEN {stop(OTHER_PARTITION, keys, 's', 'd')} ELSE {late} END"
        )
    return changes.alias("s").join(held, F.expr(f"{keys.same('d', 's')} AND {late}"), "left_anti")


def ensure_deletes_table(context: Context, rows: T.StructType) -> Table:
    """Return the table of deleted keys with the columns of these rows; it is created if it isn't there.

    It is partitioned by day, so that old deletes go without rewriting a file.
    """
    kind = nullable_all(rows)
    assert isinstance(kind, T.StructType)
    schema = schema_of(to_arrow_schema(kind))
    table = ensure_table(context.connections.catalog, context.spec.deletes_table, schema, [f"day({DELETED_AT})"])
    have = {field.name for field in table.schema().fields}
    there = context.spec.renames.items()
    if renamed := [(old, new) for old, new in there if old in have and new in rows.names and new not in have]:
        with table.update_schema() as update:
            for old, new in renamed:
                update.rename_column(old, new)
    if needed_changes(table.schema(), schema):
        with table.update_schema() as update:
            update.union_by_name(schema)
    return table


def forget_old(context: Context, branch: StagingBranch, table: Table) -> None:
    """Remove whole days older than `delete_retention` from a branch of the table; no file is rewritten."""
    past = int((time.time() - seconds_of(context.spec.keep_deletes)) // _DAY)
    if all(day >= past for day in _days(table)):
        return
    until = f"timestamp_seconds({past} * {_DAY})"
    context.connections.spark().sql(f"DELETE FROM {branch.write_name} WHERE {DELETED_AT} < {until}").collect()


def _days(table: Table) -> Iterator[int]:
    """Yield the first day of each manifest, counted since 1970."""
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        for each in manifest.partitions or ():
            if each.lower_bound is not None:
                yield int.from_bytes(each.lower_bound, "little", signed=True)
