"""Where a record's schema id is: the wire formats of schema registries.

A new wire format is one entry of `FRAMINGS`. Ids in headers and compressed contents are first brought into that form.
"""

import uuid
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.task.error_classes import MALFORMED, NO_SCHEMA_ID, TOO_LARGE
from kafka_lake.formats.task.fit import Errors

SchemaId = int | str
"""A number in Confluent's format; else text with the kind of the id: ``guid 4c1f…``."""
Message = tuple[int, ...] | int
"""A message of a Protobuf schema: indexes from the outermost message, or its number in the order of full names."""
_MOST_INDEXES, _VARINT_BYTES = 63, 5
_LONGEST_MESSAGE = 1 + _MOST_INDEXES * _VARINT_BYTES
_UUID_BYTES = 16
_HEADER_SHOWN = 24


def message_indexes(content: bytes) -> tuple[tuple[int, ...], int]:
    r"""Return the message indexes at the start of a content, and how many bytes they take.

    Confluent's format: the number of indexes, then each index, as zigzag varints; ``[0]``, the most frequent, is one 0
    (https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format).

    Raises:
        ValueError: If there are none.

    >>> message_indexes(b"\x00rest"), message_indexes(b"\x04\x02\x00rest")
    (((0,), 1), ((1, 0), 3))
    """
    count, end = _zigzag(content, 0)
    if count > _MOST_INDEXES:
        raise ValueError(f"No message indexes: {count} are more levels than messages can have.")
    indexes = []
    for _ in range(count):
        index, end = _zigzag(content, end)
        indexes.append(index)
    return tuple(indexes) or (0,), end


def message_number(content: bytes) -> tuple[int, int]:
    r"""Return the message's number at the start of a content of AWS Glue's serializer, and how many bytes it takes.

    It is a varint (https://github.com/awslabs/aws-glue-schema-registry, ProtobufWireFormatEncoder).

    >>> message_number(b"\x00rest"), message_number(b"\xac\x02rest")
    ((0, 1), (300, 2))
    """
    return _varint(content, 0)


def _zigzag(raw: bytes, start: int) -> tuple[int, int]:
    number, end = _varint(raw, start)
    if number & 1:
        raise ValueError(f"No message indexes: {raw[: start + _VARINT_BYTES].hex(' ')}")
    return number >> 1, end


def _varint(raw: bytes, start: int) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(raw[start : start + _VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, start + shift + 1
    raise ValueError(f"No message indexes: {raw[: start + _VARINT_BYTES].hex(' ')}")


@dataclass(frozen=True)
class Framing:
    """Schema ids at the start of values.

    Args:
        kind: The kind of its ids; empty for Confluent's numbers.
        starts: The first bytes of values, of one length. The first is that of values whose content isn't compressed.
        size: Bytes before the content: the start and the id.
        message: Returns which message of a Protobuf schema a content is, and how many of its bytes say so; raises
            ValueError if there are none. None if contents in Protobuf aren't read.
    """

    kind: str
    starts: tuple[bytes, ...]
    size: int
    message: Callable[[bytes], tuple[Message, int]] | None

    def id_of(self, value: bytes) -> SchemaId | None:
        """Return the schema id of a value; None if the value isn't of this framing."""
        raw = value[len(self.starts[0]) : self.size]
        if len(value) < self.size or not value.startswith(self.starts) or not any(raw):
            return None
        if not self.kind:
            return int.from_bytes(raw)
        return f"{self.kind} {uuid.UUID(bytes=raw) if len(raw) == _UUID_BYTES else int.from_bytes(raw)}"

    def prefix(self, content: bytes) -> bytes | None:
        """Return the bytes at the start of a content that name its Protobuf message; None if there are none."""
        try:
            return content[: self.message(content)[1]] if self.message else None
        except ValueError:
            return None


CONFLUENT = Framing("", (b"\x00",), 5, message_indexes)
GUID = Framing("guid", (b"\x01",), 17, message_indexes)
GLUE = Framing("version", (b"\x03\x00", b"\x03\x05"), 18, message_number)
"""AWS Glue's: a byte 3, a byte for the compression, the UUID of the schema version
(https://github.com/awslabs/aws-glue-schema-registry, AWSSchemaRegistryConstants)."""
EIGHT_BYTES = Framing("8-byte id", (b"\x00\x00\x00\x00\x00",), 9, None)
"""Apicurio's: an id of eight bytes, of which the first four are zero: such ids don't exist in Confluent's format
(https://github.com/Apicurio/apicurio-registry, Legacy8ByteIdHandler)."""
# No serializer writes these: they stand for headers.
GLOBAL_ID = Framing("globalId", (b"\xffglobalId",), 17, None)
CONTENT_ID = Framing("contentId", (b"\xffcontentId",), 18, None)
FRAMINGS: tuple[Framing, ...] = (CONFLUENT, GUID, GLUE, EIGHT_BYTES, GLOBAL_ID, CONTENT_ID)
"""All framings, the most frequent one first. A value is of the first that takes it."""
_COMPRESSED = GLUE.starts[1]
"""Start of Glue's values whose content is in zlib's format."""
_MOST_INFLATED = 2**30
"""Bytes of a batch: Arrow's offsets have 31 bits."""


def framing_of(id_: SchemaId) -> Framing:
    """Return the framing of an id."""
    kind = id_.rpartition(" ")[0] if isinstance(id_, str) else ""
    return next(framing for framing in FRAMINGS if framing.kind == kind)


class IdHeader(NamedTuple):
    """A header with a schema id.

    Args:
        name: Its name, with ``{}`` for key or value.
        start: What makes, with the header's value behind it, the start of a value.
        framings: What such a value may be.
    """

    name: str
    start: bytes
    framings: tuple[Framing, ...]

    def prefix(self, raw: bytes, plain: Container[SchemaId] = ()) -> bytes | None:
        """Return what to put before a value; None if the header is damaged.

        Args:
            plain: Ids of schemas that aren't Protobuf, behind which nothing names a message.
        """
        value = self.start + raw
        for framing in self.framings:
            if (id_ := framing.id_of(value)) is not None:
                rest = value[framing.size :]
                return value if not rest or (id_ not in plain and framing.prefix(rest) == rest) else None
        return None


_CONFLUENT_HEADERS = (IdHeader("__{}_schema_id", b"", (CONFLUENT, GUID)),)
_APICURIO_HEADERS = (
    IdHeader("apicurio.{}.globalId", GLOBAL_ID.starts[0], (GLOBAL_ID,)),
    IdHeader("apicurio.{}.contentId", CONTENT_ID.starts[0], (CONTENT_ID,)),
)
ID_HEADERS: Mapping[str, tuple[IdHeader, ...]] = {
    "confluent": _CONFLUENT_HEADERS,
    "apicurio": _APICURIO_HEADERS,
    "glue": (),
    "": (*_CONFLUENT_HEADERS, *_APICURIO_HEADERS),
}
"""The headers that serializers write instead of ids before values, by the kind of the registry; empty if unknown.

They are those of Confluent's HeaderSchemaIdSerializer and of Apicurio's DefaultHeadersHandler. Kafka Streams forwards
headers, so those of another registry may stand beside values with an id.
"""


def bad_header(name: str, raw: bytes) -> str:
    """Return the message about a damaged header."""
    return f"The header {name} has no schema id: its value is 0x{raw[:_HEADER_SHOWN].hex().upper()}."


def prefixed(value: bytes, headers: Iterable[tuple[str, bytes | None]] | None, part: str, registry_kind: str) -> bytes:
    """Return a value with the id before it that a header has; raises ValueError if the header is damaged."""
    # Of several headers with one name, the last one counts.
    raws = dict(headers or ())
    for header in reversed(ID_HEADERS[registry_kind]):
        if (name := header.name.format(part)) in raws:
            raw = raws[name] or b""
            if (start := header.prefix(raw)) is None:
                raise ValueError(bad_header(name, raw))
            return start + value
    return value


def framed(value: bytes) -> tuple[SchemaId, bytes] | None:
    r"""Return the schema id and the content of a value or key, after `prefixed`; None for one in no framing.

    Raises:
        ValueError: If the compressed content is damaged.
        OverflowError: If it is too large.

    >>> framed(b"\x00\x00\x00\x00\x07content"), framed(b"{}")
    ((7, b'content'), None)
    """
    value = inflated(value)
    for framing in FRAMINGS:
        if (id_ := framing.id_of(value)) is not None:
            return id_, value[framing.size :]
    return None


def inflated(value: bytes, limit: int = _MOST_INFLATED) -> bytes:
    """Return a compressed value as one that isn't; other values as they are.

    Raises:
        ValueError: If the content is damaged.
        OverflowError: If it has more bytes than the limit.
    """
    if not value.startswith(_COMPRESSED) or len(value) < GLUE.size:
        return value
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(value[GLUE.size :], limit + 1)
    except zlib.error as error:
        raise ValueError(f"The compressed content is damaged: {error}.") from None
    if len(content) > limit:
        raise OverflowError(f"The content has more than {limit} bytes uncompressed.")
    if not stream.eof or stream.unused_data:
        raise ValueError("The compressed content is damaged: it is cut off, or has trailing bytes.")
    return GLUE.starts[0] + value[len(_COMPRESSED) : GLUE.size] + content


class Frame(NamedTuple):
    """The values of a batch with one schema id."""

    id: SchemaId
    places: np.ndarray


def frames_of(
    values: pa.BinaryArray, places: np.ndarray, limit: int | None, errors: Errors, batch_limit: int = _MOST_INFLATED
) -> tuple["Heads", list[Frame], np.ndarray]:
    """Return the heads of values, compressed ones uncompressed, the values of each schema, and the places of the rest.

    Args:
        limit: Maximum size of an uncompressed value.
        errors: Gets the errors of compressed values.
        batch_limit: Maximum size of all uncompressed values.
    """
    heads = Heads(values)
    frames, rest = heads.frames(places)
    packed = rest[heads.begin_with(rest, _COMPRESSED, GLUE.size)]
    if not len(packed):
        return heads, frames, rest
    left, replaced = batch_limit, {}
    for place in packed.tolist():
        try:
            replaced[place] = inflated(values[place].as_py(), min(left, limit or left))
            left = max(0, left - len(replaced[place]))
        except ValueError as error:
            errors[place] = MALFORMED, str(error)
        except OverflowError as error:
            of_batch = f"The values of its batch have more than {batch_limit} bytes uncompressed."
            errors[place] = TOO_LARGE, of_batch if left < (limit or batch_limit) else str(error)
    mask = np.zeros(len(values), dtype=bool)
    mask[list(replaced)] = True
    heads = Heads(pc.replace_with_mask(values, pa.array(mask), pa.array(replaced.values(), pa.binary())))
    return heads, *heads.frames(np.array([place for place in places.tolist() if place not in errors], dtype=np.int64))


def with_header_ids(
    values: pa.BinaryArray,
    headers: pa.ListArray,
    places: np.ndarray,
    *,
    part: str,
    registry_kind: str,
    plain: Container[SchemaId],
    errors: Errors,
) -> tuple[pa.BinaryArray, np.ndarray]:
    """Return values with the ids before them that headers have, and the places of those without a damaged header.

    Args:
        errors: Gets the errors of damaged headers.
    """
    flat = headers.flatten()
    names = pc.struct_field(flat, "key")
    starts: list[bytes | None] = []
    numbers = np.full(len(values), -1)
    for header in ID_HEADERS[registry_kind]:
        name = header.name.format(part)
        at = np.flatnonzero(pc.fill_null(pc.equal(names, name), False).to_numpy(zero_copy_only=False))
        if not len(at):
            continue
        coded = pc.fill_null(pc.struct_field(flat, "value").take(pa.array(at)), b"").dictionary_encode()
        parents = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)[at]
        # Of several headers with one name, the last one counts.
        numbers[parents] = len(starts) + coded.indices.to_numpy(zero_copy_only=False)
        raws = coded.dictionary.to_pylist()
        starts += [header.prefix(raw, plain) for raw in raws]
        for number, raw in enumerate(raws, len(starts) - len(raws)):
            if starts[number] is None:
                damaged = places[numbers[places] == number]
                errors |= dict.fromkeys(damaged.tolist(), (NO_SCHEMA_ID, bad_header(name, raw)))
                places = places[numbers[places] != number]
    found = places[numbers[places] >= 0]
    if not len(found):
        return values, places
    mask = np.zeros(len(values), dtype=bool)
    mask[found] = True
    before = pa.array(starts, pa.binary()).take(pa.array(numbers[found]))
    joined = pc.binary_join_element_wise(before, values.take(pa.array(found)), b"")
    return pc.replace_with_mask(values, pa.array(mask), joined), places


class Heads:
    """The first bytes of a batch's values."""

    def __init__(self, values: pa.BinaryArray) -> None:
        _, offsets, content = values.buffers()
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        self._values, self._begins, self._sizes = values, ends[:-1], np.diff(ends)
        self._content = content or pa.py_buffer(b"")
        self._bytes = np.frombuffer(self._content, np.uint8)

    def frames(self, places: np.ndarray) -> tuple[list[Frame], np.ndarray]:
        """Return the values of each schema id, and the places of values without one."""
        found: list[Frame] = []
        for framing in FRAMINGS:
            if not len(places):
                break
            fits = self.begin_with(places, framing.starts[0], framing.size)
            rest = [places[~fits]]
            for id_, group in self._ids(places[fits], framing):
                if id_ is None:
                    rest.append(group)
                else:
                    found.append(Frame(id_, group))
            places = np.concatenate(rest)
        return found, places

    def _ids(self, places: np.ndarray, framing: Framing) -> Iterator[tuple[SchemaId | None, np.ndarray]]:
        if not len(places):
            return
        at = np.arange(len(framing.starts[0]), framing.size)
        raw = self._bytes[self._begins[places][:, np.newaxis] + at]
        ids = raw.view(np.uint32 if len(at) == np.uint32().nbytes else f"S{len(at)}").ravel()
        for id_ in np.unique(ids):
            group = places[ids == id_]
            yield framing.id_of(self._values[int(group[0])].as_buffer()[: framing.size].to_pybytes()), group

    def begin_with(self, places: np.ndarray, prefix: bytes, size: int, skipped: int = 0) -> np.ndarray:
        """Return which values have a prefix after some skipped bytes, and at least ``size`` bytes."""
        found: np.ndarray = self._sizes[places] >= size
        for number, byte in enumerate(prefix, skipped):
            found[found] = self._bytes[self._begins[places[found]] + number] == byte
        return found

    def behind(self, place: int, skipped: int) -> bytes:
        """Return the bytes after a value's id, at most as many as name a message."""
        content: bytes = self._values[place].as_buffer()[skipped : skipped + _LONGEST_MESSAGE].to_pybytes()
        return content

    def payloads(self, places: np.ndarray, skipped: np.ndarray) -> pa.Array:
        """Return values without some of their first bytes."""
        begins = self._begins[places] + skipped
        ends = self._begins[places] + self._sizes[places]
        # Every second element is a value, the others are the bytes between values.
        offsets = np.empty(2 * len(places), np.int32)
        offsets[0::2], offsets[1::2] = begins, ends
        buffers = [None, pa.py_buffer(offsets), self._content]
        whole = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        return whole.take(pa.array(np.arange(0, len(offsets), 2)))
