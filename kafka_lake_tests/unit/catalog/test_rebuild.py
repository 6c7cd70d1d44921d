"""Whether a table has had commits of ours, by what expiry leaves of it."""

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import CREATED, POSITION, TableState, head_of
from kafka_lake.catalog.tables import Totals, added
from kafka_lake.ingest.table_state import may_have_begun

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def create(catalog: LakeCatalog) -> Any:
    def create(version: int, **properties: str) -> Table:
        catalog.ensure_namespace("lake")
        made = {"format-version": str(version), **properties}
        return catalog.pyiceberg.create_table("lake.orders", ROWS.schema, properties=made)

    return create


def committed(table: Table, **marks: str) -> Table:
    table.append(ROWS, snapshot_properties=marks)
    return table.refresh()


def state(table: Table) -> TableState:
    return TableState(table, head_of(table), None)


def without_older_snapshots(table: Table) -> Table:
    """Return a table as another process loads it after an expiry by PyIceberg, which takes the parent away."""
    head = head_of(table)
    only = [
        s.model_copy(update={"parent_snapshot_id": None}) for s in table.metadata.snapshots if s.snapshot_id == head
    ]
    log = [entry for entry in table.metadata.snapshot_log if entry.snapshot_id == head]
    table.metadata = table.metadata.model_copy(update={"snapshots": only, "snapshot_log": log})
    return table


@pytest.mark.parametrize(
    ("version", "properties", "expected"),
    [
        (2, {CREATED: "1"}, True),
        (2, {}, False),
        (1, {}, False),
        (1, {CREATED: "1"}, False),
    ],
)
def test_expired_commits_are_suspected_by_sequence_number(
    version: int, properties: dict[str, str], expected: bool, create: Any
) -> None:
    table = committed(committed(create(version, **properties), **{POSITION: "{}"}))
    assert may_have_begun(state(table), "pizzas"), "no snapshot has expired"
    assert may_have_begun(state(without_older_snapshots(table)), "pizzas") is expected


@pytest.mark.parametrize("version", [1, 2])
def test_totals_of_earlier_commits_tell_of_them(version: int, create: Any) -> None:
    """A table of format version 1, or one that was rolled back to its first snapshot before the others expired."""
    table = committed(create(version))
    for commits, expected in ((0, False), (3, True)):
        with table.transaction() as transaction:
            transaction.set_properties(added(table, Totals(commits=commits)))
        assert may_have_begun(state(table.refresh()), "pizzas") is expected


def test_a_table_of_one_commit_has_no_history(create: Any) -> None:
    table = create(2, **{CREATED: "1"})
    assert not may_have_begun(state(table), "pizzas")
    assert not may_have_begun(state(committed(table)), "pizzas")
