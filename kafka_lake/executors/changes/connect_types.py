"""Values that Kafka Connect writes as numbers or base64, while its schema tells what they are: as JSON has them.

Decimals become numbers, days and times text by ISO 8601. What can't be told stays as it stands.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types
"""

import json
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

Convert = Callable[[Any], Any]
"""Makes a value of another, both as Python's JSON has them; raises ValueError or a relative if it can't."""

_EPOCH = datetime(1970, 1, 1)
_SECOND, _DAY = 10**9, 86_400 * 10**9
_SCHEMAS = 64
_DIGITS = {1_000_000: 3, 1_000: 6, 1: 9}


class Number(Decimal):
    """A decimal that JSON shall have digit by digit."""


def converted(row: Mapping[str, str], converts: Mapping[str, Convert]) -> dict[str, str]:
    """Return the members of a row, those that the schema tells of as the JSON that they mean.

    Args:
        row: Its members as JSON text.
    """
    if not converts:
        return dict(row)
    return {name: _converted(text, converts[name]) if name in converts else text for name, text in row.items()}


class ConnectTypes:
    """What to do with the fields that schemas tell of; each schema is parsed once."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, Any]] = {}

    def of_struct(self, schema: str) -> Mapping[str, Convert]:
        """Return what to do with the fields of a struct; nothing for those that are what they look like.

        Args:
            schema: JSON text, as Connect's JSON converter writes it.
        """
        return self._parsed(f"struct {schema}", _of_fields, schema)

    def of_envelope(self, schema: str) -> Mapping[str, Mapping[str, Convert]]:
        """Return for each member of an envelope that is a struct what to do with that struct's fields.

        Args:
            schema: JSON text, as Connect's JSON converter writes it.
        """
        return self._parsed(
            f"envelope {schema}",
            lambda fields: {f["field"]: _of_fields(f.get("fields") or ()) for f in fields if f["type"] == "struct"},
            schema,
        )

    def _parsed(self, name: str, parse: Callable[[Any], Mapping[str, Any]], schema: str) -> Mapping[str, Any]:
        if name not in self._known:
            if len(self._known) == _SCHEMAS:
                self._known.clear()
            try:
                self._known[name] = parse(json.loads(schema).get("fields") or ())
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                self._known[name] = {}
        return self._known[name]


def _of_fields(fields: Sequence[Mapping[str, Any]]) -> dict[str, Convert]:
    return {each["field"]: convert for each in fields if (convert := _of(each)) is not None}


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
