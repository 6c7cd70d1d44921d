"""Messages within messages of their own type, which no column has: JSON text, by the names and values of columns."""

import base64
from operator import itemgetter
from typing import Any

from google.protobuf import empty_pb2  # type: ignore[import-untyped]
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]

from kafka_lake.executors.as_json import number_of, text_of
from kafka_lake.executors.protobuf.model import Files
from kafka_lake.executors.protobuf.well_known import WRAPPERS, decimal_text, json_value, seconds_of, time_text

# By the class, since a message may have a field of that name.
_has = empty_pb2.Empty.HasField


def message_text(files: Files, message: Any, path: str) -> str:
    """Return a message as JSON: fields that aren't set are left out, others have their default value.

    Args:
        files: The messages of the schema.
        path: Where it is in the record.

    Raises:
        ValueError: If a value in it is none of its type.
    """
    return text_of(_message(files, message, path))


def _message(files: Files, message: Any, path: str) -> Any:
    match message.DESCRIPTOR.full_name:
        case "google.protobuf.Timestamp":
            return time_text(message, path)
        case "google.protobuf.Duration":
            return str(seconds_of(message, path))
        case "google.protobuf.Struct" | "google.protobuf.Value" | "google.protobuf.ListValue":
            return json_value(message)
        case "google.protobuf.FieldMask":
            return list(message.paths)
        case "confluent.type.Decimal":
            return decimal_text(message, path)
        case name if name in WRAPPERS:
            return _scalar(files, message.DESCRIPTOR.fields_by_name["value"], message.value, path)
    found = {}
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated or not field.has_presence or _has(message, field.name):
            found[field.name] = _field(files, field, getattr(message, field.name), f"{path}.{field.name}")
    return found


def _field(files: Files, field: FieldDescriptor, value: Any, path: str) -> Any:
    entry = field.message_type
    if field.is_repeated and entry is not None and entry.GetOptions().map_entry:
        kind = entry.fields_by_name["value"]
        return {_key(key): _single(files, kind, held, path) for key, held in sorted(value.items(), key=itemgetter(0))}
    if field.is_repeated:
        return [_single(files, field, element, path) for element in value]
    return _single(files, field, value, path)


def _single(files: Files, field: FieldDescriptor, value: Any, path: str) -> Any:
    return _scalar(files, field, value, path) if field.message_type is None else _message(files, value, path)


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _scalar(files: Files, field: FieldDescriptor, value: Any, path: str) -> Any:
    if names := files.enums.get(field.full_name):
        return names.get(value) or str(value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64encode(value).decode()
    if isinstance(value, bytes):
        # The protobuf package gives bytes where a proto2 string isn't what it should be.
        raise ValueError(f"Field {path} is not UTF-8")
    return number_of(value, field.type == FieldDescriptor.TYPE_FLOAT) if isinstance(value, float) else value
