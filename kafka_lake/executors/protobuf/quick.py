"""Messages as ptars reads them, a batch at once: those alone of which it is certain that all parsers agree.

ptars takes some bytes that Google's parser refuses, and reads some otherwise. So each message that it read is written
again: bytes that come out as they went in are the plain serialization of what was read, and mean the same to everyone.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]

from kafka_lake.executors.protobuf.model import Values, Wire

_FILE, _PACKAGE = "wire.proto", "wire"
_NEAR = 64
"""Messages that are left to the protobuf package together where ptars can't read one of them."""


class QuickReader:
    """Reads messages by ptars.

    Args:
        struct: How the message becomes a struct.
    """

    def __init__(self, struct: Values) -> None:
        # Of an extra, which only machines that decode Protobuf need.
        from ptars import HandlerPool, PtarsConfig

        file = FileDescriptorProto(name=_FILE, package=_PACKAGE, syntax="proto3")
        name = _describe(struct.wire, file)
        pool = DescriptorPool()
        pool.AddSerializedFile(file.SerializeToString())
        handlers = HandlerPool([pool.FindFileByName(_FILE)], PtarsConfig(list_value_name="element"))
        self._handler = handlers.get_for_message(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        self._struct = struct

    def read(self, payloads: pa.Array) -> tuple[pa.StructArray, np.ndarray]:
        """Return the messages that it is certain of, in their order, and which of the payloads those are."""
        batch = self._parsed(payloads)
        if batch is None:
            return self._apart(payloads)
        made, written = batch
        (rows,), doubts = self._struct.wire.arrays(made)
        certain = _same(payloads, written)
        if doubts is not None:
            certain &= ~doubts
        return rows if certain.all() else rows.filter(pa.array(certain)), certain

    def _apart(self, payloads: pa.Array) -> tuple[pa.StructArray, np.ndarray]:
        """Return what `read` does, without the messages near one that ptars can't read."""
        starts = range(0, len(payloads), _NEAR)
        can = np.repeat([self._parsed(payloads[start : start + _NEAR]) is not None for start in starts], _NEAR)
        can = can[: len(payloads)]
        if can.all() or not can.any():
            return pa.nulls(0, self._struct.types[""]), np.zeros(len(payloads), dtype=bool)
        rows, certain = self.read(payloads.filter(pa.array(can)))
        can[can] = certain
        return rows, can

    def _parsed(self, payloads: pa.Array) -> tuple[pa.StructArray, pa.Array] | None:
        """Return what ptars reads, and what it makes of that; None if it can't read one of the messages."""
        try:
            batch = self._handler.array_to_record_batch(payloads)
            return batch.to_struct_array(), self._handler.record_batch_to_array(batch)
        except ValueError:
            return None
        except BaseException as reason:
            # What a panic of Rust's raises is a BaseException without a public name.
            if type(reason).__name__ != "PanicException":
                raise
            return None


def _same(payloads: pa.Array, written: pa.Array) -> np.ndarray:
    if written.equals(payloads):
        return np.ones(len(payloads), dtype=bool)
    same: np.ndarray = pc.equal(payloads, written).to_numpy(zero_copy_only=False)
    return same


def _describe(wire: Wire, file: Any) -> str:
    """Add a message with all messages in it to a file, and return its name."""
    name = f"M{len(file.message_type)}"
    message: DescriptorProto = file.message_type.add(name=name)
    for each in wire.fields:
        field = message.field.add(name=f"f{each.number}", number=each.number, type=each.wire.type)
        field.label = FieldDescriptorProto.LABEL_REPEATED if each.repeated else FieldDescriptorProto.LABEL_OPTIONAL
        if each.wire.type == FieldDescriptorProto.TYPE_MESSAGE:
            field.type_name = f".{_PACKAGE}.{_describe(each.wire, file)}"
        if each.optional:
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_f{each.number}")
    return name
