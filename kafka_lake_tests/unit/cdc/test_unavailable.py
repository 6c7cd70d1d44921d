"""Values that Debezium didn't send: how they look in each type, in JSON and in Avro; and what never looks so."""

import json
from base64 import b64decode, b64encode
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.cdc.task.unavailable import PLACEHOLDER, Placeholders, may_be_unavailable

GEOMETRY = "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ=="


def values() -> dict[str, Any]:
    """Return the values of a source's types that stand for one that wasn't sent."""
    text, data = PLACEHOLDER, PLACEHOLDER.encode()
    numbers = list(data)
    return {
        "text": text,
        "bytea": b64encode(data).decode(),
        "bytea as hex": data.hex(),
        "text[]": [text],
        "bytea[]": [b64encode(data).decode()],
        "int4[], int8[], date[]": numbers,
        "hstore": {text: text},
        "hstore as json": json.dumps({text: text}, ensure_ascii=False, separators=(",", ":")),
        "geometry": {"wkb": GEOMETRY, "srid": 4326},
    }


@pytest.mark.parametrize("kind", values())
@pytest.mark.parametrize("is_ascii", [False, True])
def test_placeholder_in_json_is_known_in_each_type(kind: str, is_ascii: bool) -> None:
    value, placeholders = values()[kind], Placeholders()
    assert placeholders.matches(value)
    text = json.dumps({"id": 1, "x": value}, separators=(",", ":"), ensure_ascii=is_ascii)
    assert placeholders.may_be_in(pa.array([text, None, "{}"])).tolist() == [True, False, False]


def test_placeholder_of_uuids_is_the_one_that_java_makes() -> None:
    assert Placeholders().matches(["b68a35a7-17ad-35b3-af2a-ae46edb4545a"])


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_other_json_is_no_placeholder(value: Any) -> None:
    assert not Placeholders().matches(value)


@pytest.mark.parametrize(
    "value",
    [f"{PLACEHOLDER}!", [PLACEHOLDER, "a"], {PLACEHOLDER: "a"}, {"a": PLACEHOLDER},
     [*PLACEHOLDER.encode(), 1], [*PLACEHOLDER.encode()][:-1], {"wkb": "AQEA", "srid": 4326}],
)  # fmt: skip
def test_json_with_more_than_a_placeholder_is_a_value(value: Any) -> None:
    assert not Placeholders().matches(value)


COLUMNS: dict[str, tuple[pa.DataType, Any]] = {
    "text": (pa.string(), lambda data: data.decode()),
    "bytea": (pa.binary(), lambda data: data),
    "bytea as base64": (pa.string(), lambda data: b64encode(data).decode()),
    "bytea as hex": (pa.string(), lambda data: data.hex()),
    "text[]": (pa.list_(pa.string()), lambda data: [data.decode()]),
    "bytea[]": (pa.list_(pa.binary()), lambda data: [data]),
    "int4[]": (pa.list_(pa.int32()), list),
    "int8[]": (pa.list_(pa.int64()), list),
    "date[]": (pa.list_(pa.date32()), lambda data: [date(1970, 1, 1) + timedelta(days=n) for n in data]),
    "hstore": (pa.map_(pa.string(), pa.string()), lambda data: [(data.decode(), data.decode())]),
    "hstore as json": (pa.string(), lambda data: f'{{"{data.decode()}":"{data.decode()}"}}'),
    "geometry": (pa.struct({"wkb": pa.binary()}), lambda _: {"wkb": b64decode(GEOMETRY)}),
}  # fmt: skip


@pytest.mark.parametrize("of", COLUMNS)
def test_placeholder_in_columns_is_known_in_each_type(of: str) -> None:
    kind, value_of = COLUMNS[of]
    column = pa.array([None, value_of(PLACEHOLDER.encode()), value_of(b"other")], kind)
    assert may_be_unavailable(kind)
    found = Placeholders().in_column(column).tolist()
    # A point is the same whatever the text is.
    assert found == [False, True, of == "geometry"]


@given(st.data())
def test_other_values_of_columns_are_no_placeholder(data: st.DataObject) -> None:
    made = {
        "text": st.text(), "bytea": st.binary(), "text[]": st.lists(st.none() | st.text()),
        "bytea[]": st.lists(st.binary()), "int4[]": st.lists(st.integers(-(2**31), 2**31 - 1)),
    }  # fmt: skip
    of = data.draw(st.sampled_from([*made]))
    column = pa.array(data.draw(st.lists(st.none() | made[of])), COLUMNS[of][0])
    assert not Placeholders().in_column(column).any()
