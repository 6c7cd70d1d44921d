"""Histories of keyed tables without Spark: their columns, what is merged, what is counted and refused."""

from itertools import starmap
from typing import Any

import pytest
from pyspark.sql import types as T

from kafka_lake.errors import TableError
from kafka_lake.formats.columns import Target
from kafka_lake.formats.json.driver import Json
from kafka_lake.formats.rows import EVENT_TYPE, METADATA, change_columns
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.history.versions import HistoryResult, HistoryTable, merge_statement
from kafka_lake.writers.schema_changes import plan_schema
from kafka_lake.writers.upsert.keys import KeyBounds, Keys
from kafka_lake.writers.upsert.merge import MergeCounts

TYPES = {"at": T.TimestampType(), "n": T.LongType(), "day": T.DateType(), "text": T.StringType(), "raw": T.BinaryType()}
TABLE = T.StructType(
    [
        T.StructField("id", T.LongType(), nullable=False),
        *(T.StructField(name, kind) for name, kind in TYPES.items()),
        T.StructField("_kafka", METADATA),
        T.StructField("valid_from", T.TimestampType()),
        T.StructField("valid_to", T.TimestampType()),
        T.StructField("_is_deleted", T.BooleanType()),
        T.StructField("_event", EVENT_TYPE),
    ]
)


def shape(*order_by: str, envelope: bool = False, track: tuple[str, ...] = ()) -> HistoryTable:
    keys = Keys(columns=("id",), order_by=order_by, has_envelope=envelope, topic_id="t")
    return HistoryTable(keys, TABLE, track)


def test_a_history_may_lack_every_value_of_a_row() -> None:
    # A delete tells its key alone.
    assert all(field.nullable for field in shape("at").columns)
    assert shape("at").columns.names == TABLE.names


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (shape("at"), "at"), (shape("n"), "n"), (shape("day"), "day"),
        (shape("n", "day"), None), (shape(), None), (shape(envelope=True), None),
    ],
)  # fmt: skip
def test_a_version_counts_from_a_value_of_its_order_or_a_time(of: HistoryTable, name: str | None) -> None:
    assert of.interval_column == name


def test_all_columns_of_the_row_make_versions_unless_some_are_named() -> None:
    assert shape("at").tracked == ("id", *TYPES)
    assert shape("at", track=("n",)).tracked == ("n",)


def test_an_event_is_the_same_by_its_key_and_its_place_in_kafka() -> None:
    within = KeyBounds((("s.`id`", "1", "2"),))
    text = merge_statement("t.branch_b", "view", ["id", "odd`name"], shape("at"), bounds=within)
    condition = text.splitlines()[0].partition(" ON ")[2].split(" AND ", 4)
    assert condition == [
        "t.`id` = s.`id`",
        "t.`_kafka`.`partition` = s.`_kafka`.`partition`",
        "t.`_kafka`.`offset` = s.`_kafka`.`offset`",
        "t.`_kafka`.`topic_id` <=> s.`_kafka`.`topic_id`",
        "t.`id` BETWEEN 1 AND 2",
    ]
    assert "UPDATE SET t.`id` = s.`id`, t.`odd``name` = s.`odd``name`" in text


def test_what_an_audit_of_a_history_finds_is_said() -> None:
    assert HistoryResult().problems == ()
    assert HistoryResult(duplicates=2, overlapping=3).problems == (
        "2 changes have several rows in the table",
        "3 versions overlap the next one",
    )


def test_rows_that_the_merge_counts_otherwise_are_found() -> None:
    merged = MergeCounts(inserted=2, updated=1, added=3, removed=1)
    assert HistoryResult(rows=2, rewritten=1, merged=merged).problems == ()
    (problem,) = HistoryResult(rows=1, rewritten=2, merged=merged).problems
    assert problem == "1 rows are new and 2 changed, but 2 were inserted and 1 updated"


@pytest.mark.parametrize(
    ("settings", "columns", "kind"),
    [
        ({"order_by": ("n",)}, TYPES, T.LongType()),
        ({"order_by": ("day", "n")}, TYPES, T.TimestampType()),
        ({"envelope": "debezium"}, TYPES, T.TimestampType()),
        ({"order_by": ("seen_later",)}, TYPES, None),
    ],
)
def test_history_has_columns_beside_those_of_its_rows(settings: Any, columns: Any, kind: T.DataType | None) -> None:
    spec = TopicTable("orders", "shop", "orders", write="history", **settings)
    names = {
        column.name: column.dataType
        for column in change_columns(spec, T.StructType([*starmap(T.StructField, columns.items())]))
    }
    assert names.get("valid_from") == names.get("valid_to") == kind
    assert {"_is_deleted", "_event"} <= names.keys()
    assert ("_change" in names) == ("envelope" in settings)
    assert spec.identifiers == (("shop", "orders"), ("shop", "orders__dead_letters"))


def test_schema_with_a_column_of_histories_is_refused() -> None:
    spec = TopicTable("orders", "shop", "orders", write="history", format="avro", schema_file="orders.avsc")
    columns = T.StructType([T.StructField("id", T.LongType()), T.StructField("Valid_To", T.DateType())])
    decoder = Json(declared=Target(columns, {}))
    with pytest.raises(TableError, match=r"columns Valid_To, and write: history reserves these names"):
        plan_schema(spec, decoder, None)
