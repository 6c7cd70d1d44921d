"""A batch of messages becomes one Arrow array; a message with a value that fits no column is null, with its reason."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from google.protobuf import empty_pb2, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from kafka_lake.executors.protobuf.fields import struct_of
from kafka_lake.executors.protobuf.model import UnsupportedTypeError, Values
from kafka_lake.executors.protobuf.schema import has_required, load_schema

# By the class, since a message may have a field of that name.
_missing = empty_pb2.Empty.FindInitializationErrors
_initialized = empty_pb2.Empty.IsInitialized


def arrow_type(files: bytes, name: str) -> pa.StructType:
    """Return the columns of a message.

    Args:
        files: A serialized FileDescriptorSet, each file after those that it imports.
        name: The message's full name.

    Raises:
        UnsupportedTypeError: If there is no such type: the message contains itself, has no fields, or isn't valid.
        KeyError: If the files don't have the message.
    """
    loaded = load_schema(files)
    descriptor = loaded.pool.FindMessageTypeByName(name)
    if not descriptor.fields:
        raise UnsupportedTypeError(f"message {name} has no fields, so its table would have no columns")
    return struct_of(loaded, descriptor, "", ()).types[""]


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
    loaded = load_schema(files)
    descriptor = loaded.pool.FindMessageTypeByName(name)
    parse = message_factory.GetMessageClass(descriptor).FromString
    struct = struct_of(loaded, descriptor, "", ())
    needs_check = has_required(descriptor, set())

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


def _convert(struct: Values, messages: list[Any], errors: list[str | None], start: int) -> Iterator[pa.Array]:
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
