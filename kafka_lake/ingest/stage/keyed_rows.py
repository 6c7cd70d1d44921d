"""The way of keyed tables: a batch's changes are folded to one for each key, and merged into the run's branch."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.errors import AuditFailedError
from kafka_lake.executors.changes.change import DELETE, NOTHING, TRUNCATE
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decode import VALUE_NOT_SENT
from kafka_lake.ingest.decode.key_columns import key_columns
from kafka_lake.ingest.decode.rows import change_columns
from kafka_lake.ingest.keyed.bounds import Bounds, bounds
from kafka_lake.ingest.keyed.changes import can_leave_out, counted
from kafka_lake.ingest.keyed.check import NOTHING_FOUND, KeyedBatch, NotSent, check_keys
from kafka_lake.ingest.keyed.deletes import deletes_of, ensure_deletes_table, forget_old, without_late
from kafka_lake.ingest.keyed.fold import (
    NEEDS_ROW,
    SEVERAL_PARTITIONS,
    TOMBSTONE_ELSEWHERE,
    UNKNOWN,
    folded,
    tombstones_ordered,
    with_order_of_rows,
    without_value,
)
from kafka_lake.ingest.keyed.keys import DOES, KEPT, OTHER_PARTITION, Keys, quoted
from kafka_lake.ingest.keyed.merge import NOT_THERE, merge
from kafka_lake.ingest.record_keys import at_version
from kafka_lake.ingest.stage.shape import shaped
from kafka_lake.ingest.stage.spark_writer import append
from kafka_lake.ingest.stage.staged import StagedTable, staged_table
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.positions import POSITION, RUN_ID, TableState, read_state, row_count, summary_of

_PARTITIONS = "spark.sql.shuffle.partitions"
_ROWS_WORTH_A_PARTITION = 1_000_000
_NOT_SENT = 100_000
"""As many changes may lack a value in one batch."""
_NOT_SENT_COLUMNS = {"partition": "int", "offset": "bigint", "columns": "string"}
_MERGED = "spark.merge-into.num-target-rows-"
_ABOUT_CHANGES = T.StructType([T.StructField(DOES, T.StringType()), T.StructField(KEPT, T.ArrayType(T.StringType()))])


class ChangeRefusedError(AuditFailedError):
    """A change of a keyed table can't be applied, or its topic's settings say to stop at it. `main` is as it was."""

    what_to_do: ClassVar[str] = (
        "The message names the change's Kafka partition and offset. A key whose changes come from several partitions "
        "needs `order_by:`. `deletes:` and `on_truncate:` say what becomes of deletes and of an emptied source."
    )


def write_changes(
    spec: TopicTable,
    connections: Connections,
    state: TableState,
    branch: StagingBranch,
    changes: DataFrame,
    topic_id: str,
    summary: Mapping[str, str],
    tasks: int,
    undo: ExitStack,
) -> tuple[StagedTable, StagedTable | None, KeyedBatch]:
    """Stage changes.

    Args:
        spec: The topic's settings.
        connections: Catalog and Spark.
        state: The table as the plan saw it, with the columns that the batch needs.
        branch: Of the table, at its head.
        changes: What `changes_of` gave.
        topic_id: The topic's id.
        summary: Of the snapshot.
        tasks: How many tasks write deleted keys.
        undo: Gets what takes all of it away again.

    Returns:
        The table, the table of deleted keys (None if there is nothing new for it), and what became of the batch.

    Raises:
        ChangeRefusedError: If a change can't be applied, or the settings say to stop at it. Nothing is staged then but
            what ``undo`` takes away.
    """
    try:
        return _staged(spec, connections, state, branch, changes, topic_id, summary, tasks, undo)
    except Exception as error:
        if (refusal := _refusal(spec, error)) is None:
            raise
        raise refusal from error


def _staged(
    spec: TopicTable,
    connections: Connections,
    state: TableState,
    branch: StagingBranch,
    changes: DataFrame,
    topic_id: str,
    summary: Mapping[str, str],
    tasks: int,
    undo: ExitStack,
) -> tuple[StagedTable, StagedTable | None, KeyedBatch]:
    spark = connections.spark()
    columns = spark.table(connections.catalog.spark_name(spec.identifier)).schema
    keys = Keys.of(spec, key_columns(spec, state.table), topic_id, columns)
    may_lack = [
        f.name
        for f in columns
        if f.name not in (*keys.columns, *keys.order_by) and f.name in _values(changes, spec) and can_leave_out(f, spec)
    ]
    with ExitStack() as held:
        held.enter_context(_shuffles(spark, max(tasks, 2) + row_count(state.table) // _ROWS_WORTH_A_PARTITION))
        told = _held(shaped(changes, T.StructType([*columns.fields, *_ABOUT_CHANGES.fields])), held)
        figures = told.agg(*[each.alias(name) for name, each in counted(told).items()]).collect()[0]
        _refuse(spec, keys, told, figures)
        if spec.deletes == "ignore":
            told = told.filter(F.col(DOES) != DELETE)
        told = told.filter(~F.col(DOES).isin(TRUNCATE, NOTHING))
        name, head = connections.catalog.spark_name(spec.identifier), state.head
        assert head is not None, "ensure_table gives every table a first snapshot"
        if keys.has_order and figures["deletes"]:
            told = _deletes_ordered(_held(tombstones_ordered(told, keys), held), keys, at_version(spark, name, head))
        rows = at_version(spark, name, head)
        not_sent: tuple[NotSent, ...] = ()
        one_each, within, found = _one_each(spec, told, keys, may_lack, held)
        if found["lacking"] and not spec.is_partial:
            not_sent = _not_sent(spec, connections, told, one_each, rows, keys, within)
            if not_sent:
                told = told.join(_places(spark, not_sent), _at_place(keys), "left_anti")
                one_each, within, found = _one_each(spec, told, keys, may_lack, held)
        count, changed = found["count"], figures["changes"] - len(not_sent)
        one_each = one_each.drop(SEVERAL_PARTITIONS, UNKNOWN)
        deletes = None
        gone, deletes_something = deletes_of(one_each, keys), figures["deletes"] and spec.deletes != "ignore"
        if deletes_something or connections.catalog.table(spec.deletes_table) is not None:
            ensure_deletes_table(connections, spec, gone.schema)
        if deletes_something:
            deletes = _stage_deletes(spec, connections, gone, branch.name, summary, tasks, undo)
        in_time = without_late(connections, spec, one_each, keys) if count else None
        in_time = one_each if in_time is None else _held(in_time, held)
        left = in_time.count() if in_time is not one_each else count
        if not left:
            primary = append(branch, state, shaped(in_time.limit(0), columns), summary)
            return (
                primary,
                deletes,
                KeyedBatch(changed, count, figures["deletes"], count, 0, 0, 0, NOTHING_FOUND, not_sent),
            )
        base = branch.staged_snapshot()
        merge(spark, branch, in_time, keys, may_lack, spec.is_partial, within, summary)
        primary = staged_table(branch, base, state)
        told_of_it = summary_of(branch.written(base))
        check = check_keys(at_version(spark, name, primary.snapshot), in_time, keys, within)
        inserted, updated, deleted = (
            int(told_of_it.get(f"{_MERGED}{each}", 0)) for each in ("inserted", "updated", "deleted")
        )
        return (
            primary,
            deletes,
            KeyedBatch(changed, count, figures["deletes"], count - left, inserted, updated, deleted, check, not_sent),
        )


def _one_each(
    spec: TopicTable, told: DataFrame, keys: Keys, may_lack: Sequence[str], held: ExitStack
) -> tuple[DataFrame, Bounds, Row]:
    """Fold changes to one for each key, and look at those: at their bounds, their count, and how many lack a value."""
    one_each = _held(folded(told, keys, may_lack), held)
    lacks = (F.col(DOES) != DELETE) & ((F.size(KEPT) > 0) | (F.size(UNKNOWN) > 0))
    within, found = bounds(
        one_each,
        keys,
        F.count(F.lit(1)).alias("count"),
        F.bool_or(SEVERAL_PARTITIONS).alias("several"),
        F.count_if(lacks).alias("lacking"),
    )
    if not keys.has_order and found["several"]:
        raise _not_comparable(spec, "in one batch")
    return one_each, within, found


def _not_sent(
    spec: TopicTable,
    connections: Connections,
    told: DataFrame,
    one_each: DataFrame,
    rows: DataFrame,
    keys: Keys,
    within: Bounds,
) -> tuple[NotSent, ...]:
    """Return the changes whose source left a value out that no change of the batch tells, and no row has.

    Raises:
        ChangeRefusedError: If there are more than a run bears.
    """
    in_time = without_late(connections, spec, one_each, keys)
    lacking = (one_each if in_time is None else in_time).filter(F.col(DOES) != DELETE)
    there = F.expr(" AND ".join([keys.same("t", "s"), *within.hold_for("t")]))
    no_row = (
        lacking.filter((F.size(KEPT) > 0) & (F.size(UNKNOWN) == 0)).alias("s").join(rows.alias("t"), there, "left_anti")
    )
    of = no_row.unionByName(lacking.filter(F.size(UNKNOWN) > 0))
    found = without_value(told, of, keys).orderBy("partition", "offset").limit(_NOT_SENT + 1).collect()
    if len(found) > _NOT_SENT:
        raise _not_told(spec, *found[0])
    return tuple(NotSent(*each) for each in found)


def _places(spark: Any, changes: Sequence[NotSent]) -> DataFrame:
    columns = ", ".join(f"__kafka_lake_{name} {kind}" for name, kind in _NOT_SENT_COLUMNS.items())
    frame: DataFrame = spark.createDataFrame([(c.partition, c.offset, c.columns) for c in changes], columns)
    return F.broadcast(frame)


def _at_place(keys: Keys) -> Column:
    place = F.col(quoted(keys.metadata))
    return (place["partition"] == F.col("__kafka_lake_partition")) & (place["offset"] == F.col("__kafka_lake_offset"))


def with_not_sent(judged: DataFrame, spark: Any, changes: Sequence[NotSent]) -> DataFrame:
    """Return records with ``error_class`` and ``error_message``, which changes that lack a value have as well.

    Args:
        judged: The records of the batch.
        spark: The session.
        changes: Those of them that lack a value.
    """
    if not changes:
        return judged
    same = (F.col("partition") == F.col("__kafka_lake_partition")) & (F.col("offset") == F.col("__kafka_lake_offset"))
    columns = F.col("__kafka_lake_columns")
    said = F.concat(F.lit("Not sent, since unchanged, and no row of the key has it: "), columns, F.lit("."))
    found = {
        "error_class": F.coalesce("error_class", F.when(columns.isNotNull(), F.lit(VALUE_NOT_SENT))),
        "error_message": F.coalesce("error_message", said),
    }
    joined = judged.join(_places(spark, changes), same, "left")
    return joined.select(*[found.get(name, F.col(quoted(name))).alias(name) for name in judged.columns])


def _deletes_ordered(told: DataFrame, keys: Keys, rows: DataFrame) -> DataFrame:
    """Return the changes that `tombstones_ordered` gave; deletes have the order of their row, where they need it."""
    within, found = bounds(told.filter(NEEDS_ROW), keys, F.count(F.lit(1)).alias("count"))
    return with_order_of_rows(told, rows, keys, within) if found["count"] else told.drop(NEEDS_ROW)


@contextmanager
def _shuffles(spark: Any, partitions: int) -> Iterator[None]:
    """Let shuffles of the block have so many partitions: two hundred, Spark's own, cost seconds for a few changes."""
    before = spark.conf.get(_PARTITIONS, None)
    spark.conf.set(_PARTITIONS, str(partitions))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_PARTITIONS)
        else:
            spark.conf.set(_PARTITIONS, before)


def _values(changes: DataFrame, spec: TopicTable) -> Sequence[str]:
    others = (spec.metadata_column, DOES, KEPT, *(field.name for field in change_columns(spec)))
    return [name for name in changes.columns if name not in others]


def _held(frame: DataFrame, held: ExitStack) -> DataFrame:
    """Let Spark keep a frame for as long as it is asked of: it is read several times."""
    kept = frame.persist()

    def release() -> None:
        with suppress(Exception):
            kept.unpersist()

    held.callback(release)
    return kept


def _stage_deletes(
    spec: TopicTable,
    connections: Connections,
    rows: DataFrame,
    name: str,
    summary: Mapping[str, str],
    tasks: int,
    undo: ExitStack,
) -> StagedTable | None:
    table = connections.catalog.table(spec.deletes_table)
    assert table is not None, "it has just been made"
    state = read_state(table)
    assert state.head is not None, "ensure_table gives every table a first snapshot"
    spark = connections.spark()
    branch = StagingBranch(spark, connections.catalog, spec.deletes_table, name, state.head)
    branch.create()
    undo.callback(branch.discard)
    forget_old(connections, spec, branch, table)
    columns = spark.table(connections.catalog.spark_name(spec.deletes_table)).schema
    told = {key: value for key, value in summary.items() if key in (POSITION, RUN_ID)}
    staged = append(branch, state, shaped(rows, columns).coalesce(tasks), told)
    if staged.rows == 0:
        branch.discard()
        return None
    return staged


def _refuse(spec: TopicTable, keys: Keys, told: DataFrame, figures: Any) -> None:
    for does, count, setting, settings in (
        ("delete", figures["deletes"], spec.deletes, "deletes: apply, soft or ignore"),
        ("truncate", figures["truncates"], spec.on_truncate, "on_truncate: ignore"),
    ):
        if count and setting == "fail":
            place = F.col(quoted(keys.metadata))
            first = (
                told.filter(F.col(DOES) == does)
                .agg(F.min(F.struct(place["partition"], place["offset"])))
                .collect()[0][0]
            )
            raise ChangeRefusedError(
                f"Topic {spec.topic}: {count} records {'delete rows' if does == 'delete' else 'empty the table'}, the "
                f"first in partition {first[0]} at offset {first[1]}, and the settings say to fail.",
                f"main is as it was. To go on, set {settings}.",
            )


def _refusal(spec: TopicTable, error: Exception) -> ChangeRefusedError | None:
    """Return what an error of the MERGE's own means; None for any other."""
    text = str(error)
    if found := re.search(rf"{OTHER_PARTITION} (\d+) (\d+) (\d+)", text):
        return _not_comparable(
            spec, f"in partition {found[1]} at offset {found[2]}; its row came from partition {found[3]}"
        )
    if found := re.search(rf"{TOMBSTONE_ELSEWHERE} (\d+) (\d+) (\d+)", text):
        return ChangeRefusedError(
            f"Topic {spec.topic}: the record in partition {found[1]} at offset {found[2]} deletes a key and has no "
            f"value, so no order; the key's row came from partition {found[3]}. Which is newer isn't known.",
            "main is as it was. Let a value tell deletes, with delete_when:; or read past the record with "
            "kafka-lake reset.",
        )
    if found := re.search(rf"{NOT_THERE} (\d+) (\d+) ([^\n]*?)(?: SQLSTATE: \w+)?\s*(?:\n|$)", text):
        return _not_told(spec, found[1], found[2], found[3])
    return None


def _not_told(spec: TopicTable, partition: object, offset: object, columns: str) -> ChangeRefusedError:
    return ChangeRefusedError(
        f"Topic {spec.topic}: the change in partition {partition} at offset {offset} doesn't tell {columns}, which the "
        "source left unchanged, and there is no row of its key by then.",
        "main is as it was. Read the topic from its beginning, or let the source take a new snapshot.",
    )


def _not_comparable(spec: TopicTable, where: str) -> ChangeRefusedError:
    return ChangeRefusedError(
        f"Topic {spec.topic}: a key has changes from several Kafka partitions ({where}), whose offsets don't tell "
        "which is newer.",
        "main is as it was. Name the column that tells it with order_by:, for instance a time of change.",
    )
