"""A commit that others overtook goes on from where they are only if all that came are commits of foreign writers."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files

from kafka_lake.catalog.branches import StagingBranch, branch_name
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import POSITION, TableState, head_of
from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.ingest.rebase import rebase
from kafka_lake.runtime.plan import Plan
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.staged import Staged, StagedTable

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
        ([{}, {"kafka-lake.unreconciled": "run"}], False),
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
    files = tuple(_dataframe_to_data_files(table.metadata, ROWS, table.io))
    for file in files:
        file.spec_id = table.spec().spec_id
    spark: Any = None
    branch = StagingBranch(spark, catalog, SPEC.identifier, branch_name("run", head), head)
    branch.create()
    branch.append(files, {POSITION: AFTER.to_json()})
    staged_at = branch.staged_snapshot()
    assert staged_at is not None
    state = TableState(table, head, None)
    primary = StagedTable(branch, staged_at, staged_at, state, rows=2, files=1, size=1, data_files=files)
    for marks in came:
        catalog.pyiceberg.load_table(SPEC.identifier).append(ROWS, snapshot_properties=marks)
    context: Any = SimpleNamespace(
        spec=SPEC, run_id="run", connections=SimpleNamespace(catalog=catalog, spark=lambda: spark)
    )
    plan = Plan((OffsetRange(0, 2, 4),), AFTER, 0)
    staged = Staged(primary, None, records=2, tombstones=0, failed=0, known_failed=0)

    followed = rebase(context, plan, staged)

    now = catalog.pyiceberg.load_table(SPEC.identifier)
    assert (followed is not None) is goes_on
    if followed is not None:
        assert followed.primary.branch.head == head_of(now)
        snapshot = now.metadata.snapshot_by_id(followed.primary.snapshot)
        assert snapshot is not None
        assert snapshot.summary is not None
        assert snapshot.summary["added-records"] == "2"
        catalog.pyiceberg.load_table(SPEC.identifier).manage_snapshots().set_current_snapshot(
            snapshot.snapshot_id
        ).commit()
        assert files[0].file_path in {task.file.file_path for task in table.refresh().scan().plan_files()}
