"""Messages with a column type of their own: timestamps, durations, wrappers, JSON and decimals."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import empty_pb2, json_format, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from kafka_lake.formats.protobuf.task.values import Field, Rejected, Values, decimals, marked, or_default

WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_MICROS, _SECONDS = pa.timestamp("us", tz="UTC"), pa.decimal128(21, 9)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
_LONGEST_DURATION = 315_576_000_000
_SECOND = 1_000_000_000
_SECONDS_AND_NANOS = tuple(
    Field(number, Values({}, wire, lambda values: ([values], {})))
    for number, wire in ((1, FieldDescriptor.TYPE_INT64), (2, FieldDescriptor.TYPE_INT32))
)
_EXACT_IN_DOUBLE = 2**53
_DECIMAL_DIGITS, _DECIMAL_BYTES = 38, 1024

# By the class, since a message may have a field of that name.
_initialized = empty_pb2.Empty.IsInitialized


def well_known(pool: Any, field: FieldDescriptor, path: str) -> Values | None:
    """Return the conversion of a field's well-known messages; None for other messages."""
    match field.message_type.full_name:
        case "google.protobuf.Timestamp":
            return _timestamps(path)
        case "google.protobuf.Duration":
            return _durations(path)
        case "google.protobuf.Struct" | "google.protobuf.Value" | "google.protobuf.ListValue":
            return _each_as(field.message_type, pa.string(), lambda value: _json_text(value, path))
        case "confluent.type.Decimal":
            return _confluent_decimal(pool, field, path)
    return None


def json_of(descriptor: Descriptor, path: str) -> Values:
    """Return the conversion of recursive messages, which no column can hold, to Protobuf's JSON."""

    def convert(value: Any) -> str:
        try:
            text: str = json_format.MessageToJson(value, preserving_proto_field_name=True, indent=None)
        except json_format.Error as reason:
            raise ValueError(f"Field {path}: {reason}") from None
        return text

    return _each_as(descriptor, pa.string(), convert)


def presence() -> Values:
    """Return the conversion of messages without fields to structs; the schema may get fields later."""
    kind = pa.struct([("_set", pa.bool_())])

    def arrays(payloads: pa.Array) -> tuple[list[pa.Array], Rejected]:
        # Its bytes are unknown fields, which the protobuf package removes.
        structs = pa.array([{"_set": True}, None], kind).take(pc.if_else(payloads.is_valid(), 0, 1))
        return [structs], marked(pc.greater(pc.fill_null(pc.binary_length(payloads), 0), 0), "It has unknown fields")

    return Values({"": kind}, FieldDescriptor.TYPE_BYTES, arrays)


def wrapped(inner: Values) -> Values:
    """Return the conversion of wrappers to their values; null if unset."""
    held = or_default(inner)

    def arrays(values: pa.StructArray) -> tuple[list[pa.Array], Rejected]:
        (content,), rejected = held.arrays(values.field(0))
        return [pc.if_else(values.is_valid(), content, pa.scalar(None, content.type))], rejected

    return Values(inner.types, FieldDescriptor.TYPE_MESSAGE, arrays, (Field(1, held, optional=True),))


def _timestamps(path: str) -> Values:
    """Return the conversion of timestamps to microseconds, with the remaining nanoseconds in another column."""

    def arrays(values: pa.StructArray) -> tuple[list[pa.Array], Rejected]:
        seconds, nanos = (values.field(number).to_numpy() for number in range(2))
        strange = (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND) | (nanos < 0) | (nanos >= _SECOND)
        micros = np.where(strange, 0, seconds) * 1_000_000 + nanos // 1000
        nulls = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        whole = pa.array(micros, pa.int64(), mask=nulls).cast(_MICROS)
        rest = pa.array(nanos % 1000, pa.int32(), mask=nulls)
        return [whole, rest], marked(strange, f"Field {path} is not a time of the years 1 to 9999")

    return Values({"": _MICROS, "__nanos": pa.int32()}, FieldDescriptor.TYPE_MESSAGE, arrays, _SECONDS_AND_NANOS)


def _durations(path: str) -> Values:
    """Return the conversion of durations to seconds."""

    def arrays(values: pa.StructArray) -> tuple[list[pa.Array], Rejected]:
        seconds, nanos = (values.field(number).to_numpy().astype(np.int64) for number in range(2))
        strange = (np.abs(seconds) > _LONGEST_DURATION) | (seconds == np.iinfo(np.int64).min)
        strange |= (np.abs(nanos) >= _SECOND) | (np.sign(seconds) * np.sign(nanos) < 0)
        seconds, nanos = np.where(strange, 0, seconds), np.where(strange, 0, nanos)
        rejected = marked(strange, f"Field {path} is not a duration")
        if (np.abs(seconds) < np.iinfo(np.int64).max // _SECOND - 1).all():
            low = seconds * _SECOND + nanos
            return [decimals(low, low >> 63, values, _SECONDS)], rejected
        # Beyond 292 years.
        exact = [_decimal(int(s) * _SECOND + int(n), 9) for s, n in zip(seconds, nanos, strict=True)]
        return [pc.if_else(values.is_valid(), pa.array(exact, _SECONDS), pa.scalar(None, _SECONDS))], rejected

    return Values({"": _SECONDS}, FieldDescriptor.TYPE_MESSAGE, arrays, _SECONDS_AND_NANOS)


def _each_as(descriptor: Descriptor, kind: pa.DataType, convert: Callable[[Any], Any]) -> Values:
    """Return the conversion of messages one by one; ptars leaves them as bytes."""
    parse = message_factory.GetMessageClass(descriptor).FromString

    def arrays(payloads: pa.Array) -> tuple[list[pa.Array], Rejected]:
        values: list[Any] = []
        rejected: Rejected = {}
        for number, payload in enumerate(payloads.to_pylist()):
            value = None
            if payload is not None:
                try:
                    message = parse(payload)
                    if not _initialized(message):
                        raise ValueError("A required field is missing")
                    value = convert(message)
                except (DecodeError, ValueError) as reason:
                    rejected[number] = str(reason)
            values.append(value)
        return [pa.array(values, kind)], rejected

    return Values({"": kind}, FieldDescriptor.TYPE_BYTES, arrays)


def _json_text(value: Any, path: str) -> str:
    """Return a Struct, Value or ListValue as JSON, keys sorted."""
    try:
        return json.dumps(_json_value(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise ValueError(f"Field {path} holds a number that isn't finite, which JSON can't write") from None


def _json_value(value: Any) -> Any:
    name = value.DESCRIPTOR.name
    if name == "Struct":
        return {key: _json_value(value.fields[key]) for key in sorted(value.fields)}
    if name == "ListValue":
        return [_json_value(element) for element in value.values]
    kind = value.WhichOneof("kind")
    if kind in ("struct_value", "list_value"):
        return _json_value(getattr(value, kind))
    if kind == "number_value":
        number = value.number_value
        whole = number.is_integer() and abs(number) < _EXACT_IN_DOUBLE and str(number) != "-0.0"
        return int(number) if whole else number
    return None if kind in (None, "null_value") else getattr(value, kind)


def _confluent_decimal(pool: Any, field: FieldDescriptor, path: str) -> Values:
    """Return the conversion of Confluent's decimal to the type that its field declares; without one, to text."""
    declared = _declared_decimal(pool, field)

    def unscaled(value: Any) -> int:
        if len(value.value) > _DECIMAL_BYTES:
            raise ValueError(f"Field {path} is a decimal of {len(value.value)} bytes")
        return int.from_bytes(value.value, "big", signed=True)

    if declared is None:
        return _each_as(field.message_type, pa.string(), lambda value: str(_decimal(unscaled(value), value.scale)))
    precision, scale = declared

    def convert(value: Any) -> Decimal:
        number, rest, shift = unscaled(value), 0, scale - value.scale
        # The power is limited, whatever scale the record has: more digits change nothing.
        if shift > 0:
            number *= 10 ** min(shift, _DECIMAL_DIGITS)
        elif shift < 0:
            number, rest = divmod(number, 10 ** min(-shift, 3 * _DECIMAL_BYTES))
        if rest or abs(number) >= 10**precision:
            raise ValueError(f"Field {path} doesn't fit decimal({precision},{scale})")
        return _decimal(number, scale)

    return _each_as(field.message_type, pa.decimal128(precision, scale), convert)


def _declared_decimal(pool: Any, field: FieldDescriptor) -> tuple[int, int] | None:
    try:
        options = message_factory.GetMessageClass(pool.FindMessageTypeByName("google.protobuf.FieldOptions"))
        meta = pool.FindExtensionByName("confluent.field_meta")
    except KeyError:
        return None
    params = options.FromString(field.GetOptions().SerializeToString()).Extensions[meta].params
    precision, scale = (params.get(name, "") for name in ("precision", "scale"))
    if not (precision.isdecimal() and scale.isdecimal()):
        return None
    possible = int(scale) <= int(precision) and 0 < int(precision) <= _DECIMAL_DIGITS
    return (int(precision), int(scale)) if possible else None


def _decimal(number: int, scale: int) -> Decimal:
    # Arithmetic would round to the digits of the context.
    return Decimal(f"{number}E{-scale}")
