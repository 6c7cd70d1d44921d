"""The way of keyed tables: a batch's changes are folded to one for each key, and merged into the run's branch."""

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.errors import AuditFailedError
from kafka_lake.executors.changes.change import DELETE
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decode.key_columns import key_columns
from kafka_lake.ingest.keyed.changes import can_leave_out, counted
from kafka_lake.ingest.keyed.check import NOTHING_FOUND, KeyedBatch, check_keys
from kafka_lake.ingest.keyed.deletes import deletes_of, ensure_deletes_table, forget_old, without_late
from kafka_lake.ingest.keyed.fold import PARTITIONS, folded
from kafka_lake.ingest.keyed.keys import DOES, KEPT, Keys
from kafka_lake.ingest.keyed.merge import NOT_THERE, OTHER_PARTITION, bounds, merge
from kafka_lake.ingest.record_keys import at_version
from kafka_lake.ingest.stage.shape import shaped
from kafka_lake.ingest.stage.spark_writer import append
from kafka_lake.ingest.stage.staged import StagedTable, staged_table
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.positions import POSITION, RUN_ID, TableState, read_state, summary_of

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
    spark = connections.spark()
    columns = spark.table(connections.catalog.spark_name(spec.identifier)).schema
    keys = Keys.of(spec, key_columns(spec, state.table), topic_id)
    may_lack = [
        f.name
        for f in columns
        if f.name not in keys.columns and f.name in _values(changes, spec) and can_leave_out(f, spec)
    ]
    with ExitStack() as held:
        told = _held(shaped(changes, T.StructType([*columns.fields, *_ABOUT_CHANGES.fields])), held)
        figures = told.agg(*[each.alias(name) for name, each in counted(told).items()]).collect()[0]
        _refuse(spec, keys, told, figures)
        if spec.deletes == "ignore":
            told = told.filter(F.col(DOES) != DELETE)
        told = told.filter(F.col(DOES) != "truncate")
        one_each = _held(folded(told, keys, may_lack), held)
        count, partitions = one_each.agg(F.count(F.lit(1)), F.max(PARTITIONS)).collect()[0]
        if not keys.has_order and (partitions or 0) > 1:
            raise _not_comparable(spec, "in one batch")
        one_each = one_each.drop(PARTITIONS)
        deletes = None
        if figures["deletes"] and spec.deletes != "ignore":
            deletes = _stage_deletes(spec, connections, deletes_of(one_each, keys), branch.name, summary, tasks, undo)
        in_time = without_late(connections, spec, one_each, keys) if count else None
        in_time = one_each if in_time is None else _held(in_time, held)
        left = in_time.count() if in_time is not one_each else count
        if not left:
            primary = append(branch, state, shaped(in_time.limit(0), columns), summary)
            return (
                primary,
                deletes,
                KeyedBatch(figures["changes"], count, figures["deletes"], count, 0, 0, 0, NOTHING_FOUND),
            )
        within = bounds(in_time, keys)
        base = branch.staged_snapshot()
        try:
            merge(spark, branch, in_time, keys, may_lack, within, summary)
        except Exception as error:
            raise _refusal(spec, error) or error from error
        primary = staged_table(branch, base, state)
        found = summary_of(branch.written(base))
        name = connections.catalog.spark_name(spec.identifier)
        check = check_keys(at_version(spark, name, primary.snapshot), in_time, keys, within)
        inserted, updated, deleted = (
            int(found.get(f"{_MERGED}{each}", 0)) for each in ("inserted", "updated", "deleted")
        )
        return (
            primary,
            deletes,
            KeyedBatch(figures["changes"], count, figures["deletes"], count - left, inserted, updated, deleted, check),
        )


def _values(changes: DataFrame, spec: TopicTable) -> Sequence[str]:
    return [
        name
        for name in changes.columns
        if name not in (spec.metadata_column, DOES, KEPT) and not name.startswith("_change")
    ]


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
    ensure_deletes_table(connections, spec, rows.schema)
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
            place = F.col(f"`{keys.metadata}`")
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
    if found := re.search(rf"{NOT_THERE} (\d+) (\d+) ([^\n]*)", text):
        return ChangeRefusedError(
            f"Topic {spec.topic}: the change in partition {found[1]} at offset {found[2]} doesn't tell {found[3]}, "
            "which the source left unchanged, and the table has no row of its key.",
            "main is as it was. Read the topic from its beginning, or let the source take a new snapshot.",
        )
    return None


def _not_comparable(spec: TopicTable, where: str) -> ChangeRefusedError:
    return ChangeRefusedError(
        f"Topic {spec.topic}: a key has changes from several Kafka partitions ({where}), whose offsets don't tell "
        "which is newer.",
        "main is as it was. Name the column that tells it with order_by:, for instance a time of change.",
    )
