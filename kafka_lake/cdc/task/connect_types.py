"""Converts values that Kafka Connect writes as numbers or base64, by the schema in its JSON.

Decimals become numbers; dates and times become ISO 8601 text. Other values stay.
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
from kafka_lake.cdc.task.json_members import is_few, map_distinct, replaced
from kafka_lake.formats.json.task.json_texts import JsonTexts
from kafka_lake.formats.json.task.text import dumps, parse_object

Convert = Callable[[Any], Any]
"""Converts a JSON value; raises ValueError, TypeError or the like if it can't."""

_EPOCH = datetime(1970, 1, 1)
_SECOND, _DAY = 10**9, 86_400 * 10**9
_DIGITS = {1_000_000: 3, 1_000: 6, 1: 9}


class Number(Decimal):
    """A decimal that is written with all its digits."""


@dataclass(frozen=True)
class Struct:
    """A struct's fields, and the conversions of those that have one."""

    names: tuple[str, ...] = ()
    converts: Mapping[str, Convert] = field(default_factory=dict)


def struct_of(schema: Any) -> Struct:
    """Return the struct of a schema that Connect's JSON converter wrote; an empty one if it isn't valid."""
    try:
        fields = {field["field"]: _of(field) for field in schema.get("fields") or ()}
        return Struct(tuple(fields), {name: convert for name, convert in fields.items() if convert is not None})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Struct()


def structs_in(schema: Any) -> Mapping[str, Struct]:
    """Return the fields of a schema that are structs, by name."""
    try:
        fields = schema.get("fields") or ()
        return {field["field"]: struct_of(field) for field in fields if field["type"] == "struct"}
    except (TypeError, KeyError, AttributeError):
        return {}


class Converter:
    """Converts rows, as JSON text, that Connect's JSON converter wrote."""

    def __init__(self, texts: JsonTexts) -> None:
        self._texts = texts

    def in_groups(
        self, texts: pa.Array, groups: Iterable[tuple[np.ndarray, Struct | None]], one_by_one: np.ndarray
    ) -> pa.Array:
        """Convert the rows of each group by the group's struct, see `rows`."""
        for places, struct in groups:
            if struct is not None and struct.converts:
                made = self.rows(texts.take(pa.array(places)), struct, one_by_one[places])
                texts = replaced(texts, places, made)
        return texts

    def rows(self, texts: pa.Array, struct: Struct, one_by_one: np.ndarray) -> pa.Array:
        """Convert rows by a struct; those of ``one_by_one`` in Python, since DuckDB would change their numbers."""
        if not struct.converts or texts.null_count == len(texts):
            return texts
        many = only(texts, ~one_by_one)
        fields = None if is_few(many, self._texts) else self._texts.fields(many, struct.names)
        if fields is None or not set(pc.unique(fields[1].flatten()).to_pylist()) <= set(struct.names):
            made = pa.nulls(len(texts), pa.string())
        else:
            made = pc.if_else(many.is_valid(), _objects(fields[0], struct), pa.scalar(None, pa.string()))
        rest = np.flatnonzero(mask_of(texts) & ~mask_of(made))
        if not len(rest):
            return made
        rows = pa.array([_row(texts[int(number)].as_py(), struct) for number in rest], pa.string())
        return replaced(made, rest, rows)


def _objects(fields: Mapping[str, pa.Array], struct: Struct) -> pa.Array:
    """Return JSON objects of fields' texts; nulls are left out."""
    members = []
    for name in struct.names:
        values = fields[name]
        if (convert := struct.converts.get(name)) is not None:
            values = map_distinct(values, partial(_converted, convert=convert))
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
        # The decoder of rows checks whether it fits its column.
        return text


def _written(value: Any) -> str:
    if isinstance(value, Number):
        return f"{value:f}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return json.dumps(value)


def _decimal(value: Any, scale: int) -> Number:
    # Numbers are written as such with the converter's decimal.format=NUMERIC.
    if not isinstance(value, str):
        raise TypeError(value)
    unscaled = int.from_bytes(b64decode(value, validate=True), "big", signed=True)
    return Number((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


def _of_variable_scale(value: Any) -> Number:
    return _decimal(value["value"], int(value["scale"]))


def _day(value: Any) -> str:
    return (date(1970, 1, 1) + timedelta(days=_integer(value))).isoformat()


def _timestamp(nanos: int) -> Convert:
    """Return the conversion of a count since 1970 in UTC; a unit has so many nanoseconds."""

    def convert(value: Any) -> str:
        seconds, rest = divmod(_integer(value) * nanos, _SECOND)
        return (_EPOCH + timedelta(seconds=seconds)).isoformat() + _fraction(rest, nanos)

    return convert


def _time(nanos: int) -> Convert:
    """Return the conversion of a count since midnight; a unit has so many nanoseconds."""

    def convert(value: Any) -> str:
        if not 0 <= _integer(value) * nanos < _DAY:
            raise ValueError(value)
        seconds, rest = divmod(value * nanos, _SECOND)
        return (_EPOCH + timedelta(seconds=seconds)).time().isoformat() + _fraction(rest, nanos)

    return convert


def _fraction(rest: int, nanos: int) -> str:
    return f".{rest // nanos:0{_DIGITS[nanos]}d}" if rest else ""


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(value)
    return value


def _without_zone(value: Any) -> str:
    """Return a time without the Z that Debezium writes for types without a time zone, too."""
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
