"""Finds the columns of a Protobuf message. Fields that no column can hold are an error."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]

from kafka_lake.formats.protobuf.task.values import Field, Values, enum, lists_of, maps_of, or_default, scalar, structs
from kafka_lake.formats.protobuf.task.well_known import WRAPPERS, json_of, presence, well_known, wrapped

_MESSAGE, _GROUP = FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP
_NEVER_PACKED = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, _MESSAGE, _GROUP)
_MAX_PARTS, _MAX_DEPTH = 20_000, 100


class UnsupportedTypeError(ValueError):
    """A message has a field that no column can hold; the message names it."""


class Schema:
    """The messages of a schema. Enums are int32, which has the same encoding, so that unknown numbers are kept."""

    def __init__(self, files: bytes) -> None:
        self.pool = descriptor_pool.DescriptorPool()
        self.enums: dict[str, dict[int, str]] = {}
        self._parts = 0
        written = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
            try:
                written.AddSerializedFile(file.SerializeToString())
            except TypeError as reason:
                raise UnsupportedTypeError(f"its descriptors are not valid: {reason}") from reason
            messages = written.FindFileByName(file.name).message_types_by_name
            for message in file.message_type:
                self._prepare(message, messages[message.name], file.syntax != "editions")
            self.pool.AddSerializedFile(file.SerializeToString())

    def _prepare(self, message: Any, descriptor: Descriptor, packs: bool) -> None:
        for field in message.field:
            described = descriptor.fields_by_name[field.name]
            if described.enum_type is not None:
                # The first of several names for a number counts; the others are aliases.
                values = reversed(described.enum_type.values)
                self.enums[described.full_name] = {value.number: value.name for value in values}
                field.type = FieldDescriptor.TYPE_INT32
                field.ClearField("type_name")
                field.ClearField("default_value")
            if packs and described.is_repeated and field.type not in _NEVER_PACKED:
                # ptars writes packed lists; parsers read both forms.
                field.options.packed = True
        for nested in message.nested_type:
            self._prepare(nested, descriptor.nested_types_by_name[nested.name], packs)

    def struct(self, descriptor: Descriptor, path: str = "", above: tuple[str, ...] = ()) -> Values:
        """Return the conversion of messages to structs."""
        name = descriptor.full_name
        if name in above:
            return json_of(descriptor, path)
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise UnsupportedTypeError(f"it has more than {_MAX_PARTS:,} nested messages, such as {path}")
        if len(above) == _MAX_DEPTH:
            raise UnsupportedTypeError(f"{path} is nested {_MAX_DEPTH} messages deep, more than parsers support")
        if not descriptor.fields:
            return presence()
        fields = [self._field(field, path, (*above, name)) for field in descriptor.fields]
        columns = [
            column
            for described, field in zip(descriptor.fields, fields, strict=True)
            for column in _columns(described.name, field.values.types)
        ]
        _check_names([column.name for column in columns], path)
        by_number = tuple(sorted(fields, key=lambda field: field.number))
        return Values({"": pa.struct(columns)}, _MESSAGE, structs(descriptor, fields, columns), by_number)

    def _field(self, field: FieldDescriptor, path: str, above: tuple[str, ...]) -> Field:
        here = f"{path}.{field.name}" if path else field.name
        if field.type == _GROUP:
            raise UnsupportedTypeError(f"{here} is a group, which is not supported; write it as a message")
        entry = field.message_type
        if field.is_repeated and entry is not None and entry.GetOptions().map_entry:
            keys = self._values(entry.fields_by_name["key"], f"{here}.key", above)
            values = self._values(entry.fields_by_name["value"], f"{here}.value", above)
            return Field(field.number, maps_of(keys, values), repeated=True)
        values = self._values(field, here, above)
        if field.is_repeated:
            return Field(field.number, lists_of(values), repeated=True)
        return Field(field.number, values if field.has_presence else or_default(values), optional=True)

    def _values(self, field: FieldDescriptor, path: str, above: tuple[str, ...]) -> Values:
        if field.message_type is None:
            names = self.enums.get(field.full_name)
            return enum(names) if names else scalar(field.type)
        if field.message_type.full_name in WRAPPERS:
            return wrapped(scalar(field.message_type.fields_by_name["value"].type))
        return well_known(self.pool, field, path) or self.struct(field.message_type, path, above)


def _columns(name: str, types: Mapping[str, pa.DataType]) -> list[pa.Field]:
    comment = {"comment": f"Nanoseconds beyond the microseconds of {name}, 0 to 999."}
    return [pa.field(name + suffix, kind, metadata=comment if suffix else None) for suffix, kind in types.items()]


def _check_names(names: Sequence[str], path: str) -> None:
    (twin, count), *_ = Counter(names).most_common(1)
    if count > 1:
        at = f"{path}.{twin}" if path else twin
        raise UnsupportedTypeError(f"{at} is both a field and the column for a timestamp's nanoseconds")


def arrow_type(files: bytes, name: str) -> pa.StructType:
    """Return the columns of a message."""
    schema = Schema(files)
    descriptor = schema.pool.FindMessageTypeByName(name)
    if not descriptor.fields:
        raise UnsupportedTypeError(f"message {name} has no fields, so its table would have no columns")
    return schema.struct(descriptor).types[""]
