"""Values that are read one by one: ptars leaves their messages as bytes, which the protobuf package parses."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import empty_pb2, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from kafka_lake.executors.protobuf.model import Doubts, Values, Wire, where

# By the class, since a message may have a method's name as that of a field.
_initialized = empty_pb2.Empty.IsInitialized


def each_as(descriptor: Descriptor, kind: pa.DataType, convert: Callable[[Any], Any]) -> Values:
    """Return values of which each message is converted.

    Parsers refuse messages more than 100 deep. Of messages that ptars leaves as bytes, the depth counts from here.

    Args:
        kind: The type of the result.
        convert: From a message to its value; raises ValueError if it has none.
    """
    parse = message_factory.GetMessageClass(descriptor).FromString

    def converted(payload: bytes) -> Any:
        message = parse(payload)
        if not _initialized(message):
            raise ValueError("A required field is missing")
        return convert(message)

    def wired(payloads: pa.Array) -> tuple[list[pa.Array], Doubts]:
        values, doubtful = [], np.zeros(len(payloads), dtype=bool)
        for number, payload in enumerate(payloads.to_pylist()):
            value = None
            if payload is not None:
                try:
                    value = converted(payload)
                except (DecodeError, ValueError):
                    doubtful[number] = True
            values.append(value)
        return [pa.array(values, kind)], where(doubtful)

    return Values({"": kind}, lambda values: [_array(values, kind, convert)], Wire(FieldDescriptor.TYPE_BYTES, wired))


def _array(values: Sequence[Any], kind: pa.DataType, convert: Callable[[Any], Any]) -> pa.Array:
    return pa.array([None if value is None else convert(value) for value in values], kind)


def presence_as(value: Any, kind: pa.DataType) -> Values:
    """Return values of messages without fields, which say nothing but that they are set."""

    def wired(payloads: pa.Array) -> tuple[list[pa.Array], Doubts]:
        # Bytes in it are unknown fields.
        filled = pc.fill_null(pc.binary_length(payloads), 0).to_numpy(zero_copy_only=False) > 0
        return [_there(payloads.is_valid(), value, kind)], where(filled)

    return Values(
        {"": kind}, lambda values: [_array(values, kind, lambda _: value)], Wire(FieldDescriptor.TYPE_BYTES, wired)
    )


def _there(valid: pa.Array, value: Any, kind: pa.DataType) -> pa.Array:
    return pa.array([value, None], kind).take(pc.if_else(valid, 0, 1))
