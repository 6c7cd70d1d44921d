"""Records as changes in the task: rows, what is done to them, and why a record is no change; without Spark."""

from typing import Any

import pytest
from pyspark.sql import types as T

from kafka_lake.formats.columns import Target
from kafka_lake_tests.unit.cdc.changes import columns, decoded, records

KINDS = columns(id=T.LongType(), name=T.StringType(), at=T.LongType())


def decoder(envelope: str = "none", required: tuple[str, ...] = (), **settings: Any) -> Any:
    target = T.StructType([T.StructField(f.name, f.dataType, f.name not in required) for f in KINDS])
    key = settings.pop("key", ("id",))
    settings = {"of_record": False, "looks": envelope != "none" or bool(key), **settings}
    return lambda batch: decoded(batch, envelope, Target(target), key, **settings)


def envelope(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    source = {"connector": "postgresql", "lsn": 5, "sequence": None, "ts_ms": 3, "schema": "s", "table": "t"}
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": 7}


def row(id_: Any, name: Any = "a", at: Any = 1) -> dict[str, Any]:
    return {"id": id_, "name": name, "at": at}


def reported(found: Any) -> list[str | None]:
    said: list[str | None] = found.error_class.to_pylist()
    return said


def test_a_row_is_brought_and_a_record_without_a_value_deletes() -> None:
    found = decoder()(records((1, row(1)), (2, row(None)), (3, row("x"))))
    assert found.rows.to_pylist() == [row(1), None, None]
    assert reported(found) == [None, "no_key", "wrong_type"]
    assert found.change.field("operation").to_pylist() == ["upsert"] * 3
    assert found.error_message[1].as_py() == "Null or missing in the key: id"


def test_the_bytes_of_a_record_may_be_the_key() -> None:
    found = decoder(key=())(records((1, row(1)), (None, row(2)), (None, None), (4, None)))
    assert reported(found) == [None, "no_key", "no_key", None]
    assert found.change.field("operation").to_pylist() == ["upsert", "upsert", "delete", "delete"]
    assert found.error_message[1].as_py() == "Null or missing in the key: the record's key"


@pytest.mark.parametrize(
    ("settings", "name", "message"),
    [
        ({"required": ("name",)}, "null_in_required_column", "Required, but null or missing: name."),
        ({"order_by": ["name"]}, "no_order", "Null or missing, and changes are ordered by it: name."),
        ({"order_by": ["other"]}, "no_order", "Null or missing, and changes are ordered by it: other."),
    ],
)
def test_a_row_lacks_what_it_must_have(settings: dict[str, Any], name: str, message: str) -> None:
    found = decoder(**settings)(records((1, row(1, name=None))))
    assert (reported(found), found.error_message.to_pylist()) == ([name], [message])


def test_an_update_tells_the_key_before_and_a_delete_the_row_before() -> None:
    changes = [
        envelope("u", before=row(1), after=row(2)),
        envelope("d", before=row(3)),
        envelope("u", before={"id": None}, after=row(4)),
        envelope("u", before={"id": "x"}, after=row(5)),
    ]
    found = decoder("debezium")(records(*((None, change) for change in changes)))
    assert reported(found) == [None, None, "no_old_key", "no_old_key"]
    assert found.change.field("old_key").to_pylist()[:2] == [{"id": 1}, None]
    assert [item and item["id"] for item in found.rows.to_pylist()] == [2, 3, None, None]
    assert found.change.field("operation").to_pylist()[:2] == ["upsert", "delete"]
    assert found.change.field("at").to_pylist()[0] == 3


def test_a_changed_key_is_refused_where_no_order_tells_what_came_first() -> None:
    change = envelope("u", before=row(1), after=row(2))
    found = decoder("debezium", comparable=False)(records((None, change), (None, envelope("c", after=row(3)))))
    assert reported(found) == ["key_changed", None]
    assert found.error_message[0].as_py().startswith("The update changes id, and the row of the old key")


def test_values_that_were_not_sent_are_kept_and_have_a_column() -> None:
    sent = envelope("u", before=row(1), after=row(1, name="__debezium_unavailable_value"))
    strange = envelope("u", before=row(2), after={"id": 2, "blob": "__debezium_unavailable_value"})
    found = decoder("debezium", required=("name",))(records((None, sent), (None, strange)))
    assert found.rows.to_pylist()[0] == row(1, name=None)
    assert found.change.field("unavailable").to_pylist()[0] == ["name"]
    # What is required and isn't there counts before a value that no column takes.
    assert reported(found) == [None, "null_in_required_column"]
    assert reported(decoder("debezium")(records((None, strange)))) == ["value_not_sent"]


def test_what_is_no_envelope_is_no_change() -> None:
    found = decoder("debezium")(records((None, row(1)), (None, [1])))
    assert reported(found) == ["not_a_change", "not_json"]
    assert found.change.field("operation").to_pylist() == [None, None]
