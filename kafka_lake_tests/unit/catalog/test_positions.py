"""The position of a table is that of the newest ancestor of main that has one."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation, Summary

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import POSITION, ancestors, head_of, live_row_count, read_state, row_count, summary_of
from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.errors import TableError
from kafka_lake_tests.conftest import without_totals

ME = TopicIdentity("c", "t", "pizzas")
ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def table(tmp_path):
    catalog = LakeCatalog(
        "lake",
        {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"},
    )
    catalog.ensure_namespace("pizza")
    return catalog.pyiceberg.create_table(("pizza", "orders"), ROWS.schema)


def append(table, offsets=None, branch="main"):
    properties = {POSITION: Position(ME, offsets).to_json()} if offsets is not None else {}
    table.append(ROWS, snapshot_properties=properties, branch=branch)
    table.refresh()


def test_a_table_without_a_snapshot(table):
    state = read_state(table)
    assert (state.head, state.position) == (None, None)


def test_a_table_that_others_filled(table):
    append(table)
    assert read_state(table).position is None
    assert read_state(table).head == table.current_snapshot().snapshot_id


def test_the_newest_position_counts(table):
    append(table, {0: 5})
    append(table, {0: 9, 1: 3})
    assert read_state(table).position == Position(ME, {0: 9, 1: 3})


def test_a_snapshot_without_position_does_not_hide_it(table):
    append(table, {0: 5})
    append(table)
    append(table)
    state = read_state(table)
    assert state.position == Position(ME, {0: 5})
    assert state.head == table.current_snapshot().snapshot_id


def test_a_side_branch_is_not_main(table):
    append(table, {0: 5})
    head = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_branch(head, "staging").commit()
    append(table, {0: 99}, branch="staging")
    assert head_of(table, "staging") != head, "the branch has moved"
    state = read_state(table)
    assert (state.head, state.position) == (head, Position(ME, {0: 5}))


def test_ancestors_come_newest_first(table):
    for offset in (1, 2, 3):
        append(table, {0: offset})
    found = [s.summary.additional_properties[POSITION] for s in ancestors(table, head_of(table))]
    assert found == [Position(ME, {0: offset}).to_json() for offset in (3, 2, 1)]
    assert head_of(table, "nowhere") is None


def test_rows_are_counted_where_no_summary_tells_them(table):
    append(table)
    append(table)
    assert row_count(table) == 4
    without_totals(LakeCatalog("lake", table.catalog.properties), ("pizza", "orders"))
    bare = table.catalog.load_table(("pizza", "orders"))
    assert "total-records" not in summary_of(bare.current_snapshot())
    assert row_count(bare) == 4
    bare.delete("id == 1")
    assert row_count(bare) == 2
    bare.delete("id == 2")
    assert row_count(bare) == 0


def test_an_unreadable_position_is_refused(table):
    append(table, {0: 5})
    table.append(ROWS, snapshot_properties={POSITION: "{later format}"})
    table.refresh()
    with pytest.raises(
        TableError, match=rf"pizza\.orders: snapshot {table.current_snapshot().snapshot_id}.*later format"
    ):
        read_state(table)


@pytest.mark.parametrize(
    ("deleted", "live"),
    [
        ({}, 8),
        ({"total-position-deletes": "3", "total-equality-deletes": "0"}, 5),
        ({"total-position-deletes": "9"}, 0),
    ],
)
def test_rows_that_are_deleted_by_position_are_none_that_readers_find(deleted, live):
    reported = {"total-records": "8", **deleted}
    summary = Summary(Operation.OVERWRITE, **reported)
    table = SimpleNamespace(current_snapshot=lambda: SimpleNamespace(summary=summary))
    assert live_row_count(table) == live
    assert live_row_count(None) == 0
