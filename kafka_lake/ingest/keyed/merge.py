"""Merge: a batch's changes, one for each key, into a branch of the table, as one snapshot with that in its summary."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import DELETE, READ, UPSERT
from kafka_lake.ingest.keyed.bounds import Bounds
from kafka_lake.ingest.keyed.fold import order_of
from kafka_lake.ingest.keyed.keys import DOES, KEPT, OTHER_PARTITION, Keys, quoted, stop
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.spark.settings import SNAPSHOT_PROPERTY

NOT_THERE = "KAFKA_LAKE_VALUE_NOT_THERE"
"""Begins the message of an error: a change leaves a value as it is, and there is no row that has it."""


@dataclass(frozen=True)
class HowToMerge:
    """How changes meet the rows of a table.

    Args:
        keys: Tell rows apart, and changes older from newer.
        may_lack: Columns that a change may leave as they are.
        is_partial: Whether what it leaves is null in a row that isn't there yet; if not, the merge fails.
        within: Between which values the changes' keys lie.
    """

    keys: Keys
    may_lack: Sequence[str]
    is_partial: bool
    within: Bounds


def merge(
    spark: Any, branch: StagingBranch, changes: DataFrame, how: HowToMerge, *, summary: Mapping[str, str]
) -> None:
    """Merge changes into a branch; `StagingBranch.written` tells whether they went where they should.

    Args:
        changes: What `folded` gave, without late ones.
        how: Which rows they change, and in what.
    """
    run_merge(spark, changes, summary, lambda view: statement(branch.write_name, view, changes.columns, how))


def run_merge(spark: Any, rows: DataFrame, summary: Mapping[str, str], statement_of: Callable[[str], str]) -> None:
    """Run a MERGE of a frame.

    Args:
        statement_of: Gives the statement, by the name of a view of the rows.
    """
    view = f"kafka_lake_{uuid4().hex}"
    # By dropping a view of the frame itself, Spark would forget it, if it keeps it.
    rows.filter(F.lit(True)).createOrReplaceTempView(view)
    try:
        with _summary(spark, summary):
            spark.sql(statement_of(view)).collect()
    finally:
        spark.catalog.dropTempView(view)


def statement(table: str, view: str, columns: Sequence[str], how: HowToMerge) -> str:
    """Return the MERGE. Pure."""
    keys, may_lack = how.keys, how.may_lack
    ours = {DOES, KEPT, *(order_of(number) for number in range(len(may_lack)))}
    names = [name for name in columns if name not in ours]
    newer, does = keys.is_newer("s", "t"), f"s.{DOES}"
    if not keys.has_order:
        stopped = stop(OTHER_PARTITION, keys, "s", "t")
        newer = f"(CASE WHEN {keys.other_partition('s', 't')} THEN {stopped} ELSE {newer} END)"
    sets, values = [], []
    for name in names:
        column = quoted(name)
        if name in may_lack:
            told = f"s.{order_of(may_lack.index(name))}"
            is_newer = f"{told} IS NOT NULL AND {told} >= {keys.order('t')}"
            sets.append(f"t.{column} = CASE WHEN {is_newer} THEN s.{column} ELSE t.{column} END")
        else:
            sets.append(f"t.{column} = s.{column}")
        values.append(f"s.{column}")
    matched = [f"WHEN MATCHED AND {newer} AND {does} = '{DELETE}' THEN DELETE"] if not keys.is_soft else []
    conditions = " AND ".join([keys.same("t", "s"), *how.within.hold_for("t")])
    return "\n".join(
        [
            f"MERGE INTO {table} AS t USING {view} AS s ON {conditions}",
            *matched,
            f"WHEN MATCHED AND {newer} THEN UPDATE SET {', '.join(sets)}",
            f"WHEN NOT MATCHED AND {inserts('s', how)} "
            f"THEN INSERT ({', '.join(map(quoted, names))}) VALUES ({', '.join(values)})",
        ]
    )


def brings(alias: str, keys: Keys) -> str:
    """Return the condition that a change brings a row where its key has none: a soft delete does if it has the row."""
    does = f"{alias}.{DOES}"
    marked = f" OR ({does} = '{DELETE}' AND size({alias}.{KEPT}) = 0)" if keys.is_soft else ""
    return f"({does} IN ('{UPSERT}', '{READ}'){marked})"


def inserts(alias: str, how: HowToMerge) -> str:
    """Return the condition that a change becomes a row where its key has none.

    Evaluating it fails if the change leaves a value as it is.
    """
    condition, place, kept = brings(alias, how.keys), f"{alias}.{quoted(how.keys.metadata)}", f"{alias}.{KEPT}"
    if not how.may_lack or how.is_partial:
        return condition
    said = f"concat('{NOT_THERE} ', {place}.`partition`, ' ', {place}.`offset`, ' ', array_join({kept}, ', '))"
    lacks = f"{alias}.{DOES} <> '{DELETE}' AND size({kept}) > 0"
    return f"{condition} AND (CASE WHEN {lacks} THEN CAST(raise_error({said}) AS BOOLEAN) ELSE true END)"


@contextmanager
def _summary(spark: Any, summary: Mapping[str, str]) -> Iterator[None]:
    """Let the snapshots of the block have that in their summary: MERGE takes no options."""
    names = [f"{SNAPSHOT_PROPERTY}{key}" for key in summary]
    try:
        for name, value in zip(names, summary.values(), strict=True):
            spark.conf.set(name, value)
        yield
    finally:
        for name in names:
            spark.conf.unset(name)
