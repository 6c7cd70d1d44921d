"""The position of a table is that of the newest ancestor of main that has one."""

from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.types import LongType, NestedField, StructType

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import (
    ADOPTED_AT,
    KIND,
    OFFSETS,
    POSITION,
    REMOVES,
    RUN_ID,
    adopted_position,
    ancestors,
    author_summary,
    has_origin,
    head_of,
    live_row_count,
    offsets_of,
    read_state,
    removes_property,
    row_count,
    state_of,
    summary_of,
)
from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity, positions_to_json
from kafka_lake.errors import TableError
from kafka_lake.spec.topic_table import TopicTable
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
    assert row_count(table) == 0


def test_a_table_that_others_filled(table):
    append(table)
    assert read_state(table).position is None
    assert read_state(table).head == table.current_snapshot().snapshot_id


def test_state_of_a_table_of_several_topics_is_that_of_one(table):
    own, other = Position(ME, {0: 5}), Position(TopicIdentity("c", "u", "pasta"), {0: 7})
    table.append(ROWS, snapshot_properties={POSITION: positions_to_json([other, own])})
    spec = TopicTable("pizzas", "pizza", "orders", topics=("pasta", "pizzas"))
    state = state_of(spec, table.refresh())
    assert (state.position, state.others) == (own, {"pasta": other})
    assert state.table is table
    assert state_of(replace(spec, topic="drinks", topics=("drinks", "pasta")), table).position is None


def test_table_taken_over_has_its_position_as_a_property(table):
    assert adopted_position(table) is None
    at = Position(ME, {0: 5})
    table.transaction().set_properties({ADOPTED_AT: at.to_json()}).commit_transaction()
    assert adopted_position(table) == at
    table.transaction().set_properties({ADOPTED_AT: "{later format}"}).commit_transaction()
    with pytest.raises(TableError, match=rf"pizza\.orders: its property {ADOPTED_AT} can't be read .*later format"):
        adopted_position(table)


@pytest.mark.parametrize(
    ("names", "has"), [(("topic", "topic_id", "partition", "offset"), True), (("topic", "partition"), False)]
)
def test_metadata_column_is_known_by_its_fields(names, has):
    fields = [NestedField(number, name, LongType()) for number, name in enumerate(names, 1)]
    assert has_origin(StructType(*fields)) is has
    assert has_origin(LongType()) is False


def test_author_of_a_snapshot_names_run_kind_and_offsets():
    ranges = [OffsetRange(0, 5, 10), OffsetRange(1, 0, 4), OffsetRange(2, 7, 7)]
    summary = author_summary("run", "replace", ranges)
    assert (summary[RUN_ID], summary[KIND], summary[OFFSETS]) == ("run", "replace", "0:5-9,1:0-3")
    assert offsets_of(summary[OFFSETS]) == ranges[:2]
    assert OFFSETS not in author_summary("run", "append")
    assert offsets_of("") == []


def test_replacing_snapshot_names_the_deleting_one():
    assert (removes_property(17), removes_property(None)) == ({REMOVES: "17"}, {})


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
