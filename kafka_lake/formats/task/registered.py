"""Decodes values that begin with the id of their schema in a registry, each by the decoder of its schema."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.task.columns import Column, arrow_type
from kafka_lake.formats.task.decoded import MESSAGE, NOTHING, Decoded, failed_at, in_order, small_enough
from kafka_lake.formats.task.decoders import ValueDecoder
from kafka_lake.formats.task.error_classes import NO_SCHEMA_ID, UNKNOWN_SCHEMA
from kafka_lake.formats.task.fit import Errors

HEADER = 5
"""Bytes before the value: a zero, and the id of the schema as a big-endian number."""
GLUE_STARTS, GLUE_HEADER = (b"\x03\x00", b"\x03\x05"), 18
"""Header of AWS Glue Schema Registry's serializers: a byte 3, a byte for the compression, the schema version's UUID
(https://github.com/awslabs/aws-glue-schema-registry, AWSSchemaRegistryConstants)."""
GLUE_FORMAT = "Written in AWS Glue Schema Registry's format"
GLUE_NOT_READ = (
    "That format is not read. Have the producer write Confluent's wire format, or keep the values with format: bytes."
)
_MOST_UNKNOWN = 200
_TOO_MANY = f"its batch has more than {_MOST_UNKNOWN} unknown schemas"
_MOST_INDEXES, _INDEX_BYTES = 63, 5

Key = tuple[int, bytes]
"""Schema id, and the bytes after it that name a message of a Protobuf schema."""


class RegisteredDecoder(ValueDecoder):
    """Decodes values in the wire format of Confluent's and like registries.

    The format is a zero byte, the id as four bytes, for Protobuf the message's indexes, and the value.
    `Observed.schemas` counts the values of each schema, and of the most frequent unknown ones.

    Args:
        decoders: Decoders of the bytes after the header.
        schemas: The index of each schema's decoder.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        decoders: Sequence[ValueDecoder],
        schemas: Mapping[Key, int],
        refused: Mapping[Key, str],
        protobuf: Sequence[int],
        max_bytes: int | None = None,
    ) -> None:
        self._kind = arrow_type(("struct", tuple(columns)))
        self._decoders, self._schemas, self._refused = decoders, schemas, refused
        self._max_bytes = max_bytes
        self._prefixes: dict[int, list[bytes]] = {id_: [] for id_ in protobuf}
        for id_, prefix in [*schemas, *refused]:
            if prefix:
                self._prefixes[id_].append(prefix)

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values."""
        errors: Errors = {}
        heads = _Heads(values)
        places = small_enough(values, self._max_bytes, errors)
        framed = heads.framed(places)
        for number in places[~framed].tolist():
            errors[number] = NO_SCHEMA_ID, _not_framed(values[number].as_py())
        by_decoder: dict[int, list[tuple[np.ndarray, int]]] = {}
        counts: Counter[str] = Counter()
        unknown: Counter[str] = Counter()
        failed: list[tuple[Key, np.ndarray]] = []
        for key, group in self._groups(heads, places[framed]):
            if key in self._schemas:
                counts[name_of(key)] += len(group)
                by_decoder.setdefault(self._schemas[key], []).append((group, HEADER + len(key[1])))
                continue
            if key not in self._refused:
                unknown[name_of(key)] += len(group)
            failed.append((key, group))
        asked = dict(unknown.most_common(_MOST_UNKNOWN))
        for key, group in failed:
            was_asked = key in self._refused or name_of(key) in asked
            reason = self._reason(key) if was_asked else f"Schema id {key[0]} wasn't looked up: {_TOO_MANY}."
            errors |= dict.fromkeys(group.tolist(), (UNKNOWN_SCHEMA, reason[:MESSAGE]))
        parts = [self._part(heads, number, groups) for number, groups in by_decoder.items()]
        return self._together(parts, errors, len(values), {**counts, **asked})

    def _groups(self, heads: "_Heads", places: np.ndarray) -> list[tuple[Key, np.ndarray]]:
        """Return the places of the values of each schema."""
        ids = heads.ids(places)
        groups: list[tuple[Key, np.ndarray]] = []
        for id_ in np.unique(ids).tolist():
            of_id = places[ids == id_]
            groups += self._messages(heads, id_, of_id) if id_ in self._prefixes else [((id_, b""), of_id)]
        return groups

    def _messages(self, heads: "_Heads", id_: int, places: np.ndarray) -> list[tuple[Key, np.ndarray]]:
        """Return the places of the values of each Protobuf message; the prefix is empty for values that name none."""
        groups: list[tuple[Key, np.ndarray]] = []
        prefixes = list(self._prefixes[id_])
        while len(places):
            prefix = prefixes.pop(0) if prefixes else index_prefix(heads.behind(int(places[0])))
            if prefix is None:
                break
            same = heads.begin_with(places, prefix)
            if same.any():
                groups.append(((id_, prefix), places[same]))
                places = places[~same]
        rest: dict[bytes, list[int]] = {}
        for place in places.tolist():
            rest.setdefault(index_prefix(heads.behind(place)) or b"", []).append(place)
        return [*groups, *(((id_, prefix), np.array(group)) for prefix, group in rest.items())]

    def _reason(self, key: Key) -> str:
        id_, prefix = key
        reason = self._refused.get(key) or self._refused.get((id_, b""))
        if reason:
            return f"{reason[0].upper()}{reason[1:].rstrip('.')}."
        if id_ not in self._prefixes:
            # If the registry has the schema, the pass is repeated and this message isn't stored.
            return f"{no_schema(id_)}."
        if not prefix:
            return f"No message indexes of Protobuf follow schema id {id_}."
        return f"Schema id {id_} has no message with the indexes {prefix.hex()} that can be read."

    def _part(self, heads: "_Heads", number: int, groups: list[tuple[np.ndarray, int]]) -> tuple[Decoded, np.ndarray]:
        """Decode the values of one decoder; return the result and their places."""
        places = np.concatenate([group for group, _ in groups])
        skipped = np.concatenate([np.full(len(group), skip) for group, skip in groups])
        if len(groups) > 1:
            order = np.argsort(places)
            places, skipped = places[order], skipped[order]
        return self._decoders[number].decode(heads.payloads(places, skipped)), places

    def _together(
        self, parts: list[tuple[Decoded, np.ndarray]], errors: Errors, count: int, schemas: Mapping[str, int]
    ) -> Decoded:
        seen = NOTHING
        for decoded, _ in parts:
            seen = seen.and_(decoded.seen)
        seen = replace(seen, schemas=schemas)
        if len(parts) == 1 and len(parts[0][1]) == count:
            return replace(parts[0][0], seen=seen)
        made, places = in_order([d.made for d, _ in parts], [places[d.places] for d, places in parts], self._kind)
        for decoded, places_of_part in parts:
            if decoded.error_class.null_count < len(decoded.error_class):
                errors |= _errors_of(decoded, places_of_part)
        return Decoded(made, places, *failed_at(errors, count), seen)


def _errors_of(decoded: Decoded, places: np.ndarray) -> Errors:
    failed = np.flatnonzero(pc.is_valid(decoded.error_class).to_numpy(zero_copy_only=False))
    at = pa.array(failed)
    reasons = zip(decoded.error_class.take(at).to_pylist(), decoded.error_message.take(at).to_pylist(), strict=True)
    return dict(zip(places[failed].tolist(), reasons, strict=True))


class _Heads:
    """The first bytes of a batch's values."""

    def __init__(self, values: pa.BinaryArray) -> None:
        _, offsets, content = values.buffers()
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        self._values, self._begins, self._sizes = values, ends[:-1], np.diff(ends)
        self._content = content or pa.py_buffer(b"")
        self._bytes = np.frombuffer(self._content, np.uint8)

    def framed(self, places: np.ndarray) -> np.ndarray:
        """Return which values begin with a zero byte and have four more bytes."""
        found: np.ndarray = self._sizes[places] >= HEADER
        found[found] = self._byte(places[found], 0) == 0
        return found

    def ids(self, places: np.ndarray) -> np.ndarray:
        """Return the schema ids of framed values."""
        found = np.zeros(len(places), dtype=np.int64)
        for number in range(1, HEADER):
            found = found << 8 | self._byte(places, number)
        return found

    def begin_with(self, places: np.ndarray, prefix: bytes) -> np.ndarray:
        """Return which values have a prefix after the id."""
        found: np.ndarray = self._sizes[places] >= HEADER + len(prefix)
        for number, byte in enumerate(prefix, HEADER):
            found[found] = self._byte(places[found], number) == byte
        return found

    def behind(self, place: int) -> bytes:
        """Return the bytes after a value's id, at most as many as message indexes can have."""
        content: bytes = (
            self._values[place].as_buffer()[HEADER : HEADER + 1 + _MOST_INDEXES * _INDEX_BYTES].to_pybytes()
        )
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

    def _byte(self, places: np.ndarray, number: int) -> np.ndarray:
        found: np.ndarray = self._bytes[self._begins[places] + number]
        return found


def no_schema(id_: int) -> str:
    """Return the reason for an id that the registry doesn't have."""
    return f"The registry has no schema id {id_}"


def name_of(key: Key) -> str:
    """Return the name of a schema in `Observed.schemas`.

    >>> name_of((7, b"")), name_of((7, bytes([4, 2, 0])))
    ('7', '7:040200')
    """
    id_, prefix = key
    return f"{id_}:{prefix.hex()}" if prefix else f"{id_}"


def key_of(name: str) -> Key:
    """Return the schema of a name."""
    id_, _, prefix = name.partition(":")
    return int(id_), bytes.fromhex(prefix)


def message_indexes(prefix: bytes) -> tuple[tuple[int, ...], int]:
    r"""Return the message indexes at the start of some bytes, and how many bytes they take.

    Confluent's format: the number of indexes, then each index, as zigzag varints; ``[0]``, the most frequent, is one 0
    (https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format).

    Raises:
        ValueError: If there are none.

    >>> message_indexes(b"\x00rest"), message_indexes(b"\x04\x02\x00rest")
    (((0,), 1), ((1, 0), 3))
    """
    count, end = _index(prefix, 0)
    if count > _MOST_INDEXES:
        raise ValueError(f"No message indexes: {count} are more levels than messages can have.")
    indexes = []
    for _ in range(count):
        index, end = _index(prefix, end)
        indexes.append(index)
    return tuple(indexes) or (0,), end


def index_prefix(behind: bytes) -> bytes | None:
    """Return the bytes of the message indexes at the start of some bytes; None if there are none."""
    try:
        return behind[: message_indexes(behind)[1]]
    except ValueError:
        return None


def _index(raw: bytes, start: int) -> tuple[int, int]:
    """Return the non-negative zigzag varint at a place, and where it ends."""
    number = 0
    for shift, byte in enumerate(raw[start : start + _INDEX_BYTES]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            if number & 1:
                break
            return number >> 1, start + shift + 1
    raise ValueError(f"No message indexes: {raw[: start + _INDEX_BYTES].hex(' ')}")


def _not_framed(value: bytes) -> str:
    if len(value) >= GLUE_HEADER and value.startswith(GLUE_STARTS):
        digits = value[2:GLUE_HEADER].hex()
        version = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return f"{GLUE_FORMAT}, schema version {version}. {GLUE_NOT_READ}"
    return f"The value begins with 0x{value[:HEADER].hex().upper()}."
