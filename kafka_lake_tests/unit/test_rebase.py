"""A commit that others overtook goes on from where they are only if all that came are commits of foreign writers."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.stage.rebase import added_files, follow
from kafka_lake.ingest.stage.staged import Staged, StagedTable
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import StagingBranch, branch_name
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import POSITION, TableState, head_of

SPEC = TopicTable("pizzas", "pizza", "pizzas", schema="id bigint")
ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
AFTER = Position(TopicIdentity("c", "t", "pizzas"), {0: 4})


@pytest.mark.parametrize(
    ("came", "goes_on"),
    [
        ([{}], True),
        ([{"engine-name": "another"}, {}], True),
        ([{POSITION: AFTER.to_json()}], False),
        ([{POSITION: AFTER.to_json()}, {}], False),
        ([{}, {"kafka-lake.unsettled": "run"}], False),
    ],
    ids=["foreign", "two foreign", "own", "own below foreign", "own above foreign"],
)
def test_overtaken_commit_follows_foreign_commits_alone(
    came: list[dict[str, str]], goes_on: bool, catalog: LakeCatalog
) -> None:
    catalog.ensure_namespace("pizza")
    table = catalog.pyiceberg.create_table(SPEC.identifier, ROWS.schema)
    table.append(ROWS)
    head = head_of(table)
    assert head is not None
    # Data files of a snapshot of their own, which goes again: what is staged was written by the tasks.
    table.append(ROWS)
    written = table.current_snapshot()
    assert written is not None
    files = added_files(table, written)
    table.manage_snapshots().rollback_to_snapshot(head).commit()
    spark: Any = None
    branch = StagingBranch(spark, catalog, SPEC.identifier, branch_name("run", head), head)
    branch.create()
    branch.append(files, {POSITION: AFTER.to_json()})
    staged_at = branch.staged_snapshot()
    assert staged_at is not None
    primary = StagedTable(branch, staged_at, staged_at, TableState(table, head, None), rows=2, files=1, size=1)
    for marks in came:
        catalog.pyiceberg.load_table(SPEC.identifier).append(ROWS, snapshot_properties=marks)
    context: Any = SimpleNamespace(
        spec=SPEC, run_id="run", connections=SimpleNamespace(catalog=catalog, spark=lambda: spark)
    )
    plan = Plan((OffsetRange(0, 2, 4),), AFTER, 0)
    staged = Staged(primary, None, records=2, tombstones=0, failed=0, known_failed=0)

    followed = follow(context, plan, staged)

    now = catalog.pyiceberg.load_table(SPEC.identifier)
    assert (followed is not None) is goes_on
    if followed is not None:
        assert followed.primary.branch.head == head_of(now)
        snapshot = now.metadata.snapshot_by_id(followed.primary.snapshot)
        assert snapshot is not None
        assert [each.file_path for each in added_files(now, snapshot)] == [each.file_path for each in files]
