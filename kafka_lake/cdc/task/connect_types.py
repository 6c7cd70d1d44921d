"""Values that Kafka Connect writes as numbers or base64, while its schema tells what they are: as JSON has them.

Decimals become numbers, days and times text by ISO 8601. What can't be told stays as it stands.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.cdc.task.change import joined, mask_of, only
from kafka_lake.cdc.task.json_members import each_distinct, is_few, replaced
from kafka_lake.formats.json.task.json_texts import JsonTexts
from kafka_lake.formats.json.task.text import dumps, parse_object

Convert = Callable[[Any], Any]
"""Makes a value of another, both as Python's JSON has them; raises ValueError or a relative if it can't."""

_EPOCH = datetime(1970, 1, 1)
_SECOND, _DAY = 10**9, 86_400 * 10**9
_DIGITS = {1_000_000: 3, 1_000: 6, 1: 9}


class Number(Decimal):
    """A decimal that JSON shall have digit by digit."""


@dataclass(frozen=True)
class Struct:
    """What a schema says of a struct.

    Args:
        names: Its fields.
        converts: What makes JSON of the values of some fields.
    """

    names: tuple[str, ...] = ()
    converts: Mapping[str, Convert] = field(default_factory=dict)


def struct_of(schema: Any) -> Struct:
    """Return what a struct's schema says, as Connect's JSON converter writes it; nothing if it isn't one."""
    try:
        fields = {each["field"]: _of(each) for each in schema.get("fields") or ()}
        return Struct(tuple(fields), {name: convert for name, convert in fields.items() if convert is not None})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Struct()


def structs_in(schema: Any) -> Mapping[str, Struct]:
    """Return the structs among the fields of a schema, by their names."""
    try:
        return {each["field"]: struct_of(each) for each in schema.get("fields") or () if each["type"] == "struct"}
    except (TypeError, KeyError, AttributeError):
        return {}


class Converter:
    """Makes rows, as JSON text, of rows whose values Connect's JSON converter has written."""

    def __init__(self, texts: JsonTexts) -> None:
        self._texts = texts

    def in_groups(
        self, texts: pa.Array, groups: Iterable[tuple[np.ndarray, Struct | None]], singly: np.ndarray
    ) -> pa.Array:
        """Return rows as `rows` does, those of groups by the structs of the groups."""
        for places, struct in groups:
            if struct is not None and struct.converts:
                made = self.rows(texts.take(pa.array(places)), struct, singly[places])
                texts = replaced(texts, places, made)
        return texts

    def rows(self, texts: pa.Array, struct: Struct, singly: np.ndarray) -> pa.Array:
        """Return rows, each value that the schema tells of as the JSON that it means."""
        if not struct.converts or texts.null_count == len(texts):
            return texts
        many = only(texts, ~singly)
        found = None if is_few(many, self._texts) else self._texts.fields(many, struct.names)
        if found is None or not set(pc.unique(found[1].flatten()).to_pylist()) <= set(struct.names):
            made = pa.nulls(len(texts), pa.string())
        else:
            made = pc.if_else(many.is_valid(), _objects(found[0], struct), pa.scalar(None, pa.string()))
        rest = np.flatnonzero(mask_of(texts) & ~mask_of(made))
        if not len(rest):
            return made
        rows = pa.array([_row(texts[int(number)].as_py(), struct) for number in rest], pa.string())
        return replaced(made, rest, rows)


def _objects(fields: Mapping[str, pa.Array], struct: Struct) -> pa.Array:
    """Return JSON objects of their fields' texts; null is left out."""
    members = []
    for name in struct.names:
        values = fields[name]
        if (convert := struct.converts.get(name)) is not None:
            values = each_distinct(values, partial(_converted, convert=convert))
        members.append(pc.binary_join_element_wise(f",{json.dumps(name)}:", values, ""))
    return pc.binary_join_element_wise("{", joined(members), "}", "")


def _row(text: str, struct: Struct) -> str:
    members = {name: dumps(value) for name, value in parse_object(text.encode()).items()}
    for name, convert in struct.converts.items():
        if name in members:
            members[name] = _converted(members[name], convert)
    return f"{{{','.join(f'{json.dumps(name)}:{value}' for name, value in members.items())}}}"


def _of(schema: Mapping[str, Any]) -> Convert | None:
    if schema["type"] == "array":
        element = _of(schema["items"])
        return None if element is None else lambda values: [None if v is None else element(v) for v in values]
    name = schema.get("name")
    if name == "org.apache.kafka.connect.data.Decimal":
        scale = int(schema["parameters"]["scale"])
        return lambda value: _decimal(value, scale)
    return _BY_NAME.get(name) if isinstance(name, str) else None


def _converted(text: str, convert: Convert) -> str:
    if text == "null":
        return text
    try:
        return _written(convert(json.loads(text)))
    except (ValueError, TypeError, KeyError, OverflowError, ArithmeticError, RecursionError):
        # Whether it fits its column is asked as of any other value.
        return text


def _written(value: Any) -> str:
    if isinstance(value, Number):
        return f"{value:f}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return json.dumps(value)


def _decimal(value: Any, scale: int) -> Number:
    # One that the converter wrote as text or number (decimal.format) is a number as it stands.
    if not isinstance(value, str):
        raise TypeError(value)
    unscaled = int.from_bytes(b64decode(value, validate=True), "big", signed=True)
    return Number((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


def _of_variable_scale(value: Any) -> Number:
    return _decimal(value["value"], int(value["scale"]))


def _day(value: Any) -> str:
    return (date(1970, 1, 1) + timedelta(days=_whole(value))).isoformat()


def _timestamp(nanos: int) -> Convert:
    """Return what makes a time of a count since 1970 in UTC, in units of so many nanoseconds."""

    def convert(value: Any) -> str:
        seconds, rest = divmod(_whole(value) * nanos, _SECOND)
        return (_EPOCH + timedelta(seconds=seconds)).isoformat() + _fraction(rest, nanos)

    return convert


def _time(nanos: int) -> Convert:
    """Return what makes a time of day of a count since midnight, in units of so many nanoseconds."""

    def convert(value: Any) -> str:
        if not 0 <= _whole(value) * nanos < _DAY:
            raise ValueError(value)
        seconds, rest = divmod(value * nanos, _SECOND)
        return (_EPOCH + timedelta(seconds=seconds)).time().isoformat() + _fraction(rest, nanos)

    return convert


def _fraction(rest: int, nanos: int) -> str:
    return f".{rest // nanos:0{_DIGITS[nanos]}d}" if rest else ""


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(value)
    return value


def _without_zone(value: Any) -> str:
    """Return a time of a type that has no zone without the Z that Debezium writes all the same."""
    if not isinstance(value, str):
        raise TypeError(value)
    return value.removesuffix("Z")


_BY_NAME: Mapping[str, Convert] = {
    "io.debezium.data.VariableScaleDecimal": _of_variable_scale,
    "io.debezium.time.Date": _day,
    "org.apache.kafka.connect.data.Date": _day,
    "io.debezium.time.IsoDate": _without_zone,
    "io.debezium.time.Timestamp": _timestamp(1_000_000),
    "io.debezium.time.MicroTimestamp": _timestamp(1_000),
    "io.debezium.time.NanoTimestamp": _timestamp(1),
    "org.apache.kafka.connect.data.Timestamp": _timestamp(1_000_000),
    "io.debezium.time.IsoTimestamp": _without_zone,
    "io.debezium.time.Time": _time(1_000_000),
    "io.debezium.time.MicroTime": _time(1_000),
    "io.debezium.time.NanoTime": _time(1),
    "org.apache.kafka.connect.data.Time": _time(1_000_000),
    "io.debezium.time.IsoTime": _without_zone,
}
