"""Protobuf schemas at random, messages of them at random, and what may befall their bytes."""

import random
import struct
from collections.abc import Callable
from typing import Any

from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.type import date_pb2, latlng_pb2

from kafka_lake.formats.protobuf.schema import ProtobufMessage

IMPORTED = [
    descriptor_pb2, any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2, date_pb2,
    latlng_pb2, meta_pb2, decimal_pb2,
]  # fmt: skip
KNOWN = [
    "google.protobuf.Timestamp", "google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.Struct",
    "google.protobuf.Value", "google.protobuf.ListValue", "google.protobuf.Empty", "google.protobuf.Any",
    "google.protobuf.FieldMask", "google.type.LatLng", "google.type.Date", "confluent.type.Decimal",
    *(f"google.protobuf.{kind}Value" for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool")),
    "google.protobuf.StringValue", "google.protobuf.BytesValue",
]  # fmt: skip
SCALARS = [number for number in range(1, 19) if number not in (10, 11, 14)]
KEYS = [number for number in SCALARS if number not in (1, 2, 12)]
ENUM, MESSAGE = 14, 11
INTS = [0, 1, -1, 127, 128, 300, 2**31 - 1, -(2**31)]
LONGS = [*INTS, 2**53 + 1, 2**63 - 1, -(2**63)]
DOUBLES = [0.0, 0.1, 1.5, -2.25, 5e-324, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", "a", "ü€🍕", "\x00", "abc", "x" * 200]
SECONDS = [0, 1, 1_700_000_000, -1, -62_135_596_800, 253_402_300_799, 10**10, 253_402_300_800, -(2**63)]
NANOS = [0, 1, 999, 1000, 123_456_789, 999_999_999, 10**9, -1, -999_999_999]


def schema(r: random.Random) -> ProtobufMessage:
    """Return a message type with fields of all kinds, within messages, lists, maps and choices."""
    file = FileDescriptorProto(name="fuzz.proto", package="fuzz", syntax=r.choice(["proto2", "proto3", "proto3"]))
    file.dependency.extend(module.DESCRIPTOR.name for module in IMPORTED)
    colors = file.enum_type.add(name="Color")
    for number, name in enumerate(["RED", "BLUE", "GREEN"]):
        colors.value.add(name=name, number=[0, 1, -5 if file.syntax == "proto2" else 7][number])
    count = r.randint(1, 4)
    for index in range(count):
        message = file.message_type.add(name=f"M{index}")
        # What is required makes most messages errors.
        odd = r.random() < 0.1
        most = r.choice([20, 500, 9_999]) if not odd else 536_870_911
        numbers = [n for n in r.sample(range(1, most), r.randint(1, 8)) if not 19_000 <= n < 20_000] or [1]
        for number in numbers:
            add_field(r, file, message, number, [f"M{n}" for n in range(index + 1, count)], odd)
    files = [FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) for module in IMPORTED]
    return ProtobufMessage(FileDescriptorSet(file=[*files, file]).SerializeToString(), "fuzz.M0")


def add_field(r: random.Random, file: Any, message: Any, number: int, later: list[str], odd: bool) -> None:
    """Add a field of any kind, with its map entry or oneof."""
    proto2 = file.syntax == "proto2"
    field = message.field.add(name=f"f{number}", number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    form = r.random()
    if form < 0.12:
        entry = message.nested_type.add(name=f"F{number}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=r.choice(KEYS))
        set_type(r, entry.field.add(name="value", number=2, label=1), later)
        field.label, field.type, field.type_name = 3, MESSAGE, f".fuzz.{message.name}.{entry.name}"
        return
    set_type(r, field, later)
    if form < 0.35:
        field.label = FieldDescriptorProto.LABEL_REPEATED
        if field.type in SCALARS and field.type not in (9, 12) and r.random() < 0.3:
            field.options.packed = r.random() < 0.5
    elif form < 0.55:
        if not message.oneof_decl or r.random() < 0.2:
            message.oneof_decl.add(name=f"one{len(message.oneof_decl)}")
        field.oneof_index = len(message.oneof_decl) - 1
    elif proto2 and odd and form < 0.6:
        field.label = FieldDescriptorProto.LABEL_REQUIRED


def set_type(r: random.Random, field: Any, later: list[str]) -> None:
    """Give a field a scalar, an enum, one of the later messages or a well-known one."""
    kind = r.random()
    if kind < 0.55:
        field.type = r.choice(SCALARS)
    elif kind < 0.65:
        field.type, field.type_name = ENUM, ".fuzz.Color"
    elif kind < 0.8 and later:
        field.type, field.type_name = MESSAGE, f".fuzz.{r.choice(later)}"
    else:
        name = r.choice(KNOWN)
        field.type, field.type_name = MESSAGE, f".{name}"
        if name == "confluent.type.Decimal" and r.random() < 0.7:
            params = field.options.Extensions[meta_pb2.field_meta].params
            params["precision"], params["scale"] = "9", "2"


def message_class(described: ProtobufMessage) -> Any:
    """Return the class that the protobuf package makes of a message."""
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(described.files).file:
        pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(described.name))


def fill(r: random.Random, message: Any, depth: int = 0) -> None:
    """Set fields of a message at random."""
    descriptor: Descriptor = message.DESCRIPTOR
    if descriptor.full_name == "google.protobuf.Timestamp" or descriptor.full_name == "google.protobuf.Duration":
        # Most are times.
        most = 6 if r.random() < 0.97 else len(SECONDS)
        message.seconds, message.nanos = r.choice(SECONDS[:most]), r.choice(NANOS[:most])
        return
    for field in descriptor.fields:
        if not field.is_required and r.random() < (0.35 if depth else 0.2):
            continue
        if field.message_type is not None and depth > 3:
            continue
        set_field(r, message, field, depth)


def set_field(r: random.Random, message: Any, field: FieldDescriptor, depth: int) -> None:
    """Set a field of any form."""
    held = getattr(message, field.name)
    if not field.is_repeated:
        if field.message_type is None:
            setattr(message, field.name, scalar(r, field))
        else:
            held.SetInParent()
            fill(r, held, depth + 1)
        return
    for _ in range(r.choice([0, 1, 1, 2, 5])):
        if field.message_type is None:
            held.append(scalar(r, field))
        elif not field.message_type.GetOptions().map_entry:
            fill(r, held.add(), depth + 1)
        else:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            if value.message_type is None:
                held[scalar(r, key)] = scalar(r, value)
            else:
                fill(r, held[scalar(r, key)], depth + 1)


def scalar(r: random.Random, field: FieldDescriptor) -> Any:
    """Return a value of a field's type."""
    if field.enum_type is not None:
        closed = field.file.serialized_pb.find(b"proto3") < 0
        return r.choice([value.number for value in field.enum_type.values] + [99] * (not closed))
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_INT32:
            return r.choice(INTS)
        case FieldDescriptor.CPPTYPE_INT64:
            return r.choice(LONGS)
        case FieldDescriptor.CPPTYPE_UINT32:
            return r.choice([abs(number) for number in INTS] + [2**32 - 1])
        case FieldDescriptor.CPPTYPE_UINT64:
            return r.choice([abs(number) for number in LONGS] + [2**64 - 1])
        case FieldDescriptor.CPPTYPE_BOOL:
            return r.random() < 0.5
        case FieldDescriptor.CPPTYPE_FLOAT:
            return struct.unpack("<f", struct.pack("<f", r.choice(DOUBLES)))[0]
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return r.choice(DOUBLES)
    return r.randbytes(r.randint(0, 4)) if field.type == FieldDescriptor.TYPE_BYTES else r.choice(TEXTS)


def varint(number: int, length: int = 0) -> bytes:
    """Return a number as a varint, of more bytes than it needs if that many are asked for."""
    found = bytearray()
    while number >= 0x80 or len(found) + 1 < length:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def damaged(r: random.Random, content: bytes, other: bytes) -> bytes:
    """Return bytes that are a message no longer, or another one, or the same one written otherwise.

    Args:
        r: Chooses.
        content: A message.
        other: Another one of its type.
    """
    raw = bytearray(content)
    at = r.randrange(len(raw) + 1)
    kinds: list[Callable[[], bytes]] = [
        lambda: bytes(raw[:at]),
        lambda: bytes(raw[:at] + bytes([raw[at] ^ 1 << r.randrange(8)]) + raw[at + 1 :]) if at < len(raw) else b"\x80",
        lambda: bytes(raw[:at] + r.randbytes(r.randint(1, 3)) + raw[at:]),
        lambda: bytes(raw[:at] + raw[at + r.randint(1, 3) :]),
        # Two messages in a row are one, merged.
        lambda: content + other,
        lambda: content + other[: r.randrange(len(other) + 1)],
        lambda: bytes(raw[:at]) + other,
        # Unknown fields, of all wire types.
        lambda: content + varint(r.choice([3, 600, 40_000]) << 3 | r.randrange(6)) + r.randbytes(r.randint(0, 9)),
        lambda: content + varint(77 << 3 | 2) + b"\x03abc",
        lambda: content + varint(77 << 3 | 3) + b"\x08\x01" + varint(77 << 3 | 4),
        # Varints with more bytes than they need, or than there may be.
        lambda: bytes(raw[:at] + varint(raw[at] & 0x7F, r.randint(2, 12)) + raw[at + 1 :]) if at < len(raw) else b"",
        lambda: content + varint(r.getrandbits(64)) + r.randbytes(3),
        lambda: content + varint(r.randint(1, 20) << 3 | 2) + varint(2**64 - r.randint(1, 12), 10) + other,
        lambda: content + varint((1 << 35) + (r.randint(1, 20) << 3) + r.choice([0, 2])) + b"\x01\x01",
        # One field more, with a length that lies.
        lambda: content + varint(r.randint(1, 20) << 3 | 2) + bytes([r.randint(0, 9)]) + r.randbytes(r.randint(0, 9)),
        lambda: content + varint(r.randint(1, 20) << 3 | r.choice([0, 1, 5])) + r.randbytes(8),
        lambda: r.randbytes(r.randint(0, 12)),
    ]
    return r.choice(kinds)()
