"""The fields of messages, column by column: single ones, lists, maps and messages within messages."""

from collections import Counter
from collections.abc import Callable
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf import empty_pb2, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]

from kafka_lake.executors.protobuf.message_text import message_text
from kafka_lake.executors.protobuf.model import SET, Columns, Files, UnsupportedTypeError, Values, WireField, list_of
from kafka_lake.executors.protobuf.nested import wire_of_list, wire_of_map, wire_of_struct, wrapped
from kafka_lake.executors.protobuf.one_by_one import each_as, presence_as
from kafka_lake.executors.protobuf.scalars import scalar_values
from kafka_lake.executors.protobuf.well_known import WRAPPERS, confluent_decimal, durations, json_text, timestamps

_DEPTH, _MAX_PARTS = 100, 20_000
_HIGHEST_NUMBER = 10_000
"""Of fields that ptars reads: it keeps a place in memory for each lower number."""

# By the class, since a message may have a field of that name.
_has = empty_pb2.Empty.HasField


def struct_of(files: Files, descriptor: Descriptor, path: str, above: tuple[str, ...]) -> Values:
    """Return how messages become structs.

    Args:
        files: The messages of the schema.
        path: Where it is in the record, empty for the record itself.
        above: Full names of the messages that it is in.

    Raises:
        UnsupportedTypeError: If no column can hold it.
    """
    name = descriptor.full_name
    if name in above:
        # No table has a type that contains itself.
        return each_as(descriptor, pa.string(), lambda value: message_text(files, value, path))
    files.parts.append(path)
    if len(files.parts) > _MAX_PARTS:
        raise UnsupportedTypeError(f"it has more than {_MAX_PARTS:,} messages within messages, as {path}")
    if len(above) == _DEPTH:
        raise UnsupportedTypeError(f"{path} lies {_DEPTH} messages deep, where no parser goes")
    if not descriptor.fields:
        # Fields that the schema gets later join it.
        return presence_as({SET: True}, pa.struct([(SET, pa.bool_())]))
    columns = [_columns(files, field, path, (*above, name)) for field in descriptor.fields]
    fields = [field for each in columns for field in each.fields]
    _refuse_twins([field.name for field in fields], path)
    unset = message_factory.GetMessageClass(descriptor)()

    def arrays(values: list[Any]) -> list[pa.Array]:
        nulls = pa.array([value is None for value in values], pa.bool_())
        messages = [unset if value is None else value for value in values]
        found = [array for each in columns for array in each.read(messages)]
        return [pa.StructArray.from_arrays(found, fields=fields, mask=nulls)]

    return Values({"": pa.struct(fields)}, arrays, wire_of_struct(descriptor, columns, fields))


def _refuse_twins(names: list[str], path: str) -> None:
    (twin, count), *_ = Counter(names).most_common(1)
    if count > 1:
        at = f"{path}.{twin}" if path else twin
        raise UnsupportedTypeError(
            f"{at} is a field, and also the column for the nanoseconds of the timestamp beside it"
        )


def _columns(files: Files, field: FieldDescriptor, path: str, above: tuple[str, ...]) -> Columns:
    here = f"{path}.{field.name}" if path else field.name
    if field.type == FieldDescriptor.TYPE_GROUP or field.number > _HIGHEST_NUMBER:
        files.declined.append(here)
    get = attrgetter(field.name)
    entry = field.message_type
    if field.is_repeated and entry is not None and entry.GetOptions().map_entry:
        keys = _values(files, entry.fields_by_name["key"], f"{here}.key", above)
        values = _values(files, entry.fields_by_name["value"], f"{here}.value", above)
        types = {suffix: pa.map_(keys.types[""], kind) for suffix, kind in values.types.items()}
        wire = WireField(field.number, wire_of_map(keys, values), repeated=True)
        return Columns(_fields(field.name, types), _maps(get, here, keys, values), wire)
    values = _values(files, field, here, above)
    if not field.is_repeated:
        wire = WireField(field.number, values.wire, optional=field.has_presence)
        return Columns(_fields(field.name, values.types), _singles(get, field, values), wire)
    types = {suffix: list_of(kind) for suffix, kind in values.types.items()}
    wire = WireField(field.number, wire_of_list(values, list(types.values())), repeated=True)
    return Columns(_fields(field.name, types), _lists(get, list(types.values()), values), wire)


def _fields(name: str, types: dict[str, pa.DataType]) -> list[pa.Field]:
    comment = {"comment": f"Nanoseconds beyond the microseconds of {name}, 0 to 999."}
    return [pa.field(name + suffix, kind, metadata=comment if suffix else None) for suffix, kind in types.items()]


def _singles(
    get: Callable[[Any], Any], field: FieldDescriptor, values: Values
) -> Callable[[list[Any]], list[pa.Array]]:
    arrays, name = values.arrays, field.name
    if field.has_presence:
        return lambda messages: arrays([get(m) if _has(m, name) else None for m in messages])
    return lambda messages: arrays(list(map(get, messages)))


def _lists(
    get: Callable[[Any], Any], kinds: list[pa.DataType], values: Values
) -> Callable[[list[Any]], list[pa.Array]]:
    def read(messages: list[Any]) -> list[pa.Array]:
        # A copy is a list, and faster to go through than what the package gives.
        lists = [get(message)[:] for message in messages]
        offsets, elements = _offsets(lists), values.arrays(list(chain.from_iterable(lists)))
        return [pa.ListArray.from_arrays(offsets, each, type=kind) for each, kind in zip(elements, kinds, strict=True)]

    return read


def _maps(get: Callable[[Any], Any], path: str, keys: Values, values: Values) -> Callable[[list[Any]], list[pa.Array]]:
    def read(messages: list[Any]) -> list[pa.Array]:
        maps = list(map(get, messages))
        try:
            items = [item for each in maps for item in each.items()]
        except UnicodeDecodeError:
            raise ValueError(f"Field {path}.key is not UTF-8") from None
        offsets, (key,) = _offsets(maps), keys.arrays([key for key, _ in items])
        return [pa.MapArray.from_arrays(offsets, key, each) for each in values.arrays([value for _, value in items])]

    return read


def _offsets(lists: list[Any]) -> pa.Array:
    return pa.array(accumulate(map(len, lists), initial=0), pa.int32())


def _values(files: Files, field: FieldDescriptor, path: str, above: tuple[str, ...]) -> Values:
    message = field.message_type
    if message is None:
        return scalar_values(files, field, path)
    match message.full_name:
        case "google.protobuf.Timestamp":
            return timestamps(path)
        case "google.protobuf.Duration":
            return durations(path)
        case "google.protobuf.Struct" | "google.protobuf.Value" | "google.protobuf.ListValue":
            return each_as(message, pa.string(), lambda value: json_text(value, path))
        case "google.protobuf.Empty":
            # It never gets fields.
            return presence_as(True, pa.bool_())
        case "google.protobuf.FieldMask":
            return each_as(message, list_of(pa.string()), lambda value: value.paths[:])
        case "confluent.type.Decimal":
            return confluent_decimal(files, field, path)
        case name if name in WRAPPERS:
            return wrapped(scalar_values(files, message.fields_by_name["value"], path))
        case _:
            return struct_of(files, message, path, above)
