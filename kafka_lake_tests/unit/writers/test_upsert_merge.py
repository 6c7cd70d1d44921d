"""What the SQL of keyed tables does to rows, without a JVM: DuckDB runs it, in words of its own."""

import re
from typing import Any

import duckdb
import pytest
import sqlglot

from kafka_lake.writers.upsert.cutoff import Cutoff
from kafka_lake.writers.upsert.keys import OPERATION, UNCHANGED, KeyBounds, Keys
from kafka_lake.writers.upsert.merge import merge_statement

PLACE = 'STRUCT(topic_id VARCHAR, partition INT, "offset" BIGINT)'
BY_COLUMN = Keys(("id",), ("version",), has_envelope=False, topic_id="today")
BY_OFFSET = Keys(("id",), (), has_envelope=False, topic_id="today")
BY_SOURCE = Keys(("id",), (), has_envelope=True, topic_id="today")
ROW, CHANGE = (5, 0, 10), "change"


def in_duckdb(text: str) -> str:
    (found,) = sqlglot.transpile(text, read="spark", write="duckdb")
    # Columns that are set have no alias there.
    return re.sub(r'(SET |, )t\.("\w+") = ', r"\1\2 = ", found)


def place(partition: int, offset: int, topic: str = "today") -> dict[str, Any]:
    return {"topic_id": topic, "partition": partition, "offset": offset}


def merged(
    keys: Keys, row: tuple[int, int, int], change: tuple[str, int | None, int, int], topic: str = "today"
) -> Any:
    """Return what a row of the key 1 becomes by a change of it: its value, or None if it is gone.

    Args:
        keys: Tell the order.
        row: Its order, partition and offset.
        change: What it does, its order, partition and offset.
        topic: The id of the row's topic.
    """
    with duckdb.connect() as database:
        columns = f"id INT, version INT, v VARCHAR, _kafka {PLACE}"
        database.execute(f"CREATE TABLE t ({columns})")
        database.execute(f"CREATE TABLE s ({columns}, {OPERATION} VARCHAR, {UNCHANGED} VARCHAR[])")
        version, *of_row = row
        does, order, *of_change = change
        database.execute("INSERT INTO t VALUES (1, ?, 'row', ?)", [version, place(*of_row, topic)])
        database.execute("INSERT INTO s VALUES (1, ?, ?, ?, ?, [])", [order, CHANGE, place(*of_change), does])
        names = ["id", "version", "v", "_kafka", OPERATION, UNCHANGED]
        text = merge_statement("t", "s", names, keys, nullable=[], bounds=KeyBounds(()))
        database.execute(in_duckdb(text).replace("RAISE_ERROR(", "error("))
        found = database.execute("SELECT v FROM t").fetchall()
    return found[0][0] if found else None


@pytest.mark.parametrize(
    ("change", "newer"),
    [
        ((6, 1, 1), True),
        ((4, 1, 99), False),
        # Of equal ones partition and offset decide; the very change that made the row is applied once more.
        ((5, 1, 1), True),
        ((5, 0, 11), True),
        ((5, 0, 10), True),
        ((5, 0, 9), False),
        # A tombstone has no order of its own: it is newer than what came before it in its partition.
        ((None, 0, 11), True),
        ((None, 0, 10), True),
        ((None, 0, 9), False),
        ((None, 1, 99), False),
    ],
)
def test_change_that_is_not_newer_leaves_the_row(change: tuple[int | None, int, int], newer: bool) -> None:
    assert merged(BY_COLUMN, ROW, ("upsert", *change)) == (CHANGE if newer else "row")
    assert merged(BY_COLUMN, ROW, ("delete", *change)) == (None if newer else "row")


@pytest.mark.parametrize(("offset", "newer"), [(11, True), (10, True), (9, False)])
def test_offset_decides_where_nothing_else_does(offset: int, newer: bool) -> None:
    assert merged(BY_OFFSET, ROW, ("upsert", None, 0, offset)) == (CHANGE if newer else "row")
    assert merged(BY_OFFSET, ROW, ("upsert", None, 1, 0), topic="before") == CHANGE


def test_rows_are_looked_for_by_bounds_and_by_the_keys_if_they_are_few() -> None:
    found = (("s.`id`", "1", "9"), ("s.`shop`", "'a'", "'b'"))
    assert KeyBounds(found).conditions("t") == ["t.`id` BETWEEN 1 AND 9", "t.`shop` BETWEEN 'a' AND 'b'"]
    listed = KeyBounds(found, (("1", "9"), ("'a'", "'b'"))).conditions("t")
    assert listed[2:] == ["t.`id` IN (1, 9)", "t.`shop` IN ('a', 'b')"]


def is_older(truncate: Cutoff, keys: Keys, order: list[int], partition: int, offset: int, **more: str) -> bool:
    change = {"op": more.get("op", "upsert"), "order": order}
    with duckdb.connect() as database:
        database.execute(f'CREATE TABLE c (_change STRUCT(op VARCHAR, "order" BIGINT[]), _kafka {PLACE})')
        database.execute("INSERT INTO c VALUES (?, ?)", [change, place(partition, offset, more.get("topic", "today"))])
        text = in_duckdb(f"SELECT {truncate.is_older(keys, 'c')} FROM c")
        ((found,),) = database.execute(text).fetchall()
    return bool(found)


@pytest.mark.parametrize(
    ("order", "partition", "offset", "behind"),
    [
        ([8, 1], 1, 99, True),
        ([8, 3], 0, 0, False),
        # Of one position in the source, Kafka's place decides.
        ([8, 2], 1, 6, True),
        ([8, 2], 0, 99, True),
        ([8, 2], 1, 7, False),
        ([8, 2], 1, 8, False),
        ([8, 2], 2, 0, False),
    ],
)
def test_truncate_takes_what_is_older_and_nothing_equal(
    order: list[int], partition: int, offset: int, behind: bool
) -> None:
    truncate = Cutoff((8, 2), "today", 1, 7)
    assert is_older(truncate, BY_SOURCE, order, partition, offset) is behind
    assert is_older(truncate, BY_SOURCE, order, partition, offset, op="read") is (behind or order == [8, 2])


@pytest.mark.parametrize(("order", "behind"), [([8, 1], True), ([8, 2], False), ([8, 3], False)])
def test_snapshot_takes_what_is_older_and_nothing_of_its_own(order: list[int], behind: bool) -> None:
    snapshot = Cutoff((8, 2), "today", 1, 7, is_snapshot=True)
    assert is_older(snapshot, BY_SOURCE, order, 0, 0) is behind


@pytest.mark.parametrize(("partition", "offset", "behind"), [(1, 6, True), (1, 7, False), (1, 8, False), (0, 0, False)])
def test_truncate_by_offsets_takes_what_came_before_it(partition: int, offset: int, behind: bool) -> None:
    truncate = Cutoff((), "today", 1, 7)
    assert is_older(truncate, BY_OFFSET, [], partition, offset) is behind
    assert is_older(truncate, BY_OFFSET, [], partition, offset, topic="before")
