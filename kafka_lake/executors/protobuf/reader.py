"""Messages of one type become structs: by ptars what is certain, by the protobuf package alone what is left."""

import gc

import numpy as np
import pyarrow as pa
from google.protobuf import empty_pb2, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from kafka_lake.executors.json.decoder import in_order
from kafka_lake.executors.protobuf.fields import struct_of
from kafka_lake.executors.protobuf.model import UnsupportedTypeError
from kafka_lake.executors.protobuf.quick import QuickReader
from kafka_lake.executors.protobuf.schema import load_schema
from kafka_lake.executors.protobuf.strict import strict_reader

# By the class, since a message may have a field of that name.
_discard_unknown = empty_pb2.Empty.DiscardUnknownFields
_serialize = empty_pb2.Empty.SerializePartialToString


def arrow_type(files: bytes, name: str) -> pa.StructType:
    """Return the columns of a message.

    Args:
        files: A serialized FileDescriptorSet, each file after those that it imports.

    Raises:
        UnsupportedTypeError: If there is no such type: the message contains itself, has no fields, or isn't valid.
        KeyError: If the files don't have the message.
    """
    loaded = load_schema(files)
    descriptor = loaded.pool.FindMessageTypeByName(name)
    if not descriptor.fields:
        raise UnsupportedTypeError(f"message {name} has no fields, so its table would have no columns")
    return struct_of(loaded, descriptor, "", ()).types[""]


class MessageReader:
    """Reads messages of one type.

    Args:
        quick: Whether ptars reads what it can; without it the protobuf package reads each message.
    """

    def __init__(self, files: bytes, name: str, quick: bool = True) -> None:
        loaded = load_schema(files)
        descriptor = loaded.pool.FindMessageTypeByName(name)
        struct = struct_of(loaded, descriptor, "", ())
        self.type: pa.StructType = struct.types[""]
        self._parse = message_factory.GetMessageClass(descriptor).FromString
        self._strict = strict_reader(descriptor, struct)
        self._quick = QuickReader(struct) if quick and not loaded.declined else None

    def read(self, payloads: pa.Array) -> tuple[pa.StructArray, np.ndarray, dict[int, str]]:
        """Return the messages as structs, the numbers of their payloads, ascending, and why others are none."""
        collects = gc.isenabled()
        # Reading one by one makes many objects and no cycles; looking for some would take a third of the time.
        gc.disable()
        try:
            return self._read(payloads)
        finally:
            if collects:
                gc.enable()

    def _read(self, payloads: pa.Array) -> tuple[pa.StructArray, np.ndarray, dict[int, str]]:
        todo = np.arange(len(payloads))
        parts: list[pa.StructArray] = []
        places: list[np.ndarray] = []
        if self._quick is not None and len(todo):
            made, certain = self._quick.read(payloads)
            parts, places, todo = [made], [todo[certain]], todo[~certain]
        if self._quick is not None and len(todo):
            plain, numbers = self._plain(payloads.take(pa.array(todo)))
            made, certain = self._quick.read(plain)
            parts, places = [*parts, made], [*places, todo[numbers[certain]]]
            todo = np.delete(todo, numbers[certain])
        errors: dict[int, str] = {}
        if len(todo):
            made, said = self._strict(payloads.take(pa.array(todo)))
            good = np.array([error is None for error in said])
            errors = {int(todo[number]): error for number, error in enumerate(said) if error is not None}
            parts, places = [*parts, made.filter(pa.array(good))], [*places, todo[good]]
        return *in_order(parts, places, self.type), errors

    def _plain(self, payloads: pa.Array) -> tuple[pa.Array, np.ndarray]:
        """Return messages as Google's serializer writes them, without unknown fields, and which ones could be read."""
        written, numbers = [], []
        for number, payload in enumerate(payloads.to_pylist()):
            try:
                message = self._parse(payload)
            except DecodeError:
                continue
            _discard_unknown(message)
            written.append(_serialize(message, deterministic=True))
            numbers.append(number)
        return pa.array(written, pa.binary()), np.array(numbers, dtype=np.int64)
