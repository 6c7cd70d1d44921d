"""Records as changes in the task: rows, what is done to them, and why a record is no change; without Spark."""

import json
from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.executors.changes.decoder import ChangesDecoder
from kafka_lake.executors.decoders import record_decoder
from kafka_lake.ingest.tasks import packed

KINDS = {"id": "long", "name": "string", "at": "long"}


def columns(*names: str) -> Any:
    return tuple((name, (KINDS[name],), (name,), False, KINDS[name]) for name in names)


def values(*names: str) -> dict[str, Any]:
    return {"decoder": "json", "columns": columns(*names), "rules": {}, "max_bytes": None, "plain": True}


def decoder(envelope: str = "", **settings: Any) -> Any:
    told = {
        "told": {"envelope": envelope, "columns": ["id"], "of_record": False, "placeholder": "__gone"}
        if envelope
        else None,
        "key": ("id",),
        "columns": list(KINDS),
        "required": [],
        "order_by": [],
        "comparable": True,
        "feeds": {"name": ["name"]} if envelope == "debezium" else None,
        "fed": list(KINDS),
        "left_out": (),
        "counts_ids": False,
        **settings,
    }
    old = values("id") if envelope else None
    parts = {"rows": values(*KINDS), "old": old, "in_key": None}
    return record_decoder({"decoder": "changes", "packed": packed(ChangesDecoder), **parts, "told": told})


def records(*pairs: tuple[Any, Any]) -> pa.RecordBatch:
    keys, given = (
        [None if each is None else json.dumps(each).encode() for each in part] for part in zip(*pairs, strict=True)
    )
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "value": pa.array(given, pa.binary())})


def envelope(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    source = {"connector": "postgresql", "lsn": 5, "sequence": None, "ts_ms": 3, "schema": "s", "table": "t"}
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": 7}


def row(id_: Any, name: Any = "a", at: Any = 1) -> dict[str, Any]:
    return {"id": id_, "name": name, "at": at}


def told(decoded: Any) -> list[str | None]:
    found: list[str | None] = decoded.error_class.to_pylist()
    return found


def test_a_row_is_brought_and_a_record_without_a_value_deletes() -> None:
    decoded = decoder().decode(records((1, row(1)), (2, row(None)), (3, row("x"))))
    assert decoded.rows.to_pylist() == [row(1), None, None]
    assert told(decoded) == [None, "no_key", "wrong_type"]
    assert decoded.change.field("does").to_pylist() == ["upsert"] * 3
    assert decoded.error_message[1].as_py() == "Null or missing in the key: id"


def test_the_bytes_of_a_record_may_be_the_key() -> None:
    decoded = decoder(key=()).decode(records((1, row(1)), (None, row(2)), (None, None), (4, None)))
    assert told(decoded) == [None, "no_key", "no_key", None]
    assert decoded.change.field("does").to_pylist() == ["upsert", "upsert", "delete", "delete"]
    assert decoded.error_message[1].as_py() == "Null or missing in the key: the record's key"


@pytest.mark.parametrize(
    ("settings", "name", "message"),
    [
        ({"required": ["name"]}, "null_in_required_column", "Required, but null or missing: name."),
        ({"order_by": ["name"]}, "no_order", "Null or missing, and changes are ordered by it: name."),
        ({"order_by": ["other"]}, "no_order", "Null or missing, and changes are ordered by it: other."),
    ],
)
def test_a_row_lacks_what_it_must_have(settings: dict[str, Any], name: str, message: str) -> None:
    decoded = decoder(**settings).decode(records((1, row(1, name=None))))
    assert (told(decoded), decoded.error_message.to_pylist()) == ([name], [message])


def test_an_update_tells_the_key_before_and_a_delete_the_row_before() -> None:
    changes = [
        envelope("u", before=row(1), after=row(2)),
        envelope("d", before=row(3)),
        envelope("u", before={"id": None}, after=row(4)),
        envelope("u", before={"id": "x"}, after=row(5)),
    ]
    decoded = decoder("debezium").decode(records(*((None, each) for each in changes)))
    assert told(decoded) == [None, None, "no_old_key", "no_old_key"]
    assert decoded.change.field("old").to_pylist()[:2] == [{"id": 1}, None]
    assert [each and each["id"] for each in decoded.rows.to_pylist()] == [2, 3, None, None]
    assert decoded.change.field("does").to_pylist()[:2] == ["upsert", "delete"]
    assert decoded.change.field("at").to_pylist()[0] == 3


def test_a_changed_key_is_refused_where_no_order_tells_what_came_first() -> None:
    change = envelope("u", before=row(1), after=row(2))
    decoded = decoder("debezium", comparable=False).decode(records((None, change), (None, envelope("c", after=row(3)))))
    assert told(decoded) == ["key_changed", None]
    assert decoded.error_message[0].as_py().startswith("The update changes id, and the row of the old key")


def test_values_that_were_not_sent_are_kept_and_have_a_column() -> None:
    sent = envelope("u", before=row(1), after=row(1, name="__gone"))
    strange = envelope("u", before=row(2), after={"id": 2, "blob": "__gone"})
    decoded = decoder("debezium", required=["name"]).decode(records((None, sent), (None, strange)))
    assert decoded.rows.to_pylist()[0] == row(1, name=None)
    assert decoded.change.field("kept").to_pylist()[0] == ["name"]
    # What is required and isn't there counts before a value that no column takes.
    assert told(decoded) == [None, "null_in_required_column"]
    assert told(decoder("debezium").decode(records((None, strange)))) == ["value_not_sent"]


def test_what_is_no_envelope_is_no_change() -> None:
    decoded = decoder("debezium").decode(records((None, row(1)), (None, [1])))
    assert told(decoded) == ["not_a_change", "not_a_change"]
    assert decoded.change.field("does").to_pylist() == [None, None]
