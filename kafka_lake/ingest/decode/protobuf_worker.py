"""What executors run for Protobuf: a batch of messages becomes one Arrow array, column by column.

Travels with the function by value and imports nothing of kafka_lake, so that the machines of a cluster need the
packages ``protobuf`` and ``pyarrow`` only.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

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
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
_LONGEST_DURATION = 315_576_000_000
_SECOND_IN_NANOS = 1_000_000_000
_EXACT_IN_DOUBLE = 2**53
_DECIMAL_DIGITS = 38

# By the class, since a message may have a field of that name.
_has = empty_pb2.Empty.HasField
_missing = empty_pb2.Empty.FindInitializationErrors
_initialized = empty_pb2.Empty.IsInitialized


class UnsupportedTypeError(ValueError):
    """A message has a field that no column can hold; the text names it."""


@dataclass(frozen=True)
class _Values:
    """A type, and how values that the protobuf package gives, None where unset, become an array of it."""

    type: pa.DataType
    array: Callable[[list[Any]], pa.Array]


@dataclass(frozen=True)
class _Column:
    """A column, and how to read it from messages, none of them None."""

    field: pa.Field
    read: Callable[[list[Any]], pa.Array]


@dataclass(frozen=True)
class _Files:
    """The messages of a schema; enum fields are int32 in them, and have their enum's full name here."""

    pool: Any
    enums: dict[str, str]


def arrow_type(files: bytes, name: str) -> pa.StructType:
    """Return the columns of a message.

    Args:
        files: A serialized FileDescriptorSet, each file after those that it imports.
        name: The message's full name.

    Raises:
        UnsupportedTypeError: If there is no such type: the message contains itself, or has no fields.
        TypeError: If the files make no valid schema.
        KeyError: If they don't have the message.
    """
    loaded = _load(files)
    descriptor = loaded.pool.FindMessageTypeByName(name)
    if not descriptor.fields:
        raise UnsupportedTypeError(f"message {name} has no fields, so its table would have no columns")
    return _struct(loaded, descriptor, "", ()).type


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
        return ready[0](payloads)

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
                except DecodeError as reason:
                    error = f"The bytes are no {name}: {reason}."
            messages.append(message)
            errors.append(error)
        decoded = pa.concat_arrays(list(_convert(struct, messages, errors, 0)))
        return pa.StructArray.from_arrays([decoded, pa.array(errors, pa.string())], names=["decoded", "error"])

    return decode


def _convert(struct: _Values, messages: list[Any], errors: list[str | None], start: int) -> Iterator[pa.Array]:
    """Yield the messages as arrays; one with a value that fits no column becomes null, with the reason in errors."""
    try:
        yield struct.array(messages)
    except ValueError as reason:
        if len(messages) == 1:
            errors[start] = f"{reason}."
            yield struct.array([None])
        else:
            half = len(messages) // 2
            yield from _convert(struct, messages[:half], errors, start)
            yield from _convert(struct, messages[half:], errors, start + half)


def _load(files: bytes) -> _Files:
    """Return the schema for reading.

    A parser of proto2 keeps numbers that a closed enum doesn't name out of sight. As int32, which is the same on the
    wire, all of them are seen.
    """
    loaded = _Files(descriptor_pool.DescriptorPool(), {})
    for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        for message in file.message_type:
            _open_enums(message, file.package, loaded.enums)
        loaded.pool.AddSerializedFile(file.SerializeToString())
    return loaded


def _open_enums(message: Any, scope: str, enums: dict[str, str]) -> None:
    name = f"{scope}.{message.name}" if scope else message.name
    for field in message.field:
        if field.type == FieldDescriptor.TYPE_ENUM:
            enums[f"{name}.{field.name}"] = field.type_name.removeprefix(".")
            field.type = FieldDescriptor.TYPE_INT32
            field.ClearField("type_name")
            field.ClearField("default_value")
    for nested in message.nested_type:
        _open_enums(nested, name, enums)


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
    if not descriptor.fields:
        return _Values(pa.bool_(), lambda values: pa.array([None if v is None else True for v in values], pa.bool_()))
    columns = [column for field in descriptor.fields for column in _columns(files, field, path, (*above, name))]
    _refuse_twins([column.field.name for column in columns], path)
    fields = [column.field for column in columns]
    unset = message_factory.GetMessageClass(descriptor)()

    def array(values: list[Any]) -> pa.Array:
        nulls = [value is None for value in values]
        messages = [unset if value is None else value for value in values]
        arrays = [column.read(messages) for column in columns]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(nulls, pa.bool_()))

    return _Values(pa.struct(fields), array)


def _refuse_twins(names: list[str], path: str) -> None:
    for name in names:
        at = name.removesuffix(NANOS)
        if at != name and at in names and names.count(name) > 1:
            where = f"{path}.{at}" if path else at
            raise UnsupportedTypeError(f"{where} needs a column {name} for its nanoseconds, which is another field")


def _columns(files: _Files, field: FieldDescriptor, path: str, above: tuple[str, ...]) -> Iterator[_Column]:
    here = f"{path}.{field.name}" if path else field.name
    get = attrgetter(field.name)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        ((_, keys),) = _values(files, entry.fields_by_name["key"], f"{here}.key", above)
        for suffix, values in _values(files, entry.fields_by_name["value"], f"{here}.value", above):
            yield _Column(*_named(field.name, suffix, pa.map_(keys.type, values.type)), _map(get, keys, values))
        return
    for suffix, values in _values(files, field, here, above):
        if field.is_repeated:
            kind = pa.list_(pa.field("element", values.type))
            yield _Column(_named(field.name, suffix, kind), _list(get, kind, values))
        else:
            yield _Column(_named(field.name, suffix, values.type), _single(get, field, values))


def _named(name: str, suffix: str, kind: pa.DataType) -> pa.Field:
    comment = {"comment": f"Nanoseconds beyond the microseconds of {name}, 0 to 999."} if suffix else None
    return pa.field(name + suffix, kind, metadata=comment)


def _single(get: Callable[[Any], Any], field: FieldDescriptor, values: _Values) -> Callable[[list[Any]], pa.Array]:
    array, name = values.array, field.name
    if field.has_presence:
        return lambda messages: array([get(m) if _has(m, name) else None for m in messages])
    return lambda messages: array(list(map(get, messages)))


def _list(get: Callable[[Any], Any], kind: pa.DataType, values: _Values) -> Callable[[list[Any]], pa.Array]:
    def read(messages: list[Any]) -> pa.Array:
        lists = list(map(get, messages))
        return pa.ListArray.from_arrays(_offsets(lists), values.array(list(chain.from_iterable(lists))), type=kind)

    return read


def _map(get: Callable[[Any], Any], keys: _Values, values: _Values) -> Callable[[list[Any]], pa.Array]:
    def read(messages: list[Any]) -> pa.Array:
        maps = list(map(get, messages))
        items = [item for each in maps for item in each.items()]
        return pa.MapArray.from_arrays(
            _offsets(maps), keys.array([key for key, _ in items]), values.array([value for _, value in items])
        )

    return read


def _offsets(lists: list[Any]) -> pa.Array:
    return pa.array(accumulate(map(len, lists), initial=0), pa.int32())


def _values(
    files: _Files, field: FieldDescriptor, path: str, above: tuple[str, ...]
) -> Iterator[tuple[str, _Values]]:
    """Yield what a field's values become, by the suffix of the column's name: more than one if one can't hold them."""
    message = field.message_type
    if message is None:
        yield "", _scalar(files, field, path)
        return
    name = message.full_name
    if name == "google.protobuf.Timestamp":
        yield "", _Values(_MICROS, _each(_MICROS, lambda value: _micros(value, path)))
        yield NANOS, _Values(pa.int32(), _each(pa.int32(), lambda value: value.nanos % 1000))
    elif name == "google.protobuf.Duration":
        yield "", _Values(_SECONDS, _each(_SECONDS, lambda value: _duration(value, path)))
    elif name in ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"):
        yield "", _Values(pa.string(), _each(pa.string(), lambda value: _json(value, path)))
    elif name == "google.protobuf.FieldMask":
        kind = pa.list_(pa.field("element", pa.string()))
        yield "", _Values(kind, _each(kind, lambda value: list(value.paths)))
    elif name in _WRAPPERS:
        inner = _scalar(files, message.fields_by_name["value"], path)
        yield "", _Values(inner.type, lambda values: inner.array([None if v is None else v.value for v in values]))
    elif name == "confluent.type.Decimal":
        yield "", _decimal(files, field, path)
    else:
        yield "", _struct(files, message, path, above)


def _each(kind: pa.DataType, convert: Callable[[Any], Any]) -> Callable[[list[Any]], pa.Array]:
    return lambda values: pa.array([None if value is None else convert(value) for value in values], kind)


def _scalar(files: _Files, field: FieldDescriptor, path: str) -> _Values:
    if field.full_name in files.enums:
        # Where two names have one number, the first is the value's and the others are aliases.
        by_number = files.pool.FindEnumTypeByName(files.enums[field.full_name]).values
        names = {value.number: value.name for value in reversed(by_number)}
        return _Values(pa.string(), _each(pa.string(), lambda number: names.get(number) or str(number)))
    kind = _SCALARS[field.type]
    if pa.types.is_decimal(kind):
        return _Values(kind, lambda values: pa.array(values, pa.uint64()).cast(kind))
    if not pa.types.is_string(kind):
        return _Values(kind, lambda values: pa.array(values, kind))

    def strings(values: list[Any]) -> pa.Array:
        try:
            return pa.array(values, kind)
        except pa.ArrowInvalid:
            # The protobuf package gives bytes where a proto2 string isn't what it should be.
            raise ValueError(f"Field {path} is not UTF-8") from None

    return _Values(kind, strings)


def _micros(value: Any, path: str) -> int:
    seconds, nanos = value.seconds, value.nanos
    if not (_FIRST_SECOND <= seconds <= _LAST_SECOND and 0 <= nanos < _SECOND_IN_NANOS):
        raise ValueError(f"Field {path} is no time of the years 1 to 9999: {seconds} seconds and {nanos} nanoseconds")
    return int(seconds * 1_000_000 + nanos // 1000)


def _duration(value: Any, path: str) -> Decimal:
    seconds, nanos = value.seconds, value.nanos
    if abs(seconds) > _LONGEST_DURATION or abs(nanos) >= _SECOND_IN_NANOS or seconds * nanos < 0:
        raise ValueError(f"Field {path} is no duration: {seconds} seconds and {nanos} nanoseconds")
    return Decimal(seconds * _SECOND_IN_NANOS + nanos).scaleb(-9)


def _json(value: Any, path: str) -> str:
    try:
        return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    except ValueError:
        raise ValueError(f"Field {path} has a number that JSON can't write: it is infinite, or none") from None


def _plain(value: Any) -> Any:
    name = value.DESCRIPTOR.name
    if name == "Struct":
        return {key: _plain(each) for key, each in value.fields.items()}
    if name == "ListValue":
        return [_plain(each) for each in value.values]
    kind = value.WhichOneof("kind")
    if kind in ("struct_value", "list_value"):
        return _plain(getattr(value, kind))
    if kind == "number_value":
        number = value.number_value
        whole = number.is_integer() and 0 < abs(number) < _EXACT_IN_DOUBLE
        return int(number) if whole else number
    return None if kind in (None, "null_value") else getattr(value, kind)


def _decimal(files: _Files, field: FieldDescriptor, path: str) -> _Values:
    """Return Confluent's decimal as the type that its field declares, as text if it declares none."""
    declared = _declared_decimal(files, field)
    if declared is None:
        return _Values(pa.string(), _each(pa.string(), lambda value: str(Decimal(f"{_unscaled(value)}E{-value.scale}"))))
    kind = pa.decimal128(*declared)

    def convert(value: Any) -> Decimal:
        number = _unscaled(value)
        shift = kind.scale - value.scale
        if number and shift > 0:
            # Beyond the digits of any column it fits none: no need to compute a number of a billion digits.
            number *= 10 ** min(shift, _DECIMAL_DIGITS + 1)
        elif number and shift < 0:
            number, rest = divmod(number, 10 ** min(-shift, 3 * len(value.value) + 1))
            number = 10**_DECIMAL_DIGITS if rest else number
        if abs(number) >= 10**kind.precision:
            raise ValueError(f"Field {path} doesn't fit decimal({kind.precision},{kind.scale})")
        return Decimal(number).scaleb(-kind.scale)

    return _Values(kind, _each(kind, convert))


def _unscaled(value: Any) -> int:
    return int.from_bytes(value.value, "big", signed=True)


def _declared_decimal(files: _Files, field: FieldDescriptor) -> tuple[int, int] | None:
    options = field.GetOptions().SerializeToString()
    if not options:
        return None
    kind = message_factory.GetMessageClass(files.pool.FindMessageTypeByName("google.protobuf.FieldOptions"))
    params = kind.FromString(options).Extensions[files.pool.FindExtensionByName("confluent.field_meta")].params
    precision, scale = (params.get(name, "") for name in ("precision", "scale"))
    if not (precision.isdecimal() and scale.isdecimal() and int(scale) <= int(precision) <= _DECIMAL_DIGITS):
        return None
    return int(precision), int(scale)
