"""Decodes batches of Protobuf messages to a table's columns, by ptars.

ptars accepts some bytes that Google's parser rejects, and reads others differently. So each message is written again
after reading: if the bytes are the same, all parsers agree. Google's protobuf package parses and writes the other
messages, and finds malformed ones; then ptars reads them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import empty_pb2, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto  # type: ignore[import-untyped]
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from kafka_lake.formats.protobuf.task.schema import Schema
from kafka_lake.formats.protobuf.task.values import AMBIGUOUS, Values
from kafka_lake.formats.task.columns import Column
from kafka_lake.formats.task.decoded import MESSAGE, NOTHING, Decoded, Errors, in_order, small_enough
from kafka_lake.formats.task.decoders import ValueDecoder
from kafka_lake.formats.task.error_classes import MALFORMED
from kafka_lake.formats.task.fit import Fit

_FILE, _PACKAGE = "wire.proto", "wire"

# By the class, since a message may have a field of that name.
_missing = empty_pb2.Empty.FindInitializationErrors
_initialized = empty_pb2.Empty.IsInitialized
_discard_unknown = empty_pb2.Empty.DiscardUnknownFields
_serialize = empty_pb2.Empty.SerializePartialToString


class ProtobufDecoder(ValueDecoder):
    """Decodes Protobuf messages of one type, without framing.

    Malformed are bytes that Google's parser rejects, messages without fields that proto2 requires, and messages with
    values that their columns can't hold, such as a time outside of the years 1 to 9999.
    """

    def __init__(
        self, files: bytes, name: str, columns: Sequence[Column], label: str, max_bytes: int | None = None
    ) -> None:
        self._reader = MessageReader(files, name)
        self._fit = Fit(self._reader.type, columns, label)
        self._max_bytes = max_bytes

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values."""
        errors: Errors = {}
        places = small_enough(values, self._max_bytes, errors)
        payloads = values if len(places) == len(values) else values.take(pa.array(places))
        messages, at, failed = self._reader.read(payloads)
        for number, error in failed.items():
            message = f"The bytes don't decode with {self._fit.label}. {error}"
            errors[int(places[number])] = MALFORMED, message[:MESSAGE]
        return self._fit.decoded(messages, places[at], errors, count=len(values), seen=NOTHING)


class MessageReader:
    """Reads messages of one type as structs."""

    def __init__(self, files: bytes, name: str) -> None:
        # An extra: only machines that decode Protobuf have it.
        from ptars import HandlerPool, PtarsConfig

        schema = Schema(files)
        descriptor = schema.pool.FindMessageTypeByName(name)
        self._name = name
        self._struct = schema.struct(descriptor)
        self.type: pa.StructType = self._struct.types[""]
        self._parse = message_factory.GetMessageClass(descriptor).FromString
        file = FileDescriptorProto(name=_FILE, package=_PACKAGE, syntax="proto3")
        main = _describe(self._struct, file)
        pool = DescriptorPool()
        pool.AddSerializedFile(file.SerializeToString())
        handlers = HandlerPool([pool.FindFileByName(_FILE)], PtarsConfig(list_value_name="element"))
        self._handler = handlers.get_for_message(pool.FindMessageTypeByName(f"{_PACKAGE}.{main}"))

    def read(self, payloads: pa.Array) -> tuple[pa.StructArray, np.ndarray, dict[int, str]]:
        """Return messages as structs, the ascending numbers of their payloads, and the errors of the other payloads."""
        made, failed = self._by_ptars(payloads)
        todo = np.array(sorted(failed), dtype=np.int64)
        places = np.delete(np.arange(len(payloads)), todo)
        if not len(todo):
            return made, places, {}
        plain, numbers, errors = self._written_again(payloads, todo)
        others, failed = self._by_ptars(plain)
        errors |= {int(numbers[number]): f"{reason}." for number, reason in failed.items()}
        good = np.delete(numbers, list(failed))
        return *in_order([made, others], [places, good], self.type), errors

    def _by_ptars(self, payloads: pa.Array) -> tuple[pa.StructArray, dict[int, str]]:
        """Return the messages that all parsers read alike, and the reasons of failure of the other payloads."""
        if not len(payloads):
            return pa.nulls(0, self.type), {}
        try:
            batch = self._handler.array_to_record_batch(payloads)
            written = self._handler.record_batch_to_array(batch)
        except BaseException as reason:
            # A panic in Rust is a BaseException without a public name.
            if not isinstance(reason, ValueError) and type(reason).__name__ != "PanicException":
                raise
            if len(payloads) == 1:
                return pa.nulls(0, self.type), {0: "A text in it is not UTF-8, or it can't be read"}
            half = len(payloads) // 2
            (one, failed), (other, rest) = self._by_ptars(payloads[:half]), self._by_ptars(payloads[half:])
            return pa.concat_arrays([one, other]), failed | {half + number: error for number, error in rest.items()}
        (rows,), failed = self._struct.arrays(batch.to_struct_array())
        if not written.equals(payloads):
            unlike = pc.not_equal(payloads, written).to_numpy(zero_copy_only=False)
            failed = dict.fromkeys(np.flatnonzero(unlike).tolist(), AMBIGUOUS) | failed
        if not failed:
            return rows, failed
        good = np.ones(len(rows), dtype=bool)
        good[list(failed)] = False
        return rows.filter(pa.array(good)), failed

    def _written_again(self, payloads: pa.Array, todo: np.ndarray) -> tuple[pa.Array, np.ndarray, dict[int, str]]:
        """Write messages by Google's serializer, without unknown fields; return them, their numbers, and errors."""
        written: list[bytes] = []
        numbers: list[int] = []
        errors: dict[int, str] = {}
        for number, payload in zip(todo.tolist(), payloads.take(pa.array(todo)).to_pylist(), strict=True):
            try:
                message: Any = self._parse(payload)
            except DecodeError:
                errors[number] = f"The bytes do not parse as {self._name}."
                continue
            if not _initialized(message):
                errors[number] = f"Required, but missing: {', '.join(_missing(message))}."
                continue
            _discard_unknown(message)
            written.append(_serialize(message, deterministic=True))
            numbers.append(number)
        return pa.array(written, pa.binary()), np.array(numbers, dtype=np.int64), errors


def _describe(values: Values, file: Any) -> str:
    """Add a message and its nested messages to the file for ptars, and return its name."""
    name = f"M{len(file.message_type)}"
    message = file.message_type.add(name=name)
    for part in values.fields:
        field = message.field.add(name=f"f{part.number}", number=part.number, type=part.values.wire)
        field.label = FieldDescriptorProto.LABEL_REPEATED if part.repeated else FieldDescriptorProto.LABEL_OPTIONAL
        if part.values.wire == FieldDescriptorProto.TYPE_MESSAGE:
            field.type_name = f".{_PACKAGE}.{_describe(part.values, file)}"
        if part.optional:
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_f{part.number}")
    return name
