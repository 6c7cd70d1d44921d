"""Spark's own way of writing: rows appended to a branch, by so many tasks."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.stage.staged import StagedTable, staged_table
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.positions import TableState
from kafka_lake.spark.settings import PARALLELISM

_ROWS_WORTH_A_TASK = 250_000
_ROWS_WORTH_A_FILE = 1_000_000
_PARTITIONS_WORTH_A_TASK = 100


def append(branch: StagingBranch, state: TableState, rows: DataFrame, summary: Mapping[str, str]) -> StagedTable:
    """Let Spark append rows to a branch as a snapshot with that in its summary."""
    base = branch.staged_snapshot()
    writer: Any = rows.writeTo(branch.write_name)
    for key, value in summary.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()
    return staged_table(branch, base, state)


def tasks_of(plan: Plan, spark: Any) -> int:
    """Return how many tasks shall write: no core idle on a long batch, and none of them works through two of a size.

    Writers begin another file when one is full; their number doesn't depend on what all of it takes. A cluster that
    doesn't say how many tasks it runs at once gets some for its executors to share, and files of a fair size.
    """
    records = plan.records_at_most - plan.elsewhere
    told = spark.conf.get(PARALLELISM, "")
    cores = int(told) if told else max(2, records // _ROWS_WORTH_A_FILE)
    by_work = -(-records // _ROWS_WORTH_A_TASK)
    # Each Kafka partition takes a consumer of its own to open: many are opened on all cores.
    by_partitions = -(-len(plan.ranges) // _PARTITIONS_WORTH_A_TASK)
    return max(1, min(cores, max(by_work, by_partitions)))
