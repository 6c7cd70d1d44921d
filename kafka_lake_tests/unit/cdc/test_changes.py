"""What records say of keyed rows: envelopes, keys and orders, in Python alone."""

import json
from typing import Any

import pytest
from pyspark.sql import types as T

from kafka_lake.cdc.task.change import DELETE, NOTHING, READ, TRUNCATE, UPSERT
from kafka_lake.cdc.task.decoder import key_row
from kafka_lake.formats.task.error_classes import NO_OLD_KEY, NO_ORDER, NOT_A_CHANGE, NOT_JSON, OTHER_KEY
from kafka_lake.writers.upsert.keys import KeyBounds, Keys
from kafka_lake.writers.upsert.merge import merge_statement
from kafka_lake_tests.unit.cdc.changes import change, columns, decoded, inferred, records

POSTGRES = {"connector": "postgresql", "lsn": 20, "sequence": '["10","20"]'}


def envelope(op: str = "c", after: Any = None, source: Any = POSTGRES, **more: Any) -> dict[str, Any]:
    return {"before": None, "after": after, "source": source, "op": op, **more}


def reported(
    value: Any,
    key: Any = {"id": 1},  # noqa: B006
    fields: tuple[str, ...] = ("id",),
    of_record: bool = True,
    kinds: Any = None,
) -> Any:
    payload = value.get("payload", value) if isinstance(value, dict) else {}
    rows = [payload.get(name) for name in ("before", "after")]
    target = kinds or T.StructType([*inferred(key if isinstance(key, dict) and "payload" not in key else None, *rows)])
    missing = [T.StructField(name, T.LongType()) for name in fields if name not in target.names]
    found = decoded(records((key, value)), "debezium", T.StructType([*target, *missing]), fields, of_record=of_record)
    return change(found)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("op", "operation"), [("c", UPSERT), ("u", UPSERT), ("r", READ), ("d", DELETE), ("t", TRUNCATE)]
)
def test_an_operation_with_and_without_the_converters_schema(op: str, operation: str, wrapped: bool) -> None:
    def sent(value: Any) -> Any:
        return {"schema": {"type": "struct"}, "payload": value} if wrapped else value

    row = {"id": 1, "price": 1.5} if op in "cur" else None
    kinds = columns(id=T.LongType(), price=T.DoubleType())
    found = reported(sent(envelope(op, row)), sent({"id": 1}), kinds=kinds)
    assert (found.operation, found.error) == (operation, None)
    assert found.order == ([10, 0] if op == "r" else [10, 20])
    assert found.row == {"c": row, "u": row, "r": row, "d": {"id": 1, "price": None}, "t": None}[op]


def test_the_row_keeps_every_digit() -> None:
    raw = b'{"op": "c", "source": %s, "after": {"id": 1, "n": 1.10, "m": 123456789012345678901234567890.12}}'
    kinds = columns(id=T.LongType(), n=T.StringType(), m=T.DecimalType(32, 2))
    found = reported(raw % json.dumps(POSTGRES).encode(), kinds=kinds)
    assert {name: str(value) for name, value in found.row.items()} == {
        "id": "1", "n": "1.10", "m": "123456789012345678901234567890.12",
    }  # fmt: skip


def test_one_record_that_is_no_json_leaves_the_others_alone() -> None:
    good, odd = envelope("c", {"id": 1, "n": 1}), envelope("c", {"id": 2, "n": 1.50})
    values = [good, b'{"op": "c"', odd, None, b"\xff", good, b'{"op": "c", "after": {"id": 3, "n": 1e400}}']
    kinds = columns(id=T.LongType(), n=T.DoubleType())
    found = decoded(records(*(({"id": 1}, value) for value in values)), "debezium", kinds)
    assert [row and row["n"] for row in found.rows.to_pylist()] == [1, None, 1.5, None, None, 1, None]
    assert found.error_class.to_pylist()[:6] == [None, NOT_JSON, None, None, NOT_JSON, None]
    assert found.error_class[6].as_py() is not None


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (b"no json", NOT_JSON, "broken JSON"),
        (b"[1]", NOT_JSON, "a JSON array"),
        (b"\xff", NOT_JSON, "not UTF-8"),
        ({"ts_ms": 1}, NOT_A_CHANGE, "heartbeat"),
        ({"status": "BEGIN", "id": "1", "event_count": None}, NOT_A_CHANGE, "transaction"),
        ({"source": {}, "ddl": "create table t"}, NOT_A_CHANGE, "schema"),
        ({"id": 1, "name": "x"}, NOT_A_CHANGE, "leave out envelope:"),
        (envelope("m"), NOT_A_CHANGE, "'m'"),
        (envelope("c", None), NOT_A_CHANGE, "`after`"),
        (envelope("c", {"id": 1}, {}), NO_ORDER, "connector"),
        (envelope("c", {"id": 1}, {"connector": "mongodb"}), NO_ORDER, "mongodb"),
        (envelope("c", {"id": 1}, {"connector": "postgresql"}), NO_ORDER, "postgresql"),
    ],
)
def test_what_is_no_change_says_why(value: Any, error: str, says: str) -> None:
    found = reported(value)
    assert found.error == error
    assert says in found.message


def test_a_key_of_other_columns_is_told_with_both() -> None:
    found = reported(envelope("u", {"id": 1}), {"id": 1, "tenant": 2})
    assert found.error == OTHER_KEY
    assert "id, tenant" in found.message
    assert found.message.endswith("the table's key has id.")


def test_a_key_that_is_not_the_records_is_told_by_the_row_before() -> None:
    found = reported({**envelope("d"), "before": {"mail": "a@b"}}, {"id": 1}, ("mail",), of_record=False)
    assert (found.operation, found.row["mail"]) == (DELETE, "a@b")


@pytest.mark.parametrize("key", [{"id": 1}, None, b"not a JSON object"])
def test_update_tells_the_row_before_if_its_record_has_another_key(key: Any) -> None:
    update = {**envelope("u", {"id": 1, "mail": "new"}), "before": {"id": 1, "mail": "old"}}
    found = reported(update, key, ("mail",), of_record=False)
    assert (found.operation, found.row, found.old_key) == (UPSERT, {"id": 1, "mail": "new"}, {"mail": "old"})
    for op in ("c", "r"):
        assert reported({**update, "op": op}, key, ("mail",), of_record=False).old_key is None


def test_update_whose_record_has_the_key_tells_no_row_before() -> None:
    update = {**envelope("u", {"id": 1, "mail": "new"}), "before": {"id": 1, "mail": "old"}}
    assert reported(update).old_key is None
    found = reported({**update, "before": None}, {"id": 1, "mail": "new"}, ("mail",), of_record=False)
    assert (found.error, found.old_key) == (None, None)


@pytest.mark.parametrize(
    ("key", "of_record", "says"), [({"id": 1}, False, "REPLICA IDENTITY FULL"), (None, True, "The update's record has")]
)
def test_update_that_hides_the_key_before_is_refused(key: Any, of_record: bool, says: str) -> None:
    found = reported(envelope("u", {"id": 1, "mail": "new"}), key, ("mail",), of_record=of_record)
    assert found.error == NO_OLD_KEY
    assert says in found.message


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        # Written earlier, committed later: transactions come in the order of their commits.
        (("postgresql", {"sequence": '["10","50"]'}), ("postgresql", {"sequence": '["60","40"]'})),
        (("postgresql", {"sequence": '["10","50"]'}), ("postgresql", {"sequence": '["10","51"]'})),
        (("postgresql", {"sequence": '[null,"50"]'}), ("postgresql", {"sequence": '["50","51"]'})),
        (("postgresql", {"lsn": 9}), ("postgresql", {"lsn": 10})),
        # The files' numbers are numbers.
        (("mysql", {"file": "bin.999999", "pos": 4, "row": 0}), ("mysql", {"file": "bin.1000000", "pos": 4, "row": 0})),
        (("mysql", {"file": "bin.000002", "pos": 900}), ("mysql", {"file": "bin.000002", "pos": 1000})),
        (("mariadb", {"file": "bin.2", "pos": 9, "row": 1}), ("mariadb", {"file": "bin.2", "pos": 9, "row": 2})),
        (
            ("sqlserver", {"commit_lsn": "00000027:00000ac0:0009", "change_lsn": "00000027:00000ac0:0002"}),
            ("sqlserver", {"commit_lsn": "00000027:00000ac0:0010", "change_lsn": "00000027:00000ac0:0001"}),
        ),
        (
            ("sqlserver", {"commit_lsn": "1:2:3", "change_lsn": "1:2:3", "event_serial_no": 1}),
            ("sqlserver", {"commit_lsn": "1:2:3", "change_lsn": "1:2:3", "event_serial_no": 2}),
        ),
        (("oracle", {"scn": "9", "commit_scn": "20"}), ("oracle", {"scn": "8", "commit_scn": "30"})),
    ],
)
def test_the_order_is_the_sources(older: tuple[str, Any], newer: tuple[str, Any]) -> None:
    first, second = (
        reported(envelope("u", {"id": 1}, {"connector": kind, **source})).order for kind, source in (older, newer)
    )
    assert first is not None
    assert second is not None
    assert first < second


@pytest.mark.parametrize(
    ("key", "columns", "row"),
    [
        (b'{"id": 1}', ["id"], {"id": 1}),
        (b'{"a": 1, "b": 2}', ["a", "b"], {"a": 1, "b": 2}),
        (b"17", ["id"], {"id": 17}),
        (b'"x"', ["id"], {"id": "x"}),
        (b'a "quoted" b', ['na"me'], {'na"me': 'a "quoted" b'}),
        (b"[1]", ["id"], {"id": "[1]"}),
        (b'{"id": 1.10, "junk": "eu"}', ["ID"], {"id": 1.1}),
        (b" 17 ", ["id"], {"id": " 17 "}),
        (b"NaN", ["id"], {"id": "NaN"}),
        (b"-Infinity", ["id"], {"id": "-Infinity"}),
        (b"[" * 100_000, ["id"], {"id": "[" * 100_000}),
        (b"17", ["a", "b"], None),
        (b"\xff", ["id"], None),
        (None, ["id"], None),
    ],
)
def test_a_records_key_tells_the_row_of_a_tombstone(key: bytes | None, columns: list[str], row: Any) -> None:
    found = key_row(key, columns)
    assert (json.loads(found) if found else None) == row


def test_names_are_quoted_in_what_spark_is_told() -> None:
    keys = Keys(("a`b",), ("at'time",), False, "it's")
    text = merge_statement(
        "`c`.`n`.`t`.branch_x", "view", ["a`b", "at'time", "_kafka"], keys, nullable=[], bounds=KeyBounds(())
    )
    assert "t.`a``b` = s.`a``b`" in text
    assert "<=> 'its'" in text
    assert "raise_error" not in text, "an order of their own tells which is newer"


def test_without_an_order_another_partition_is_an_error() -> None:
    keys = Keys((), (), False, "id")
    within = KeyBounds((("s.`_kafka`.`key`", "X'00'", "X'01'"),))
    text = merge_statement("t", "v", ["x", "_kafka"], keys, nullable=[], bounds=within)
    assert "raise_error" in text
    assert "t.`_kafka`.`key` BETWEEN X'00' AND X'01'" in text.splitlines()[0]


def test_a_row_of_a_snapshot_is_older_than_the_next_transaction() -> None:
    def order(op: str, lsn: int, sequence: str) -> Any:
        return reported(envelope(op, {"id": 1}, {"connector": "postgresql", "lsn": lsn, "sequence": sequence})).order

    read = order("r", 100, '["80","100"]')
    assert order("u", 79, '["70","79"]') < read < order("u", 90, '["80","90"]') < order("u", 105, '["80","105"]')
    assert order("r", 100, '[null,"100"]') < order("u", 105, '[null,"105"]') < order("u", 103, '["110","103"]')


def test_a_tombstone_whose_key_does_not_tell_the_row_says_nothing() -> None:
    other = reported(None, {"other": 1}, of_record=False)
    assert (other.operation, other.error) == (NOTHING, None)
    found = reported(None, {"id": 1, "other": 2}, of_record=False)
    assert (found.operation, found.row["id"]) == (DELETE, 1)


@pytest.mark.parametrize(
    ("time", "at"),
    [(1700000000123, 1700000000123), ("17", 17), *((none, None) for none in (None, 0, -1, 10**18, "x"))],
)
def test_a_change_tells_when_its_source_made_it(time: Any, at: int | None) -> None:
    for op, after in (("c", {"id": 1}), ("d", None)):
        assert reported(envelope(op, after, {**POSTGRES, "ts_ms": time})).at == at
    assert reported(None).at is None


@pytest.mark.parametrize("marker", ["first", "true", "last_in_data_collection", "incremental"])
def test_a_row_that_a_snapshot_has_read_tells_which_of_them_it_is(marker: str) -> None:
    assert reported(envelope("r", {"id": 1}, {**POSTGRES, "snapshot": marker})).snapshot == marker
    # After a snapshot, Debezium may call a change the last of it.
    assert reported(envelope("c", {"id": 1}, {**POSTGRES, "snapshot": marker})).snapshot is None


def test_half_a_surrogate_pair_or_a_deep_sequence_fails_no_other_record() -> None:
    row = envelope("c", {"id": 1})
    odd = [({"\ud800": 1}, row), ({"id": 1}, envelope("c", {"id": 1}, {"connector": "\ud800"})), ({"id": 1}, row)]
    found = decoded(records(*odd), "debezium", columns(id=T.LongType()))
    assert found.error_class.to_pylist()[1:] == [NOT_JSON, None]
    deep = {**POSTGRES, "sequence": "[" * 100_000}
    assert reported(envelope("c", {"id": 1}, deep)).order == [20, 20]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({"db": "shop", "schema": "public", "table": "orders"}, "shop.public.orders"),
        ({"db": "shop", "table": "orders"}, "shop.orders"),
        ({"db": "shop", "collection": "orders"}, "shop.orders"),
        ({"db": "shop", "schema": None, "table": "b\u00fccher"}, "shop.bücher"),
        ({}, None),
    ],
)
@pytest.mark.parametrize("op", ["c", "u", "r", "d", "t"])
def test_a_change_tells_its_sources_table(op: str, source: dict[str, Any], name: str | None) -> None:
    after = {"id": 1} if op in "cur" else None
    assert reported(envelope(op, after, {**POSTGRES, **source})).source == name


def test_values_that_were_not_sent_are_kept() -> None:
    text = "__debezium_unavailable_value"
    row = {"id": 1, "big": text, "days": [*text.encode()], "store": {text: text}, "sizes": [1]}
    texts, numbers = T.ArrayType(T.StringType()), T.ArrayType(T.LongType())
    kinds = columns(
        id=T.LongType(), big=T.StringType(), days=texts, store=T.MapType(T.StringType(), T.StringType()), sizes=numbers
    )  # fmt: skip
    assert reported(envelope("u", row), kinds=kinds).unavailable == ["big", "days", "store"]
    # The schema makes text of days; the placeholder is none.
    day = {"field": "days", "type": "array", "items": {"type": "int32", "name": "io.debezium.time.Date"}}
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": [day]}]}
    found = reported({"schema": schema, "payload": envelope("u", row)}, kinds=kinds)
    assert (found.unavailable, found.row["sizes"]) == (["big", "days", "store"], [1])
    assert reported(envelope("u", {"id": 1, "big": "x"}), kinds=kinds).unavailable == []


def test_key_columns_that_the_row_lacks_are_those_of_the_records_key() -> None:
    """As Debezium's ByLogicalTableRouter writes them."""
    key, fields = (
        {"id": 1, "__dbz__physicalTableIdentifier": "shop.orders_7"},
        ("id", "__dbz__physicalTableIdentifier"),
    )
    for op in ("c", "u", "r"):
        found = reported(envelope(op, {"id": 1, "name": "ada"}), key, fields)
        assert found.row == {"name": "ada", **key}
    gone = reported({**envelope("d"), "before": {"id": 1, "name": "ada"}}, key, fields)
    assert (gone.operation, gone.row) == (DELETE, {"name": None, **key})
    # So is a column of the key that wasn't sent.
    big = reported(envelope("u", {"id": "__debezium_unavailable_value", "n": 1}), {"id": "long"})
    assert (big.row, big.unavailable) == ({"n": 1, "id": "long"}, [])
    whole = reported(envelope("u", {"id": 2}), {"id": 1})
    assert whole.row == {"id": 2}


def test_a_new_column_of_the_key_is_learned_from_the_records_key() -> None:
    batch = records(({"id": 1, "region": "eu"}, envelope("c", {"id": 1, "name": "ada"})))
    seen = decoded(batch, "debezium", T.StructType([]), ("id", "region")).seen
    assert seen.new_fields == {"new": {"id": "long", "name": "text", "region": "text"}}
