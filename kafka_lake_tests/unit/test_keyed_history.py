"""Histories of keyed tables without Spark: their columns, what is merged, what is counted and refused."""

from typing import Any

import pytest
from pyspark.sql import types as T

from kafka_lake.ingest.decode.rows import METADATA, history_columns
from kafka_lake.ingest.keyed.bounds import Bounds
from kafka_lake.ingest.keyed.history.figures import HistoryBatch, HistoryCheck
from kafka_lake.ingest.keyed.history.merge import statement
from kafka_lake.ingest.keyed.history.shape import Shape
from kafka_lake.ingest.keyed.keys import Keys
from kafka_lake.ingest.topic_table import TopicTable

TYPES = {"at": T.TimestampType(), "n": T.LongType(), "day": T.DateType(), "text": T.StringType(), "raw": T.BinaryType()}
TABLE = T.StructType(
    [
        T.StructField("id", T.LongType(), nullable=False),
        *(T.StructField(name, kind) for name, kind in TYPES.items()),
        T.StructField("_kafka", METADATA),
        T.StructField("_is_deleted", T.BooleanType()),
    ]
)


def shape(*order_by: str, envelope: bool = False, track: tuple[str, ...] = ()) -> Shape:
    keys = Keys("_kafka", columns=("id",), order_by=order_by, has_envelope=envelope, topic_id="t")
    return Shape(keys, TABLE, track)


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        (shape("at"), T.TimestampType()),
        (shape("n"), T.LongType()),
        (shape("day"), T.DateType()),
        (shape("text"), T.TimestampType()),
        (shape("raw"), T.TimestampType()),
        (shape("n", "day"), T.TimestampType()),
        (shape(), T.TimestampType()),
        (shape(envelope=True), T.TimestampType()),
    ],
)
def test_an_interval_is_in_the_type_of_the_order_or_a_time(of: Shape, kind: T.DataType) -> None:
    columns = {field.name: field for field in of.columns}
    assert columns["valid_from"].dataType == columns["valid_to"].dataType == kind
    # A delete tells its key alone, and one row has a column once.
    assert all(field.nullable for field in of.columns)
    assert len(columns) == len(of.columns) == len(TABLE) + 3


def test_all_columns_of_the_row_make_versions_unless_some_are_named() -> None:
    assert shape("at").tracked == ("id", *TYPES)
    assert shape("at", track=("n",)).tracked == ("n",)


def test_an_event_is_the_same_by_its_key_and_its_place_in_kafka() -> None:
    within = Bounds((("s.`id`", "1", "2"),))
    text = statement("t.branch_b", "view", ["id", "odd`name"], shape("at"), within=within)
    condition = text.splitlines()[0].partition(" ON ")[2].split(" AND ", 4)
    assert condition == [
        "t.`id` = s.`id`",
        "t.`_kafka`.`partition` = s.`_kafka`.`partition`",
        "t.`_kafka`.`offset` = s.`_kafka`.`offset`",
        "t.`_kafka`.`topic_id` <=> s.`_kafka`.`topic_id`",
        "t.`id` BETWEEN 1 AND 2",
    ]
    assert "UPDATE SET t.`id` = s.`id`, t.`odd``name` = s.`odd``name`" in text
    assert "BETWEEN" not in statement("t", "view", ["id"], shape("at"), within=None)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"other": 2}, "history: 2 events are missing, double or otherwise than computed"),
        ({"backwards": 1}, "history: 1 rows have an interval that runs backwards"),
        ({"untiled": 3}, "history: 3 versions overlap the next one, or leave a gap before it"),
        ({"several": 1}, "history: 1 keys have several open versions"),
        ({"unlike": 1}, "history: 1 keys have another newest version than the table has"),
    ],
)
def test_what_an_audit_of_a_history_finds_is_said(found: dict[str, int], said: str) -> None:
    nothing = dict.fromkeys(("other", "backwards", "untiled", "several", "unlike"), 0)
    assert HistoryCheck(**nothing).problems == ()
    assert HistoryCheck(**{**nothing, **found}).problems == (said,)


def test_a_batch_tells_what_became_of_it() -> None:
    check = HistoryCheck(other=0, backwards=0, untiled=0, several=0, unlike=0)
    assert HistoryBatch(events=5, versions=4, closed=3, rewritten=2, check=check).facts == {
        "history_events": 5,
        "history_versions_added": 4,
        "history_versions_closed": 3,
        "history_rows_rewritten": 2,
    }


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ()),
        ({"history": True}, ("valid_from", "valid_to", "_event", "_is_deleted")),
        ({"history": True, "deletes": "soft"}, ("valid_from", "valid_to", "_event")),
    ],
)
def test_a_history_is_a_table_of_the_topic_and_has_names_of_its_own(settings: Any, names: tuple[str, ...]) -> None:
    spec = TopicTable("orders", "shop", "orders", write="upsert", **settings)
    assert history_columns(spec) == names
    assert (("shop", "orders__history") in spec.identifiers) == bool(settings)
