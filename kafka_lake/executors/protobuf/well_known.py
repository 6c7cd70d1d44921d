"""Messages that a table has a type for: timestamps, durations, JSON and decimals."""

import json
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]

from kafka_lake.executors.protobuf.model import (
    Doubts,
    Files,
    Values,
    Wire,
    WireField,
    exact_decimal,
    refuse_outside,
    where,
)
from kafka_lake.executors.protobuf.one_by_one import each_as
from kafka_lake.executors.protobuf.scalars import decimals

WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
NANOS = "__nanos"
"""Beside a column ``at`` of timestamps, ``at__nanos`` holds what a microsecond is too coarse for."""
_MICROS = pa.timestamp("us", tz="UTC")
SECONDS = pa.decimal128(21, 9)
_TIMES = (-62_135_596_800, 253_402_300_799)
_LONGEST_DURATION = 315_576_000_000
_SECOND_IN_NANOS = 1_000_000_000
_EXACT_IN_DOUBLE = 2**53
_NANOS_IN_64_BITS = 9_000_000_000
"""Seconds whose nanoseconds 64 bits hold."""
_INT64 = Wire(FieldDescriptor.TYPE_INT64, lambda values: ([values], None))
_INT32 = Wire(FieldDescriptor.TYPE_INT32, lambda values: ([values], None))
_SECONDS_AND_NANOS = (WireField(1, _INT64), WireField(2, _INT32))
_DECIMAL_DIGITS = 38
_DECIMAL_BYTES = 1024


def timestamps(path: str) -> Values:
    """Return how timestamps become microseconds, and nanoseconds beyond them in a column beside."""

    def arrays(values: list[Any]) -> list[pa.Array]:
        seconds = pa.array([None if value is None else value.seconds for value in values], pa.int64())
        nanos = pa.array([None if value is None else value.nanos for value in values], pa.int32())
        refuse_outside(f"Field {path} is no time of the years 1 to 9999, its seconds are", seconds, *_TIMES)
        refuse_outside(f"Field {path} is no time, its nanoseconds are", nanos, 0, _SECOND_IN_NANOS - 1)
        micros = pc.divide(nanos, 1000)
        whole = pc.add(pc.multiply(seconds, 1_000_000), micros).cast(_MICROS)
        return [whole, pc.subtract(nanos, pc.multiply(micros, 1000)).cast(pa.int32())]

    def wired(values: pa.StructArray) -> tuple[list[pa.Array], Doubts]:
        seconds, nanos = (values.field(number).to_numpy() for number in range(2))
        strange = (seconds < _TIMES[0]) | (seconds > _TIMES[1]) | (nanos < 0) | (nanos >= _SECOND_IN_NANOS)
        whole = np.where(strange, 0, seconds) * 1_000_000 + nanos // 1000
        nulls = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        return [
            pa.array(whole, pa.int64(), mask=nulls).cast(_MICROS),
            pa.array(nanos % 1000, pa.int32(), mask=nulls),
        ], where(strange)

    wire = Wire(FieldDescriptor.TYPE_MESSAGE, wired, _SECONDS_AND_NANOS)
    return Values({"": _MICROS, NANOS: pa.int32()}, arrays, wire)


def durations(path: str) -> Values:
    """Return how durations become seconds."""

    def arrays(values: list[Any]) -> list[pa.Array]:
        return [pa.array([None if value is None else seconds_of(value, path) for value in values], SECONDS)]

    def wired(values: pa.StructArray) -> tuple[list[pa.Array], Doubts]:
        seconds, nanos = (values.field(number).to_numpy() for number in range(2))
        # Those of more than 285 years are rare.
        strange = (seconds < -_NANOS_IN_64_BITS) | (seconds > _NANOS_IN_64_BITS)
        strange |= (nanos <= -_SECOND_IN_NANOS) | (nanos >= _SECOND_IN_NANOS)
        strange |= ((seconds < 0) & (nanos > 0)) | ((seconds > 0) & (nanos < 0))
        low = np.where(strange, 0, seconds) * _SECOND_IN_NANOS + np.where(strange, 0, nanos)
        return [decimals(low, low >> 63, values, SECONDS)], where(strange)

    return Values({"": SECONDS}, arrays, Wire(FieldDescriptor.TYPE_MESSAGE, wired, _SECONDS_AND_NANOS))


def time_text(value: Any, path: str) -> str:
    """Return a timestamp as text of ISO 8601, with all its digits.

    Raises:
        ValueError: If it is none of the years 1 to 9999.
    """
    if not (_TIMES[0] <= value.seconds <= _TIMES[1] and 0 <= value.nanos < _SECOND_IN_NANOS):
        raise ValueError(f"Field {path} is no time of the years 1 to 9999: {value.seconds} seconds")
    whole = (datetime(1970, 1, 1) + timedelta(seconds=value.seconds)).isoformat()
    return f"{whole}{f'.{value.nanos:09}'.rstrip('0').rstrip('.')}Z"


def seconds_of(value: Any, path: str) -> Decimal:
    """Return a duration in seconds, exactly.

    Raises:
        ValueError: If it is none.
    """
    seconds, nanos = value.seconds, value.nanos
    if abs(seconds) > _LONGEST_DURATION or abs(nanos) >= _SECOND_IN_NANOS or seconds * nanos < 0:
        raise ValueError(f"Field {path} is no duration: {seconds} seconds and {nanos} nanoseconds")
    return exact_decimal(seconds * _SECOND_IN_NANOS + nanos, 9)


def json_text(value: Any, path: str) -> str:
    """Return a Struct, Value or ListValue as JSON, keys sorted.

    Raises:
        ValueError: If a number in it is not finite.
    """
    try:
        return json.dumps(json_value(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise ValueError(f"Field {path} holds a number that isn't finite, which JSON can't write") from None


def json_value(value: Any) -> Any:
    """Return a Struct, Value or ListValue as Python's JSON has it."""
    name = value.DESCRIPTOR.name
    if name == "Struct":
        return {key: json_value(value.fields[key]) for key in sorted(value.fields)}
    if name == "ListValue":
        return [json_value(each) for each in value.values]
    kind = value.WhichOneof("kind")
    if kind in ("struct_value", "list_value"):
        return json_value(getattr(value, kind))
    if kind == "number_value":
        number = value.number_value
        whole = number.is_integer() and abs(number) < _EXACT_IN_DOUBLE and str(number) != "-0.0"
        return int(number) if whole else number
    return None if kind in (None, "null_value") else getattr(value, kind)


def confluent_decimal(files: Files, field: FieldDescriptor, path: str) -> Values:
    """Return Confluent's decimal as the type that its field declares, as text if it declares none."""
    declared = _declared_decimal(files, field)
    if declared is None:
        return each_as(field.message_type, pa.string(), lambda value: decimal_text(value, path))
    precision, scale = declared

    def convert(value: Any) -> Decimal:
        number, rest, shift = _unscaled(value, path), 0, scale - value.scale
        # A power is never longer than what decides, whatever scale the record claims.
        if shift > 0:
            number *= 10 ** min(shift, _DECIMAL_DIGITS)
        elif shift < 0:
            number, rest = divmod(number, 10 ** min(-shift, 3 * _DECIMAL_BYTES))
        if rest or abs(number) >= 10**precision:
            raise ValueError(f"Field {path} doesn't fit decimal({precision},{scale})")
        return exact_decimal(number, scale)

    return each_as(field.message_type, pa.decimal128(precision, scale), convert)


def decimal_text(value: Any, path: str) -> str:
    """Return Confluent's decimal as text, with all its digits.

    Raises:
        ValueError: If it is too long.
    """
    return str(exact_decimal(_unscaled(value, path), value.scale))


def _unscaled(value: Any, path: str) -> int:
    if len(value.value) > _DECIMAL_BYTES:
        raise ValueError(f"Field {path} is a decimal of {len(value.value)} bytes")
    return int.from_bytes(value.value, "big", signed=True)


def _declared_decimal(files: Files, field: FieldDescriptor) -> tuple[int, int] | None:
    try:
        options = message_factory.GetMessageClass(files.pool.FindMessageTypeByName("google.protobuf.FieldOptions"))
        meta = files.pool.FindExtensionByName("confluent.field_meta")
    except KeyError:
        return None
    params = options.FromString(field.GetOptions().SerializeToString()).Extensions[meta].params
    precision, scale = (params.get(name, "") for name in ("precision", "scale"))
    if not (precision.isdecimal() and scale.isdecimal()):
        return None
    possible = int(scale) <= int(precision) and 0 < int(precision) <= _DECIMAL_DIGITS
    return (int(precision), int(scale)) if possible else None
