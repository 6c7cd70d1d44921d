"""What Kafka Connect's schemas tell of values: a decimal is a number and a day is a day, whatever stands there."""

import json
from base64 import b64encode
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from kafka_lake.cdc.task.connect_types import Converter, struct_of, structs_in
from kafka_lake.formats.json.task.json_texts import JsonTexts
from kafka_lake_tests.unit.cdc.changes import columns, decoded, records
from kafka_lake_tests.unit.cdc.test_changes import envelope, reported

CONVERTER = Converter(JsonTexts())
CONNECT, DEBEZIUM = "org.apache.kafka.connect.data", "io.debezium"


def field(name: str, kind: str, meaning: str | None = None, **more: Any) -> dict[str, Any]:
    return {"field": name, "type": kind, "optional": True, **({"name": meaning} if meaning else {}), **more}


def made(value: Any, kind: str, meaning: str | None = None, **more: Any) -> str:
    schema = json.dumps({"type": "struct", "fields": [field("x", kind, meaning, **more)]})
    struct = struct_of(json.loads(schema))
    row = json.dumps({"x": value}, separators=(",", ":"))
    # DuckDB's way leaves out nulls.
    texts = {
        (
            CONVERTER.rows(pa.array([row] * 200), struct, one_by_one=np.array([one_by_one] * 200))[0].as_py()[5:-1]
            or "null"
        )
        for one_by_one in (False, True)
    }
    assert len(texts) == 1
    return texts.pop()


def base64_of(unscaled: int) -> str:
    return b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()


@given(st.integers(-(10**38), 10**38), st.integers(0, 38))
def test_decimals_have_every_digit(unscaled: int, scale: int) -> None:
    # As Java's BigDecimal: its bytes, the scale in the schema or beside it.
    text = made(base64_of(unscaled), "bytes", f"{CONNECT}.Decimal", parameters={"scale": str(scale)})
    assert Fraction(text) == Fraction(unscaled, 10**scale)
    assert "E" not in text
    assert (
        made({"scale": scale, "value": base64_of(unscaled)}, "struct", f"{DEBEZIUM}.data.VariableScaleDecimal") == text
    )


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)))
def test_times_are_those_that_were_counted(at: datetime) -> None:
    micros = (at - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    for unit, meaning in ((1_000, "Timestamp"), (1, "MicroTimestamp")):
        found = json.loads(made(micros // unit, "int64", f"{DEBEZIUM}.time.{meaning}"))
        assert datetime.fromisoformat(found) == at - timedelta(microseconds=micros % unit)
    assert json.loads(made(at.toordinal() - 719_163, "int32", f"{DEBEZIUM}.time.Date")) == at.date().isoformat()
    day = at - datetime.combine(at.date(), datetime.min.time())
    found = json.loads(made(day // timedelta(microseconds=1), "int64", f"{DEBEZIUM}.time.MicroTime"))
    assert datetime.fromisoformat(f"2026-01-01T{found}").time() == at.time()


@pytest.mark.parametrize(
    ("value", "schema", "becomes"),
    [
        (None, ("int32", f"{DEBEZIUM}.time.Date"), "null"),
        (-1, ("int32", f"{CONNECT}.Date"), '"1969-12-31"'),
        (1, ("int64", f"{DEBEZIUM}.time.NanoTimestamp"), '"1970-01-01T00:00:00.000000001"'),
        (-1, ("int64", f"{CONNECT}.Timestamp"), '"1969-12-31T23:59:59.999"'),
        (86_399_999, ("int32", f"{CONNECT}.Time"), '"23:59:59.999"'),
        (1_500, ("int32", f"{DEBEZIUM}.time.Time"), '"00:00:01.500"'),
        (1, ("int64", f"{DEBEZIUM}.time.NanoTime"), '"00:00:00.000000001"'),
        ("2026-01-02Z", ("string", f"{DEBEZIUM}.time.IsoDate"), '"2026-01-02"'),
        ("2026-01-02T03:04:05Z", ("string", f"{DEBEZIUM}.time.IsoTimestamp"), '"2026-01-02T03:04:05"'),
        ("2026-01-02T03:04:05Z", ("string", f"{DEBEZIUM}.time.ZonedTimestamp"), '"2026-01-02T03:04:05Z"'),
        ("AP8=", ("bytes",), '"AP8="'),
        # What isn't of its type stands as it is: whether it fits its column is asked of it as of any value.
        ("__debezium_unavailable_value", ("int32", f"{DEBEZIUM}.time.Date"), '"__debezium_unavailable_value"'),
        (True, ("int32", f"{DEBEZIUM}.time.Date"), "true"),
        (2**63 - 1, ("int64", f"{DEBEZIUM}.time.MicroTimestamp"), str(2**63 - 1)),
        (2**31 - 1, ("int32", f"{DEBEZIUM}.time.Date"), str(2**31 - 1)),
        (86_400_000, ("int32", f"{DEBEZIUM}.time.Time"), "86400000"),
        ("12.50", ("string", f"{CONNECT}.Decimal"), '"12.50"'),
        ({"scale": 2}, ("struct", f"{DEBEZIUM}.data.VariableScaleDecimal"), '{"scale":2}'),
    ],
)
def test_each_type_and_what_is_none_of_it(value: Any, schema: tuple[str, ...], becomes: str) -> None:
    assert made(value, *schema) == becomes


def test_elements_of_lists_are_values_too() -> None:
    days = {"type": "int32", "name": f"{DEBEZIUM}.time.Date"}
    assert made([0, None, 1], "array", items=days) == '["1970-01-01", null, "1970-01-02"]'
    money = {"type": "bytes", "name": f"{CONNECT}.Decimal", "parameters": {"scale": "2"}}
    assert made([base64_of(150)], "array", items=money) == "[1.50]"


@pytest.mark.parametrize("schema", ["", [], {}, {"fields": 1}, {"fields": [{"type": "int32"}]}, None])
def test_what_is_no_schema_tells_nothing(schema: Any) -> None:
    assert not struct_of(schema).converts
    assert not structs_in(schema)


def test_rows_with_fields_beyond_their_schema_keep_them() -> None:
    struct = struct_of({"fields": [field("day", "int32", f"{DEBEZIUM}.time.Date")]})
    rows = Converter(JsonTexts()).rows(pa.array(['{"day":1,"n":1}', None]), struct, one_by_one=np.array([False, False]))
    assert rows.to_pylist() == ['{"day":"1970-01-02","n":1}', None]


def test_an_envelope_with_its_schema_tells_rows_and_keys_as_they_are_meant() -> None:
    at = (datetime(2026, 11, 24, 10, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    day = (date(2026, 11, 24) - date(1970, 1, 1)).days
    row = [field("day", "int32", f"{DEBEZIUM}.time.Date"), field("at", "int64", f"{DEBEZIUM}.time.MicroTimestamp")]
    schema = {"type": "struct", "fields": [field(name, "struct", fields=row) for name in ("before", "after")]}
    schema["fields"].append(field("op", "string"))
    key = {"schema": {"type": "struct", "fields": row[:1]}, "payload": {"day": day}}
    value = {"schema": schema, "payload": envelope("u", after={"day": day, "at": at}, before={"day": day, "at": at})}
    kinds = columns(day=T.DateType(), at=T.TimestampNTZType())
    found = reported(value, key, ("day",), kinds=kinds)
    assert found.row == {"day": date(2026, 11, 24), "at": datetime(2026, 11, 24, 10)}
    value["payload"] |= {"op": "d", "after": None}
    assert reported(value, key, ("day",), kinds=kinds).row["day"] == date(2026, 11, 24)
    assert reported(value, None, ("at",), of_record=False, kinds=kinds).row["at"] == datetime(2026, 11, 24, 10)


def test_records_of_several_schemas_in_one_batch_are_read_by_their_own() -> None:
    def sent(number: int) -> dict[str, Any]:
        days = [field(f"day_{number}", "int32", f"{DEBEZIUM}.time.Date"), field("id", "int64")]
        schema = {"type": "struct", "fields": [field("after", "struct", fields=days)]}
        return {"schema": schema, "payload": envelope("c", after={"id": number, f"day_{number}": number})}

    numbers = [*range(40), *range(40)]
    batch = records(
        *(({"id": number}, sent(number)) for number in numbers),
        ({"id": 50}, envelope("c", {"id": 50})),
        ({"id": 51}, b'{"schema": {}, "payload": "\xc3\xa9'),
    )
    target = columns(id=T.LongType(), **{f"day_{number}": T.DateType() for number in range(40)})
    found = decoded(batch, "debezium", target)
    assert [*map(bool, found.error_class.to_pylist())] == [False] * 81 + [True]
    for row, number in zip(found.rows.to_pylist(), numbers, strict=False):
        assert row[f"day_{number}"] == date(1970, 1, 1) + timedelta(days=number)
