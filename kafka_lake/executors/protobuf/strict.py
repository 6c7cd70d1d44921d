"""Messages as the protobuf package reads them; one with a value that fits no column fails with its reason."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from google.protobuf import empty_pb2, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from kafka_lake.executors.protobuf.model import Values
from kafka_lake.executors.protobuf.schema import has_required

# By the class, since a message may have a field of that name.
_missing = empty_pb2.Empty.FindInitializationErrors
_initialized = empty_pb2.Empty.IsInitialized


Read = tuple[pa.StructArray, list[str | None]]
"""Structs, null where a message is none, and why it is none."""


def strict_reader(descriptor: Descriptor, struct: Values) -> Callable[[pa.Array], Read]:
    """Return a function that reads messages' bytes one by one.

    Args:
        struct: How it becomes a struct.
    """
    parse = message_factory.GetMessageClass(descriptor).FromString
    needs_check = has_required(descriptor, set())

    def read(payloads: pa.Array) -> Read:
        messages: list[Any] = []
        errors: list[str | None] = []
        for payload in payloads.to_pylist():
            message = error = None
            try:
                message = parse(payload)
                if needs_check and not _initialized(message):
                    error = f"Required, but missing: {', '.join(_missing(message))}."
                    message = None
            except DecodeError:
                error = f"The bytes do not parse as {descriptor.full_name}."
            messages.append(message)
            errors.append(error)
        return pa.concat_arrays(list(_convert(struct, messages, errors, 0))), errors

    return read


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
