"""Values that Debezium didn't send: how they look in each type, in JSON and in Avro; and what never looks so."""

import io
import json
from base64 import b64decode, b64encode
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.executors.changes.avro_spans import Types
from kafka_lake.executors.changes.unavailable import DEFAULT_PLACEHOLDER, Placeholders

SETTINGS = [DEFAULT_PLACEHOLDER, "n/a", "nicht da ß", "hex:5f5f6e6f7468696e67"]
GEOMETRY = "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ=="


def raw(setting: str) -> bytes:
    return bytes.fromhex(setting[4:]) if setting.startswith("hex:") else setting.encode()


def values(setting: str) -> dict[str, Any]:
    """Return the values of a source's types that stand for one that wasn't sent."""
    data = raw(setting)
    text, numbers = data.decode(), [byte - 256 if byte > 127 else byte for byte in data]
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


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", values(DEFAULT_PLACEHOLDER))
@pytest.mark.parametrize("written", [{}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_placeholder_in_json_is_known_in_each_type(kind: str, setting: str, written: dict[str, Any]) -> None:
    text = json.dumps(values(setting)[kind], **written)
    placeholders = Placeholders(setting)
    assert placeholders.is_json(text)
    assert placeholders.may_be_in(f'{{"id": 1, "x": {text}}}')


def test_placeholder_of_uuids_is_the_one_that_java_makes() -> None:
    assert Placeholders().is_json('["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]')


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_other_json_is_no_placeholder(value: Any) -> None:
    assert not Placeholders().is_json(json.dumps(value))


@pytest.mark.parametrize(
    "value",
    [f"{DEFAULT_PLACEHOLDER}!", [DEFAULT_PLACEHOLDER, "a"], {DEFAULT_PLACEHOLDER: "a"}, {"a": DEFAULT_PLACEHOLDER},
     [*DEFAULT_PLACEHOLDER.encode(), 1], [*DEFAULT_PLACEHOLDER.encode()][:-1], {"wkb": "AQEA", "srid": 4326}],
)  # fmt: skip
def test_json_with_more_than_a_placeholder_is_a_value(value: Any) -> None:
    assert not Placeholders().is_json(json.dumps(value))


def optional(kind: Any) -> list[Any]:
    return ["null", kind]


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "items": kind}


DATE = {"type": "int", "connect.name": "io.debezium.time.Date"}
WKB = {"type": "record", "name": "Geometry", "fields": [
    {"name": "wkb", "type": "bytes"}, {"name": "srid", "type": optional("int")},
]}  # fmt: skip
IN_AVRO: dict[str, tuple[Any, Any]] = {
    "text": ("string", lambda data: data.decode()),
    "bytea": ("bytes", lambda data: data),
    "bytea as base64": ("string", lambda data: b64encode(data).decode()),
    "bytea as hex": ("string", lambda data: data.hex()),
    "text[]": (array(optional("string")), lambda data: [data.decode()]),
    "bytea[]": (array(optional("bytes")), lambda data: [data]),
    "int4[]": (array(optional("int")), lambda data: [byte - 256 if byte > 127 else byte for byte in data]),
    "int8[]": (array("long"), lambda data: [byte - 256 if byte > 127 else byte for byte in data]),
    "date[]": (array(optional(DATE)), lambda data: [byte - 256 if byte > 127 else byte for byte in data]),
    "hstore": ({"type": "map", "values": optional("string")}, lambda data: {data.decode(): data.decode()}),
    "hstore as json": ("string", lambda data: f'{{"{data.decode()}":"{data.decode()}"}}'),
    "geometry": (WKB, lambda _: {"wkb": b64decode(GEOMETRY), "srid": 4326}),
}  # fmt: skip


def written(kind: Any, value: Any) -> bytes:
    data = io.BytesIO()
    schemaless_writer(data, parse_schema(kind), value)
    return data.getvalue()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("of", IN_AVRO)
@pytest.mark.parametrize("is_optional", [False, True])
def test_placeholder_in_avro_is_known_in_each_type(of: str, setting: str, is_optional: bool) -> None:
    kind, value_of = IN_AVRO[of]
    kind = optional(kind) if is_optional else kind
    begins = Placeholders(setting).in_avro(Types(kind), kind)
    assert written(kind, value_of(raw(setting))).startswith(begins)


@given(st.data())
def test_other_avro_is_no_placeholder(data: st.DataObject) -> None:
    made = {
        "text": st.text(), "bytea": st.binary(), "text[]": st.lists(st.none() | st.text()),
        "bytea[]": st.lists(st.binary()), "int4[]": st.lists(st.integers(-(2**31), 2**31 - 1)),
        "hstore": st.dictionaries(st.text(), st.text()),
    }  # fmt: skip
    of = data.draw(st.sampled_from([*made]))
    kind = optional(IN_AVRO[of][0])
    value = written(kind, data.draw(st.none() | made[of]))
    assert not value.startswith(Placeholders().in_avro(Types(kind), kind))


@pytest.mark.parametrize("setting", ["hex:zz", "hex:ff"])
def test_setting_that_is_no_text_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=r"hex|utf-8"):
        Placeholders(setting)
