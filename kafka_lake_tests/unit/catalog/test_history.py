"""The history of a schema: what changed, with which snapshot, at which offsets."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyiceberg.types import LongType, StringType

from kafka_lake.catalog.history import schema_history
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import POSITION
from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.schema.rules import Change

ME = TopicIdentity("c", "t", "pizzas")
COLUMNS = pa.schema(
    [pa.field("id", pa.int32(), nullable=False), pa.field("at", pa.struct([pa.field("x", pa.int32())]))]
)
CREATED = (Change("id", "added", "", "int"), Change("at", "added", "", "struct<x: int>"))


@pytest.fixture
def table(tmp_path):
    catalog = LakeCatalog(
        "lake", {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    )
    catalog.ensure_namespace("pizza")
    return catalog.pyiceberg.create_table(("pizza", "orders"), COLUMNS)


def append(table, offset=None, text=None):
    """Commit one empty append, with a position if an offset is given, and return the snapshot's id."""
    position = text or (Position(ME, {0: offset}).to_json() if offset is not None else None)
    table.append(table.schema().as_arrow().empty_table(), {POSITION: position} if position else {})
    table.refresh()
    return table.current_snapshot().snapshot_id


def widen(table):
    with table.update_schema() as update:
        update.update_column("id", LongType())
        update.add_column(("at", "y"), StringType())
    table.refresh()


WIDENED = (Change("id", "widened", "int", "long"), Change("at.y", "added", "", "string"))


def test_changes_come_with_the_snapshot_and_its_offsets(table):
    began = datetime.now(UTC)
    first = append(table, 5)
    append(table, 6)
    widen(table)
    second = append(table, 7)
    append(table, 8)
    with table.update_schema() as update:
        update.rename_column("id", "key")
    table.refresh()
    third = append(table)

    history = schema_history(table)
    assert [(v.schema_id, v.snapshot_id, v.changes) for v in history] == [
        (0, first, CREATED),
        (1, second, WIDENED),
        (2, third, (Change("id", "renamed", "id", "key"),)),
    ]
    assert [{topic: its.offsets for topic, its in v.positions.items()} for v in history] == [
        {ME.topic: {0: 5}},
        {ME.topic: {0: 7}},
        {},
    ]
    assert [v.note for v in history] == ["", "", ""]
    times = [v.committed_at for v in history]
    assert times == sorted(times)
    assert 0 <= (times[0] - began.replace(microsecond=began.microsecond // 1000 * 1000)).total_seconds() < 60


def test_a_schema_that_no_snapshot_has_yet(table):
    assert [(v.schema_id, v.snapshot_id, v.changes) for v in schema_history(table)] == [(0, None, CREATED)]
    append(table)
    widen(table)
    last = schema_history(table)[-1]
    assert (last.snapshot_id, last.changes) == (None, WIDENED)
    assert "No snapshot" in last.note


def test_what_expired_is_said_to_be_gone(table):
    first = append(table, 5)
    widen(table)
    second = append(table, 6)
    table.maintenance.expire_snapshots().by_id(first).commit()
    table.refresh()
    (version,) = schema_history(table)
    assert (version.snapshot_id, version.positions[ME.topic].offsets) == (second, {0: 6})
    assert [c.column for c in version.changes] == ["id", "at"], "all columns, of a time unknown"
    assert "have expired" in version.note


def test_other_branches_are_no_history(table):
    append(table)
    head = append(table, 5)
    table.manage_snapshots().create_branch(head, "staging").commit()
    widen(table)
    table.append(table.schema().as_arrow().empty_table(), branch="staging")
    table.refresh()
    assert [v.snapshot_id is None for v in schema_history(table)] == [False, True]


def test_docs_and_order_are_no_change(table):
    append(table)
    with table.update_schema() as update:
        update.update_column("id", doc="What it is")
        update.move_first("at")
    table.refresh()
    append(table)
    assert len(schema_history(table)) == 1


def test_a_position_that_cannot_be_read_is_noted(table):
    append(table, text="{")
    (version,) = schema_history(table)
    assert version.positions == {}
    assert "can't be read" in version.note
