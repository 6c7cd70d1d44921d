"""What executors run for Protobuf: a batch of messages becomes one Arrow array, column by column.

Travels with the function by value and imports nothing of kafka_lake, so that the machines of a cluster need the
packages ``protobuf`` and ``pyarrow`` only.
"""

import gc
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

NANOS = "__nanos"
"""Beside a column ``at`` of timestamps, ``at__nanos`` holds what a microsecond is too coarse for."""

_SCALARS = {
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_SINT32: pa.int32(),
    FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    FieldDescriptor.TYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_FIXED64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
}
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_MICROS = pa.timestamp("us", tz="UTC")
_SECONDS = pa.decimal128(21, 9)
_TIMES = (-62_135_596_800, 253_402_300_799)
_LONGEST_DURATION = 315_576_000_000
_SECOND_IN_NANOS = 1_000_000_000
_EXACT_IN_DOUBLE = 2**53
_DECIMAL_DIGITS = 38
_DECIMAL_BYTES = 1024
_DEPTH = 100

# By the class, since a message may have a field of that name.
_has = empty_pb2.Empty.HasField
_missing = empty_pb2.Empty.FindInitializationErrors
_initialized = empty_pb2.Empty.IsInitialized


class UnsupportedTypeError(ValueError):
    """A message has a field that no column can hold; the text names it."""


@dataclass(frozen=True)
class _Values:
    """How values that the protobuf package gives, None where unset, become arrays.

    Args:
        types: By the suffix of the column's name; more than one where one type can't hold the values.
        arrays: From values to an array of each type.
    """

    types: dict[str, pa.DataType]
    arrays: Callable[[list[Any]], list[pa.Array]]


@dataclass(frozen=True)
class _Columns:
    """The columns that a field makes, and how to read them from messages, none of them None."""

    fields: list[pa.Field]
    read: Callable[[list[Any]], list[pa.Array]]


@dataclass(frozen=True)
class _Files:
    """The messages of a schema; enum fields are int32 in them, and have their values' names here, by number."""

    pool: Any
    enums: dict[str, dict[int, str]]


def arrow_type(files: bytes, name: str) -> pa.StructType:
    """Return the columns of a message.

    Args:
        files: A serialized FileDescriptorSet, each file after those that it imports.
        name: The message's full name.

    Raises:
        UnsupportedTypeError: If there is no such type: the message contains itself, has no fields, or isn't valid.
        KeyError: If the files don't have the message.
    """
    loaded = _load(files)
    descriptor = loaded.pool.FindMessageTypeByName(name)
    if not descriptor.fields:
        raise UnsupportedTypeError(f"message {name} has no fields, so its table would have no columns")
    return _struct(loaded, descriptor, "", ()).types[""]


def decoder(files: bytes, name: str) -> Callable[[pa.Array], pa.Array]:
    """Return a function that decodes a batch; it reads the schema at its first call and can be pickled before.

    Args:
        files: As for `arrow_type`.
        name: The message's full name.

    Returns:
        From an array of messages' bytes to an array of ``struct<decoded, error>`` of the same length, both null where
        the bytes are.
    """
    ready: list[Callable[[pa.Array], pa.Array]] = []

    def decode(payloads: pa.Array) -> pa.Array:
        if not ready:
            ready.append(_decoder(files, name))
        collects = gc.isenabled()
        # A batch makes many objects and no cycles; looking for some would take a third of the time.
        gc.disable()
        try:
            return ready[0](payloads)
        finally:
            if collects:
                gc.enable()

    return decode


def _decoder(files: bytes, name: str) -> Callable[[pa.Array], pa.Array]:
    loaded = _load(files)
    descriptor = loaded.pool.FindMessageTypeByName(name)
    parse = message_factory.GetMessageClass(descriptor).FromString
    struct = _struct(loaded, descriptor, "", ())
    needs_check = _has_required(descriptor, set())

    def decode(payloads: pa.Array) -> pa.Array:
        messages: list[Any] = []
        errors: list[str | None] = []
        for payload in payloads.to_pylist():
            message = error = None
            if payload is not None:
                try:
                    message = parse(payload)
                    if needs_check and not _initialized(message):
                        error = f"Required, but missing: {', '.join(_missing(message))}."
                        message = None
                except DecodeError:
                    error = f"The bytes do not parse as {name}."
            messages.append(message)
            errors.append(error)
        decoded = pa.concat_arrays(list(_convert(struct, messages, errors, 0)))
        return pa.StructArray.from_arrays([decoded, pa.array(errors, pa.string())], names=["decoded", "error"])

    return decode


def _convert(struct: _Values, messages: list[Any], errors: list[str | None], start: int) -> Iterator[pa.Array]:
    """Yield the messages as arrays; one with a value that fits no column becomes null, with the reason in errors."""
    try:
        yield from struct.arrays(messages)
    except ValueError as reason:
        if len(messages) == 1:
            errors[start] = f"{reason}."
            yield from struct.arrays([None])
        else:
            half = len(messages) // 2
            yield from _convert(struct, messages[:half], errors, start)
            yield from _convert(struct, messages[half:], errors, start + half)


def _load(files: bytes) -> _Files:
    """Return the schema for reading.

    A parser of proto2 keeps numbers that a closed enum doesn't name out of sight. As int32, which is the same on the
    wire, all of them are seen.
    """
    written, loaded = descriptor_pool.DescriptorPool(), _Files(descriptor_pool.DescriptorPool(), {})
    for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        try:
            written.AddSerializedFile(file.SerializeToString())
        except TypeError as reason:
            raise UnsupportedTypeError(f"its descriptors are not valid: {reason}") from reason
        messages = written.FindFileByName(file.name).message_types_by_name
        for message in file.message_type:
            _open_enums(message, messages[message.name], loaded.enums)
        loaded.pool.AddSerializedFile(file.SerializeToString())
    return loaded


def _open_enums(message: Any, descriptor: Descriptor, enums: dict[str, dict[int, str]]) -> None:
    for field in message.field:
        described = descriptor.fields_by_name[field.name]
        if described.enum_type is not None:
            # Where two names have one number, the first is the value's and the others are aliases.
            enums[described.full_name] = {value.number: value.name for value in reversed(described.enum_type.values)}
            field.type = FieldDescriptor.TYPE_INT32
            field.ClearField("type_name")
            field.ClearField("default_value")
    for nested in message.nested_type:
        _open_enums(nested, descriptor.nested_types_by_name[nested.name], enums)


def _has_required(descriptor: Descriptor, seen: set[str]) -> bool:
    if descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    return any(
        field.is_required or (field.message_type is not None and _has_required(field.message_type, seen))
        for field in descriptor.fields
    )


def _struct(files: _Files, descriptor: Descriptor, path: str, above: tuple[str, ...]) -> _Values:
    name = descriptor.full_name
    if name in above:
        raise UnsupportedTypeError(f"{path} is a {name} within a {name}: no table has a type that contains itself")
    if len(above) == _DEPTH:
        raise UnsupportedTypeError(f"{path} lies {_DEPTH} messages deep, where no parser goes")
    if not descriptor.fields:
        return _each(pa.bool_(), lambda value: True)
    columns = [_columns(files, field, path, (*above, name)) for field in descriptor.fields]
    fields = [field for each in columns for field in each.fields]
    _refuse_twins([field.name for field in fields], path)
    unset = message_factory.GetMessageClass(descriptor)()

    def arrays(values: list[Any]) -> list[pa.Array]:
        nulls = pa.array([value is None for value in values], pa.bool_())
        messages = [unset if value is None else value for value in values]
        found = [array for each in columns for array in each.read(messages)]
        return [pa.StructArray.from_arrays(found, fields=fields, mask=nulls)]

    return _Values({"": pa.struct(fields)}, arrays)


def _refuse_twins(names: list[str], path: str) -> None:
    (twin, count), *_ = Counter(names).most_common(1)
    if count > 1:
        at = f"{path}.{twin}" if path else twin
        raise UnsupportedTypeError(
            f"{at} is a field, and also the column for the nanoseconds of the timestamp beside it"
        )


def _columns(files: _Files, field: FieldDescriptor, path: str, above: tuple[str, ...]) -> _Columns:
    here = f"{path}.{field.name}" if path else field.name
    get = attrgetter(field.name)
    entry = field.message_type
    if field.is_repeated and entry is not None and entry.GetOptions().map_entry:
        keys = _values(files, entry.fields_by_name["key"], f"{here}.key", above)
        values = _values(files, entry.fields_by_name["value"], f"{here}.value", above)
        types = {suffix: pa.map_(keys.types[""], kind) for suffix, kind in values.types.items()}
        return _Columns(_fields(field.name, types), _maps(get, here, keys, values))
    values = _values(files, field, here, above)
    if not field.is_repeated:
        return _Columns(_fields(field.name, values.types), _singles(get, field, values))
    types = {suffix: _list_of(kind) for suffix, kind in values.types.items()}
    return _Columns(_fields(field.name, types), _lists(get, list(types.values()), values))


def _fields(name: str, types: dict[str, pa.DataType]) -> list[pa.Field]:
    comment = {"comment": f"Nanoseconds beyond the microseconds of {name}, 0 to 999."}
    return [pa.field(name + suffix, kind, metadata=comment if suffix else None) for suffix, kind in types.items()]


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


def _singles(
    get: Callable[[Any], Any], field: FieldDescriptor, values: _Values
) -> Callable[[list[Any]], list[pa.Array]]:
    arrays, name = values.arrays, field.name
    if field.has_presence:
        return lambda messages: arrays([get(m) if _has(m, name) else None for m in messages])
    return lambda messages: arrays(list(map(get, messages)))


def _lists(
    get: Callable[[Any], Any], kinds: list[pa.DataType], values: _Values
) -> Callable[[list[Any]], list[pa.Array]]:
    def read(messages: list[Any]) -> list[pa.Array]:
        # A copy is a list, and faster to go through than what the package gives.
        lists = [get(message)[:] for message in messages]
        offsets, elements = _offsets(lists), values.arrays(list(chain.from_iterable(lists)))
        return [pa.ListArray.from_arrays(offsets, each, type=kind) for each, kind in zip(elements, kinds, strict=True)]

    return read


def _maps(
    get: Callable[[Any], Any], path: str, keys: _Values, values: _Values
) -> Callable[[list[Any]], list[pa.Array]]:
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


def _values(files: _Files, field: FieldDescriptor, path: str, above: tuple[str, ...]) -> _Values:
    message = field.message_type
    if message is None:
        return _scalar(files, field, path)
    match message.full_name:
        case "google.protobuf.Timestamp":
            return _timestamp(path)
        case "google.protobuf.Duration":
            return _each(_SECONDS, lambda value: _duration(value, path))
        case "google.protobuf.Struct" | "google.protobuf.Value" | "google.protobuf.ListValue":
            return _each(pa.string(), lambda value: _json(value, path))
        case "google.protobuf.FieldMask":
            return _each(_list_of(pa.string()), lambda value: value.paths[:])
        case "confluent.type.Decimal":
            return _decimal(files, field, path)
        case name if name in _WRAPPERS:
            inner = _scalar(files, message.fields_by_name["value"], path)
            return _Values(inner.types, lambda values: inner.arrays([None if v is None else v.value for v in values]))
        case _:
            return _struct(files, message, path, above)


def _plain(kind: pa.DataType) -> _Values:
    return _Values({"": kind}, lambda values: [pa.array(values, kind)])


def _each(kind: pa.DataType, convert: Callable[[Any], Any]) -> _Values:
    return _Values({"": kind}, lambda values: [pa.array([None if v is None else convert(v) for v in values], kind)])


def _scalar(files: _Files, field: FieldDescriptor, path: str) -> _Values:
    if names := files.enums.get(field.full_name):
        return _each(pa.string(), lambda number: names.get(number) or str(number))
    kind = _SCALARS[field.type]
    if pa.types.is_decimal(kind):
        return _Values({"": kind}, lambda values: [pa.array(values, pa.uint64()).cast(kind)])
    if not pa.types.is_string(kind):
        return _plain(kind)

    def strings(values: list[Any]) -> list[pa.Array]:
        try:
            return [pa.array(values, kind)]
        except pa.ArrowInvalid:
            # The protobuf package gives bytes where a proto2 string isn't what it should be.
            raise ValueError(f"Field {path} is not UTF-8") from None

    return _Values({"": kind}, strings)


def _timestamp(path: str) -> _Values:
    def arrays(values: list[Any]) -> list[pa.Array]:
        seconds = pa.array([None if value is None else value.seconds for value in values], pa.int64())
        nanos = pa.array([None if value is None else value.nanos for value in values], pa.int32())
        _refuse_outside(f"Field {path} is no time of the years 1 to 9999, its seconds are", seconds, *_TIMES)
        _refuse_outside(f"Field {path} is no time, its nanoseconds are", nanos, 0, _SECOND_IN_NANOS - 1)
        micros = pc.divide(nanos, 1000)
        whole = pc.add(pc.multiply(seconds, 1_000_000), micros).cast(_MICROS)
        return [whole, pc.subtract(nanos, pc.multiply(micros, 1000)).cast(pa.int32())]

    return _Values({"": _MICROS, NANOS: pa.int32()}, arrays)


def _refuse_outside(what: str, numbers: pa.Array, low: int, high: int) -> None:
    for found in pc.min_max(numbers).as_py().values():
        if found is not None and not low <= found <= high:
            raise ValueError(f"{what} {found}")


def _duration(value: Any, path: str) -> Decimal:
    seconds, nanos = value.seconds, value.nanos
    if abs(seconds) > _LONGEST_DURATION or abs(nanos) >= _SECOND_IN_NANOS or seconds * nanos < 0:
        raise ValueError(f"Field {path} is no duration: {seconds} seconds and {nanos} nanoseconds")
    return _exact(seconds * _SECOND_IN_NANOS + nanos, 9)


def _json(value: Any, path: str) -> str:
    try:
        return json.dumps(
            _json_value(value), ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
        )
    except ValueError:
        raise ValueError(f"Field {path} holds a number that isn't finite, which JSON can't write") from None


def _json_value(value: Any) -> Any:
    name = value.DESCRIPTOR.name
    if name == "Struct":
        return {key: _json_value(each) for key, each in value.fields.items()}
    if name == "ListValue":
        return [_json_value(each) for each in value.values]
    kind = value.WhichOneof("kind")
    if kind in ("struct_value", "list_value"):
        return _json_value(getattr(value, kind))
    if kind == "number_value":
        number = value.number_value
        whole = number.is_integer() and abs(number) < _EXACT_IN_DOUBLE and str(number) != "-0.0"
        return int(number) if whole else number
    return None if kind in (None, "null_value") else getattr(value, kind)


def _decimal(files: _Files, field: FieldDescriptor, path: str) -> _Values:
    """Return Confluent's decimal as the type that its field declares, as text if it declares none."""
    declared = _declared_decimal(files, field)
    if declared is None:
        return _each(pa.string(), lambda value: str(_exact(_unscaled(value, path), value.scale)))
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
        return _exact(number, scale)

    return _each(pa.decimal128(precision, scale), convert)


def _unscaled(value: Any, path: str) -> int:
    if len(value.value) > _DECIMAL_BYTES:
        raise ValueError(f"Field {path} is a decimal of {len(value.value)} bytes")
    return int.from_bytes(value.value, "big", signed=True)


def _exact(number: int, scale: int) -> Decimal:
    # Arithmetic would round to the digits of the context.
    return Decimal(f"{number}E{-scale}")


def _declared_decimal(files: _Files, field: FieldDescriptor) -> tuple[int, int] | None:
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
