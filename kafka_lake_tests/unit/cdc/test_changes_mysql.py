"""Maxwell's and Canal's records, as their documentation has them: what they say of rows, in Python alone."""

import json
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as T

from kafka_lake.cdc.task.change import DELETE, NOTHING, TRUNCATE, UPSERT
from kafka_lake.cdc.task.mysql import key_names
from kafka_lake.formats.task.error_classes import NOT_A_CHANGE, NOT_JSON, OTHER_KEY, SEVERAL_ROWS
from kafka_lake_tests.unit.cdc.changes import change, columns, decoded, records

LONG, DOUBLE, STRING = T.LongType(), T.DoubleType(), T.StringType()
OF_MAXWELL = columns(id=LONG, m=DOUBLE, c=STRING, comment=STRING)
OF_CANAL = columns(id=LONG, name=STRING, description=STRING, weight=DOUBLE)

# https://maxwells-daemon.io/dataformat/
INSERTED = {
    "database": "test",
    "table": "e",
    "type": "insert",
    "ts": 1477053217,
    "xid": 23396,
    "commit": True,
    "position": "master.000006:800911",
    "server_id": 23042,
    "thread_id": 108,
    "primary_key": [1, "2016-10-21 05:33:37.523000"],
    "primary_key_columns": ["id", "c"],
    "data": {"id": 1, "m": 4.2341, "c": "2016-10-21 05:33:37.523000", "comment": "I am a creature of light."},
}
UPDATED = {
    **INSERTED,
    "type": "update",
    "ts": 1477053234,
    "data": {"id": 1, "m": 5.444, "c": "2016-10-21 05:33:37.523000", "comment": "I am a creature of light."},
    "old": {"m": 4.2341},
}
ALTERED = {
    "type": "table-alter",
    "database": "test",
    "table": "e",
    "old": {"database": "test", "charset": "utf8mb4", "table": "e", "columns": []},
    "def": {"database": "test", "charset": "utf8mb4", "table": "e", "columns": []},
    "ts": 1477053308000,
    "sql": "alter table test.e add column torvalds bigint unsigned after m",
    "position": "master.000006:804398",
}
# https://github.com/alibaba/canal/wiki, as Kafka has its flat messages.
CHANGED = {
    "data": [{"id": "111", "name": "scooter", "description": "Big 2-wheel scooter", "weight": "5.18"}],
    "database": "inventory",
    "es": 1589373560000,
    "id": 9,
    "isDdl": False,
    "mysqlType": {"id": "INTEGER", "name": "VARCHAR(255)", "description": "VARCHAR(512)", "weight": "FLOAT"},
    "old": [{"weight": "5.15"}],
    "pkNames": ["id"],
    "sql": "",
    "sqlType": {"id": 4, "name": 12, "description": 12, "weight": 7},
    "table": "products",
    "ts": 1589373560798,
    "type": "UPDATE",
}
CREATED = {
    "data": None,
    "database": "test",
    "es": 1636952642000,
    "id": 2351,
    "isDdl": True,
    "mysqlType": None,
    "old": None,
    "pkNames": None,
    "sql": "CREATE TABLE `demo10` (`pk` bigint(255) NOT NULL AUTO_INCREMENT, PRIMARY KEY (`pk`))",
    "sqlType": None,
    "table": "demo10",
    "ts": 1636952642630,
    "type": "CREATE",
}


def of_maxwell(
    value: Any, fields: tuple[str, ...] = ("id", "c"), of_record: bool = True, key: Any = None, kinds: Any = OF_MAXWELL
) -> Any:
    return change(decoded(records((key, value)), "maxwell", kinds, fields, of_record=of_record))


def of_canal(value: Any, fields: tuple[str, ...] = ("id",), of_record: bool = True, kinds: Any = OF_CANAL) -> Any:
    return change(decoded(records((b"x", value)), "canal", kinds, fields, of_record=of_record))


@pytest.mark.parametrize(
    ("kind", "operation"), [("insert", UPSERT), ("bootstrap-insert", UPSERT), ("update", UPSERT), ("delete", DELETE)]
)
def test_maxwell_tells_the_row(kind: str, operation: str) -> None:
    found = of_maxwell({**(UPDATED if kind == "update" else INSERTED), "type": kind})
    assert (found.operation, found.order, found.error) == (operation, None, None)
    assert found.row == (UPDATED if kind == "update" else INSERTED)["data"]


def test_canal_tells_the_row_and_its_numbers() -> None:
    found = of_canal(CHANGED)
    assert (found.operation, found.order, found.error) == (UPSERT, None, None)
    row = {"id": 111, "name": "scooter", "description": "Big 2-wheel scooter", "weight": 5.18}
    assert found.row == row
    assert of_canal({**CHANGED, "type": "INSERT", "old": None}).row == row
    gone = of_canal({**CHANGED, "type": "DELETE", "old": None})
    assert (gone.operation, gone.row) == (DELETE, row)
    texts = columns(**dict.fromkeys(row, STRING))
    assert of_canal({**CHANGED, "sqlType": None}, kinds=texts).row == CHANGED["data"][0]  # type: ignore[index]


@pytest.mark.parametrize(("time", "at"), [(1477053217, 1477053217000), ("x", None), (-1, None), (None, None)])
def test_maxwell_tells_the_second_of_a_change(time: Any, at: int | None) -> None:
    for kind in ("insert", "update", "delete"):
        assert of_maxwell({**INSERTED, "type": kind, "ts": time}).at == at


def test_canal_tells_when_its_source_made_a_change() -> None:
    for kind in ("INSERT", "UPDATE", "DELETE", "TRUNCATE"):
        assert of_canal({**CHANGED, "type": kind}).at == 1589373560000
    # What Canal's own clock says isn't it.
    assert of_canal({**CHANGED, "es": None}).at is None


def test_no_digit_is_lost() -> None:
    exact, text = T.DecimalType(32, 2), "123456789012345678901234567890.10"
    raw = json.dumps(INSERTED).replace("4.2341", text).encode()
    assert of_maxwell(raw, kinds=columns(id=LONG, m=exact, c=STRING)).row["m"] == Decimal(text)
    raw = json.dumps(CHANGED).replace("5.18", text).encode()
    assert of_canal(raw, kinds=columns(id=LONG, weight=exact)).row["weight"] == Decimal(text)


@pytest.mark.parametrize(
    ("text", "kind", "made"),
    [
        ("7", 4, "long"),
        ("-7", -5, "long"),
        ("0007", 4, "long"),
        ("000", 4, "long"),
        ("18446744073709551615", -5, "double"),
        ("1.50", 3, "double"),
        ("1e3", 8, "double"),
        ("1.5", 4, "text"),
        ("NaN", 8, "text"),
        ("", 4, "text"),
        ("٣", 4, "text"),
        ("7", 12, "text"),
        ("7", 93, "text"),
        ("7", None, "text"),
        (None, 4, None),
    ],
)
def test_canals_text_of_a_number_is_one(text: str | None, kind: int | None, made: str | None) -> None:
    types = {} if kind is None else {"v": kind}
    value = {**CHANGED, "data": [{"v": text}], "old": None, "sqlType": types}
    found = decoded(records((b"x", value)), "canal", T.StructType([]), ("v",), of_record=False)
    assert found.seen.new_fields == ({"new": {"v": made}} if made else {})


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (b"no json", NOT_JSON, "broken JSON"),
        (b"\xff", NOT_JSON, "not UTF-8"),
        ({"id": 1}, NOT_A_CHANGE, "not a message of Maxwell"),
        (ALTERED, NOT_A_CHANGE, "ddl_kafka_topic"),
        ({**ALTERED, "type": "database-create"}, NOT_A_CHANGE, "change of the schema"),
        ({**INSERTED, "type": "bootstrap-start", "data": {}}, NOT_A_CHANGE, "begins or ends a bootstrap"),
        ({**INSERTED, "type": "heartbeat"}, NOT_A_CHANGE, "not a change of a row"),
        ({**INSERTED, "data": None}, NOT_A_CHANGE, "`data`"),
        ({**INSERTED, "primary_key_columns": ["id"]}, OTHER_KEY, "has the columns id, the table's key has c, id."),
    ],
)
def test_what_is_no_change_of_maxwells_says_why(value: Any, error: str, says: str) -> None:
    found = of_maxwell(value)
    assert found.error == error
    assert says in found.message


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (b"no json", NOT_JSON, "broken JSON"),
        ({"id": 1}, NOT_A_CHANGE, "canal.mq.flatMessage"),
        (CREATED, NOT_A_CHANGE, "The type is CREATE: it is a change of the schema"),
        ({**CREATED, "type": "QUERY"}, NOT_A_CHANGE, "change of the schema"),
        ({**CREATED, "type": "TIDB_WATERMARK", "isDdl": False}, NOT_A_CHANGE, "watermark"),
        ({**CHANGED, "type": "OTHER"}, NOT_A_CHANGE, "not a change of a row"),
        ({**CHANGED, "data": []}, NOT_A_CHANGE, "no row"),
        ({**CHANGED, "data": [1]}, NOT_A_CHANGE, "no row"),
        ({**CHANGED, "data": CHANGED["data"] * 2}, SEVERAL_ROWS, "2 rows"),  # type: ignore[operator]
        ({**CHANGED, "pkNames": ["name", "id"]}, OTHER_KEY, "has the columns id, name, the table's key has id."),
    ],
)
def test_what_is_no_change_of_canals_says_why(value: Any, error: str, says: str) -> None:
    found = of_canal(value)
    assert found.error == error
    assert says in found.message


def test_a_truncate_and_a_record_without_a_value() -> None:
    truncate = {**CREATED, "type": "TRUNCATE", "sql": "truncate table products"}
    assert of_canal(truncate).operation == TRUNCATE
    assert of_canal(truncate).source == "test.demo10"
    assert of_canal(CHANGED).source == "inventory.products"
    for found in (of_canal(None), of_maxwell(None)):
        assert (found.operation, found.error) == (NOTHING, None)


def test_a_key_of_the_settings_is_not_the_sources() -> None:
    assert of_maxwell(INSERTED, ("comment",), of_record=False).error is None
    assert of_canal(CHANGED, ("name",), of_record=False).error is None


def test_update_that_may_change_the_key_tells_the_key_before() -> None:
    maxwells = of_maxwell({**UPDATED, "old": {"id": 7}})
    assert maxwells.old_key == {"id": 7, "c": "2016-10-21 05:33:37.523000"}
    canals = of_canal({**CHANGED, "old": [{"id": "7"}]})
    assert (canals.old_key, canals.row["id"]) == ({"id": 7}, 111)
    assert of_canal({**CHANGED, "old": [{"name": "car"}]}, ("name",), of_record=False).old_key == {"name": "car"}


def test_update_of_other_columns_than_the_key_tells_no_key_before() -> None:
    assert of_maxwell({**UPDATED, "old": {"comment": "x"}}).old_key is None
    assert of_canal({**CHANGED, "old": [{"name": "car"}]}).old_key is None
    assert of_canal({**CHANGED, "old": None}, ("name",), of_record=False).old_key is None


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        (b'{"database":"test","table":"e","pk.id":1,"pk.c":"x"}', ("id", "c")),
        (b'["test","e",[{"id":1},{"c":"x"}]]', ("id", "c")),
        (b'{"database":"test","table":"e","_uuid":"x"}', ()),
        (b'["test","e",[]]', ()),
        (b"17", ()),
        (b"\xff", ()),
        (None, ()),
    ],
)
def test_maxwells_key_tells_its_columns(key: bytes | None, fields: tuple[str, ...]) -> None:
    message = {name: member for name, member in INSERTED.items() if name != "primary_key_columns"}
    assert key_names("maxwell", key, json.dumps(message).encode()) == fields
    assert key_names("maxwell", key, json.dumps(INSERTED).encode()) == ("id", "c")
    assert key_names("maxwell", key, json.dumps(ALTERED).encode()) == ()
    assert key_names("maxwell", key, None) == ()
    other = of_maxwell(message, ("comment",), key=key)
    assert other.error == (OTHER_KEY if fields else None)


def test_canals_message_tells_the_key() -> None:
    assert key_names("canal", None, json.dumps(CHANGED).encode()) == ("id",)
    assert key_names("canal", None, json.dumps(CREATED).encode()) == ()
    assert key_names("canal", None, None) == ()
