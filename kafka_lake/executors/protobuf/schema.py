"""The descriptors of a schema, loaded for reading: enums are numbers in them, so that unknown ones are seen."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]

from kafka_lake.executors.protobuf.model import Files, UnsupportedTypeError

_NEVER_PACKED = (
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_MESSAGE,
    FieldDescriptor.TYPE_GROUP,
)


def load_schema(files: bytes) -> Files:
    """Return the schema for reading.

    A parser of proto2 keeps numbers that a closed enum doesn't name out of sight. As int32, which is the same on the
    wire, all of them are seen. Lists are packed, as ptars writes them; parsers read both forms.
    """
    written, loaded = descriptor_pool.DescriptorPool(), Files(descriptor_pool.DescriptorPool(), {})
    for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        try:
            written.AddSerializedFile(file.SerializeToString())
        except TypeError as reason:
            raise UnsupportedTypeError(f"its descriptors are not valid: {reason}") from reason
        messages = written.FindFileByName(file.name).message_types_by_name
        for message in file.message_type:
            _prepare(message, messages[message.name], loaded.enums, file.syntax != "editions")
        loaded.pool.AddSerializedFile(file.SerializeToString())
    return loaded


def _prepare(message: Any, descriptor: Descriptor, enums: dict[str, dict[int, str]], packs: bool) -> None:
    for field in message.field:
        described = descriptor.fields_by_name[field.name]
        if described.enum_type is not None:
            # Where two names have one number, the first is the value's and the others are aliases.
            enums[described.full_name] = {value.number: value.name for value in reversed(described.enum_type.values)}
            field.type = FieldDescriptor.TYPE_INT32
            field.ClearField("type_name")
            field.ClearField("default_value")
        if packs and described.is_repeated and field.type not in _NEVER_PACKED:
            field.options.packed = True
    for nested in message.nested_type:
        _prepare(nested, descriptor.nested_types_by_name[nested.name], enums, packs)


def has_required(descriptor: Descriptor, seen: set[str]) -> bool:
    """Return whether a message, or one within it, has a field that must be set.

    Args:
        seen: Full names of messages that were looked at; it grows.
    """
    if descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    return any(
        field.is_required or (field.message_type is not None and has_required(field.message_type, seen))
        for field in descriptor.fields
    )
