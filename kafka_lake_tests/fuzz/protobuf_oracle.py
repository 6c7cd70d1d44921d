"""What a Protobuf message is as a row, by Google's parser alone, message by message and field by field."""

import json
import math
import struct
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

from google.protobuf import empty_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from kafka_lake.formats.protobuf.task.schema import Schema
from kafka_lake.formats.protobuf.task.well_known import WRAPPERS

JSON = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")


class NoRowError(Exception):
    """A message is no row."""


class Oracle:
    """Reads messages of one type."""

    def __init__(self, files: bytes, name: str) -> None:
        self._schema = Schema(files)
        self._make = GetMessageClass(self._schema.pool.FindMessageTypeByName(name))

    def row(self, payload: bytes) -> dict[str, Any] | None:
        """Return the row that bytes are; None if they are none."""
        try:
            message = self._make.FromString(payload)
            if not empty_pb2.Empty.IsInitialized(message):
                return None
            return self._struct(message)
        except (DecodeError, NoRowError, UnicodeDecodeError):
            return None

    def _struct(self, message: Any) -> dict[str, Any]:
        if not message.DESCRIPTOR.fields:
            return {"_set": True}
        row: dict[str, Any] = {}
        for field in message.DESCRIPTOR.fields:
            row |= self._columns(message, field)
        return row

    def _columns(self, message: Any, field: FieldDescriptor) -> dict[str, Any]:
        held, name = getattr(message, field.name), field.name
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            value = entry.fields_by_name["value"]
            made = {key: self._values(value, member) for key, member in held.items()}
            empty = self._suffixes(value)
            return {name + suffix: [(key, member[suffix]) for key, member in made.items()] for suffix in empty}
        if field.is_repeated:
            elements = [self._values(field, element) for element in held]
            return {name + suffix: [element[suffix] for element in elements] for suffix in self._suffixes(field)}
        if field.has_presence and not empty_pb2.Empty.HasField(message, name):
            return {name + suffix: None for suffix in self._suffixes(field)}
        return {name + suffix: value for suffix, value in self._values(field, held).items()}

    @staticmethod
    def _suffixes(field: FieldDescriptor) -> list[str]:
        times = field.message_type is not None and field.message_type.full_name == "google.protobuf.Timestamp"
        return ["", "__nanos"] if times else [""]

    def _values(self, field: FieldDescriptor, value: Any) -> dict[str, Any]:
        kind = field.message_type.full_name if field.message_type is not None else ""
        if kind == "google.protobuf.Timestamp":
            if not (-62_135_596_800 <= value.seconds <= 253_402_300_799 and 0 <= value.nanos < 10**9):
                raise NoRowError
            return {"": value.seconds * 10**6 + value.nanos // 1000, "__nanos": value.nanos % 1000}
        if kind == "google.protobuf.Duration":
            signs = value.seconds * value.nanos
            if abs(value.nanos) >= 10**9 or signs < 0 or abs(value.seconds) > 315_576_000_000:
                raise NoRowError
            return {"": (Decimal(value.seconds) * 10**9 + value.nanos).scaleb(-9)}
        if kind in JSON:
            return {"": json.dumps(_json(value), ensure_ascii=False, separators=(",", ":"))}
        if kind in WRAPPERS:
            return {"": value.value}
        if kind == "confluent.type.Decimal":
            number = Decimal(f"{int.from_bytes(value.value, 'big', signed=True)}E{-value.scale}")
            return {
                "": number_of_9_and_2(number) if b"precision" in field.GetOptions().SerializeToString() else str(number)
            }
        if kind:
            return {"": self._struct(value)}
        if names := self._schema.enums.get(field.full_name):
            return {"": names.get(value, str(value))}
        if field.type == FieldDescriptor.TYPE_STRING and isinstance(value, bytes):
            raise NoRowError
        return {"": value}


# Nothing is rounded to zero, whatever the exponent.
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)


def number_of_9_and_2(number: Decimal) -> Decimal:
    if number and (number.adjusted() > 6 or number.normalize(_EXACT).as_tuple().exponent < -2):
        raise NoRowError
    return number.quantize(Decimal("0.01")) if number else Decimal("0.00")


def _json(value: Any) -> Any:
    name = value.DESCRIPTOR.name
    if name == "Struct":
        return {key: _json(value.fields[key]) for key in sorted(value.fields)}
    if name == "ListValue":
        return [_json(element) for element in value.values]
    kind = value.WhichOneof("kind")
    if kind in (None, "null_value"):
        return None
    held = getattr(value, kind)
    if kind in ("struct_value", "list_value"):
        return _json(held)
    if kind == "number_value":
        if not math.isfinite(held):
            raise NoRowError
        return int(held) if held == int(held) and abs(held) < 2**53 and str(held) != "-0.0" else held
    return held


def comparable(value: Any) -> Any:
    """Return a value in which floats are their bits, -0.0 and NaN among them, and maps are in order."""
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("d", value)
    if isinstance(value, dict):
        return {name: comparable(member) for name, member in value.items()}
    if isinstance(value, list):
        entries = bool(value) and isinstance(value[0], tuple)
        return [comparable(item) for item in (sorted(value, key=lambda item: item[0]) if entries else value)]
    return tuple(map(comparable, value)) if isinstance(value, tuple) else value
