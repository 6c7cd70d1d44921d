"""Appending to a staging branch while others write to other branches of the table."""

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from kafka_lake.lake.branches import StagingBranch, branch_name
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import head_of

NAME = ("lake", "pizzas")
ROWS = pa.table({"id": [1]})


@pytest.fixture
def catalog(tmp_path):
    made = LakeCatalog(
        "lake",
        {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"},
    )
    made.ensure_namespace("lake")
    made.pyiceberg.create_table(NAME, ROWS.schema).append(ROWS)
    return made


def begun(catalog):
    """Return a branch at main's head."""
    table = catalog.pyiceberg.load_table(NAME)
    head = head_of(table)
    branch = StagingBranch(None, catalog, NAME, branch_name("run", head), head)
    table.manage_snapshots().create_branch(head, branch.name).commit()
    return branch


def test_a_snapshot_of_anothers_branch_in_the_same_moment_is_no_harm(catalog, monkeypatch):
    branch, other = begun(catalog), begun(catalog)
    commit, raced = SqlCatalog.commit_table, []

    def commit_after_another(self: SqlCatalog, *arguments: Any) -> Any:
        # The first two attempts find that another branch got the sequence number that they had in mind.
        if len(raced) < 2:
            raced.append(True)
            monkeypatch.setattr(SqlCatalog, "commit_table", commit)
            other.append([], {"by": "another"})
            monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_another)
        return commit(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_another)
    branch.append([], {"by": "us"})
    assert len(raced) == 2
    snapshot = branch.written(branch.head)
    assert snapshot.summary["by"] == "us"
    assert other.staged_snapshot() not in (None, snapshot.snapshot_id)


def test_what_fails_otherwise_is_not_tried_again(catalog, monkeypatch):
    branch, attempts = begun(catalog), []

    def refuse(*_: Any) -> Any:
        attempts.append(True)
        raise ConnectionError("the catalog is gone")

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)
    with pytest.raises(ConnectionError):
        branch.append([], {})
    assert len(attempts) == 1, "it may have happened all the same"
