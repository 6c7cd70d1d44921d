"""Maxwell's and Canal's records, as their documentation has them: what they say of rows, in Python alone."""

import json
from typing import Any

import pytest

from kafka_lake.executors.changes import canal, maxwell
from kafka_lake.executors.changes.change import DELETE, NOTHING, TRUNCATE, UPSERT
from kafka_lake.executors.changes.spans import items
from kafka_lake.executors.error_classes import NOT_A_CHANGE, OTHER_KEY, SEVERAL_ROWS

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


def of_maxwell(value: Any, columns: tuple[str, ...] = ("id", "c"), of_record: bool = True, key: Any = None) -> Any:
    raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return maxwell.change_of(key, raw, columns, of_record)


def of_canal(value: Any, columns: tuple[str, ...] = ("id",), of_record: bool = True) -> Any:
    raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return canal.change_of(b"x", raw, columns, of_record)


@pytest.mark.parametrize(
    ("kind", "does"), [("insert", UPSERT), ("bootstrap-insert", UPSERT), ("update", UPSERT), ("delete", DELETE)]
)
def test_maxwell_tells_the_row(kind: str, does: str) -> None:
    change = of_maxwell({**(UPDATED if kind == "update" else INSERTED), "type": kind})
    assert (change.does, change.order, change.error_class) == (does, None, "")
    assert json.loads(change.row) == (UPDATED if kind == "update" else INSERTED)["data"]


def test_canal_tells_the_row_and_its_numbers() -> None:
    change = of_canal(CHANGED)
    assert (change.does, change.order, change.error_class) == (UPSERT, None, "")
    row = {"id": 111, "name": "scooter", "description": "Big 2-wheel scooter", "weight": 5.18}
    assert json.loads(change.row) == row
    assert json.loads(of_canal({**CHANGED, "type": "INSERT", "old": None}).row) == row
    gone = of_canal({**CHANGED, "type": "DELETE", "old": None})
    assert (gone.does, json.loads(gone.row)) == (DELETE, row)
    without = of_canal({**CHANGED, "sqlType": None})
    assert json.loads(without.row) == CHANGED["data"][0]  # type: ignore[index]


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
    raw = json.dumps(INSERTED).replace("4.2341", "123456789012345678901234567890.10").encode()
    assert b'"m": 123456789012345678901234567890.10' in of_maxwell(raw).row
    raw = json.dumps(CHANGED).replace("5.18", "123456789012345678901234567890.10").encode()
    assert b'"weight": 123456789012345678901234567890.10' in of_canal(raw).row


@pytest.mark.parametrize(
    ("text", "kind", "made"),
    [
        ("7", 4, "7"),
        ("-7", -5, "-7"),
        ("0007", 4, "7"),
        ("000", 4, "0"),
        ("18446744073709551615", -5, "18446744073709551615"),
        ("1.50", 3, "1.50"),
        ("1e3", 8, "1e3"),
        ("1.5", 4, '"1.5"'),
        ("NaN", 8, '"NaN"'),
        ("", 4, '""'),
        ("٣", 4, '"٣"'),
        ("7", 12, '"7"'),
        ("7", 93, '"7"'),
        ("7", None, '"7"'),
        (None, 4, "null"),
    ],
)
def test_canals_text_of_a_number_is_one(text: str | None, kind: int | None, made: str) -> None:
    types = {} if kind is None else {"v": kind}
    change = of_canal({**CHANGED, "data": [{"v": text}], "old": None, "sqlType": types}, ("v",), of_record=False)
    assert change.row.decode() == f'{{"v": {made}}}'.replace("٣", "\\u0663")


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (b"no json", NOT_A_CHANGE, "not one JSON object"),
        (b"\xff", NOT_A_CHANGE, "not one JSON object"),
        ({"id": 1}, NOT_A_CHANGE, "no message of Maxwell's"),
        (ALTERED, NOT_A_CHANGE, "ddl_kafka_topic"),
        ({**ALTERED, "type": "database-create"}, NOT_A_CHANGE, "change of the schema"),
        ({**INSERTED, "type": "bootstrap-start", "data": {}}, NOT_A_CHANGE, "begins or ends a bootstrap"),
        ({**INSERTED, "type": "heartbeat"}, NOT_A_CHANGE, "no change of a row"),
        ({**INSERTED, "data": None}, NOT_A_CHANGE, "`data`"),
        ({**INSERTED, "primary_key_columns": ["id"]}, OTHER_KEY, "has the columns id, the table's key has c, id."),
    ],
)
def test_what_is_no_change_of_maxwells_says_why(value: Any, error: str, says: str) -> None:
    change = of_maxwell(value)
    assert change.error_class == error
    assert says in change.error_message


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (b"no json", NOT_A_CHANGE, "not one JSON object"),
        ({"id": 1}, NOT_A_CHANGE, "canal.mq.flatMessage"),
        (CREATED, NOT_A_CHANGE, "The type is CREATE: it is a change of the schema"),
        ({**CREATED, "type": "QUERY"}, NOT_A_CHANGE, "change of the schema"),
        ({**CREATED, "type": "TIDB_WATERMARK", "isDdl": False}, NOT_A_CHANGE, "watermark"),
        ({**CHANGED, "type": "OTHER"}, NOT_A_CHANGE, "no change of a row"),
        ({**CHANGED, "data": []}, NOT_A_CHANGE, "no row"),
        ({**CHANGED, "data": [1]}, NOT_A_CHANGE, "no row"),
        ({**CHANGED, "data": CHANGED["data"] * 2}, SEVERAL_ROWS, "2 rows"),  # type: ignore[operator]
        ({**CHANGED, "pkNames": ["name", "id"]}, OTHER_KEY, "has the columns id, name, the table's key has id."),
    ],
)
def test_what_is_no_change_of_canals_says_why(value: Any, error: str, says: str) -> None:
    change = of_canal(value)
    assert change.error_class == error
    assert says in change.error_message


def test_a_truncate_and_a_record_without_a_value() -> None:
    truncate = {**CREATED, "type": "TRUNCATE", "sql": "truncate table products"}
    assert of_canal(truncate).does == TRUNCATE
    assert of_canal(truncate).source == "test.demo10"
    assert of_canal(CHANGED).source == "inventory.products"
    assert of_canal(None).does == of_maxwell(None).does == NOTHING


def test_a_key_of_the_settings_is_not_the_sources() -> None:
    assert of_maxwell(INSERTED, ("comment",), of_record=False).error_class == ""
    assert of_canal(CHANGED, ("name",), of_record=False).error_class == ""


def test_update_that_may_change_the_key_tells_the_row_before() -> None:
    maxwells = of_maxwell({**UPDATED, "old": {"id": 7}})
    assert json.loads(maxwells.old) == {**UPDATED["data"], "id": 7}  # type: ignore[dict-item]
    canals = of_canal({**CHANGED, "old": [{"id": "7"}]})
    assert json.loads(canals.old)["id"] == 7
    assert json.loads(canals.row)["id"] == 111
    # Columns that the settings name may be called otherwise in records.
    assert json.loads(of_canal({**CHANGED, "old": [{"name": "car"}]}, ("label",), of_record=False).old)["name"] == "car"


def test_update_of_other_columns_than_the_key_tells_no_row_before() -> None:
    assert of_maxwell({**UPDATED, "old": {"comment": "x"}}).old is None
    assert of_canal({**CHANGED, "old": [{"name": "car"}]}).old is None
    assert of_canal({**CHANGED, "old": None}, ("name",), of_record=False).old is None


@pytest.mark.parametrize(
    ("key", "columns"),
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
def test_maxwells_key_tells_its_columns(key: bytes | None, columns: tuple[str, ...]) -> None:
    message = {name: each for name, each in INSERTED.items() if name != "primary_key_columns"}
    assert maxwell.key_columns(key, json.dumps(message).encode()) == columns
    assert maxwell.key_columns(key, json.dumps(INSERTED).encode()) == ("id", "c")
    assert maxwell.key_columns(key, json.dumps(ALTERED).encode()) == ()
    assert maxwell.key_columns(key, None) == ()


def test_canals_message_tells_the_key() -> None:
    assert canal.key_columns(None, json.dumps(CHANGED).encode()) == ("id",)
    assert canal.key_columns(None, json.dumps(CREATED).encode()) == ()
    assert canal.key_columns(None, None) == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [("[1.10, [2], {}]", ["1.10", "[2]", "{}"]), ("[1;2]", None), (" [ ] ", []), ("[1,]", None), ("[1 2]", None),
     ("{}", None), ("[1] x", None), ("", None), ("[" * 100_000, None)],
)  # fmt: skip
def test_items_are_the_texts_that_stand_there(text: str, found: list[str] | None) -> None:
    assert items(text) == found
