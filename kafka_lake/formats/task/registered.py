"""Decodes values that begin with the id of their schema in a registry, each by the decoder of its schema."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.task.columns import Column, arrow_type
from kafka_lake.formats.task.decoded import MESSAGE, NOTHING, Decoded, failed_at, in_order, small_enough
from kafka_lake.formats.task.decoders import ValueDecoder
from kafka_lake.formats.task.error_classes import NO_SCHEMA_ID, UNKNOWN_SCHEMA
from kafka_lake.formats.task.fit import Errors
from kafka_lake.formats.task.framing import Frame, Heads, SchemaId, frames_of, framing_of, with_header_ids

APICURIO_PROTOBUF = (
    "Have Apicurio's serializer write Confluent's format: apicurio.registry.headers.enabled=false, "
    "apicurio.registry.serde.send-type-ref=false, apicurio.registry.serde.send-indexes=true"
)
_MOST_UNKNOWN = 200
_TOO_MANY = f"its batch has more than {_MOST_UNKNOWN} unknown schemas"

Key = tuple[SchemaId, bytes]
"""Schema id, and the bytes after it that name a message of a Protobuf schema."""


class RegisteredDecoder(ValueDecoder):
    """Decodes values in the wire formats of schema registries, see `kafka_lake.formats.task.framing`.

    `Observed.schemas` counts the values of each schema, and of the most frequent unknown ones.

    Args:
        decoders: Decoders of the bytes after the header.
        schemas: The index of each schema's decoder.
        registry_kind: The kind of the registry: it decides which headers have ids.
        part: What is decoded: ``value`` or ``key``.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        decoders: Sequence[ValueDecoder],
        schemas: Mapping[Key, int],
        refused: Mapping[Key, str],
        protobuf: Sequence[SchemaId],
        registry_kind: str,
        part: str = "value",
        max_bytes: int | None = None,
    ) -> None:
        self._kind = arrow_type(("struct", tuple(columns)))
        self._decoders, self._schemas, self._refused = decoders, schemas, refused
        self._max_bytes = max_bytes
        plain = frozenset(id_ for id_, prefix in schemas if not prefix)
        self._with_header_ids = partial(with_header_ids, part=part, registry_kind=registry_kind, plain=plain)
        self._prefixes: dict[SchemaId, list[bytes]] = {id_: [] for id_ in protobuf}
        for id_, prefix in [*schemas, *refused]:
            if prefix:
                self._prefixes[id_].append(prefix)

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values."""
        return self.decode_framed(values, None)[0]

    def decode_records(self, batch: pa.RecordBatch) -> Decoded:
        """Decode records by their columns ``value`` and ``headers``."""
        return self.decode_framed(batch.column("value"), headers_of(batch))[0]

    def decode_framed(self, values: pa.BinaryArray, headers: pa.ListArray | None) -> tuple[Decoded, list[Frame]]:
        """Decode values; return the values of each schema, too."""
        errors: Errors = {}
        places = small_enough(values, self._max_bytes, errors)
        if headers is not None:
            values, places = self._with_header_ids(values, headers, places, errors=errors)
        heads, frames, rest = frames_of(values, places, self._max_bytes, errors)
        for number in rest.tolist():
            errors[number] = NO_SCHEMA_ID, f"The value begins with 0x{heads.behind(number, 0)[:5].hex().upper()}."
        by_decoder: dict[int, list[tuple[np.ndarray, int]]] = {}
        counts: Counter[str] = Counter()
        unknown: Counter[str] = Counter()
        failed: list[tuple[Key, np.ndarray]] = []
        for key, group in (found for frame in frames for found in self._messages(heads, frame)):
            if key in self._schemas:
                counts[name_of(key)] += len(group)
                skipped = framing_of(key[0]).size + len(key[1])
                by_decoder.setdefault(self._schemas[key], []).append((group, skipped))
                continue
            if key not in self._refused:
                unknown[name_of(key)] += len(group)
            failed.append((key, group))
        asked = dict(unknown.most_common(_MOST_UNKNOWN))
        for key, group in failed:
            was_asked = key in self._refused or name_of(key) in asked
            reason = self._reason(key) if was_asked else f"{schema_label(key[0])} wasn't looked up: {_TOO_MANY}."
            errors |= dict.fromkeys(group.tolist(), (UNKNOWN_SCHEMA, reason[:MESSAGE]))
        parts = [self._part(heads, number, groups) for number, groups in by_decoder.items()]
        return self._together(parts, errors, len(values), {**counts, **asked}), frames

    def _messages(self, heads: Heads, frame: Frame) -> list[tuple[Key, np.ndarray]]:
        """Return the places of the values of each Protobuf message; the prefix is empty for values that name none."""
        id_, places = frame
        if id_ not in self._prefixes:
            return [((id_, b""), places)]
        framing = framing_of(id_)
        groups: list[tuple[Key, np.ndarray]] = []
        prefixes = list(self._prefixes[id_])
        while len(places):
            prefix = prefixes.pop(0) if prefixes else framing.prefix(heads.behind(int(places[0]), framing.size))
            if prefix is None:
                break
            same = heads.begin_with(places, prefix, framing.size + len(prefix), framing.size)
            if same.any():
                groups.append(((id_, prefix), places[same]))
                places = places[~same]
        rest: dict[bytes, list[int]] = {}
        for place in places.tolist():
            rest.setdefault(framing.prefix(heads.behind(place, framing.size)) or b"", []).append(place)
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
            return f"No message indexes of Protobuf follow s{schema_label(id_)[1:]}. {APICURIO_PROTOBUF}."
        return f"{schema_label(id_)} has no message with the indexes {prefix.hex()} that can be read."

    def _part(self, heads: Heads, number: int, groups: list[tuple[np.ndarray, int]]) -> tuple[Decoded, np.ndarray]:
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


def headers_of(batch: pa.RecordBatch) -> pa.ListArray | None:
    """Return the headers of records; None if there are none."""
    place = batch.schema.get_field_index("headers")
    return batch.column(place) if place >= 0 and batch.column(place).null_count < len(batch) else None


def _errors_of(decoded: Decoded, places: np.ndarray) -> Errors:
    failed = np.flatnonzero(pc.is_valid(decoded.error_class).to_numpy(zero_copy_only=False))
    at = pa.array(failed)
    reasons = zip(decoded.error_class.take(at).to_pylist(), decoded.error_message.take(at).to_pylist(), strict=True)
    return dict(zip(places[failed].tolist(), reasons, strict=True))


def no_schema(id_: SchemaId) -> str:
    """Return the reason for an id that the registry doesn't have.

    >>> no_schema(7), no_schema("version 4c1f")
    ('The registry has no schema id 7', 'The registry has no schema version 4c1f')
    """
    return f"The registry has no s{schema_label(id_)[1:]}"


def schema_label(id_: SchemaId) -> str:
    """Return what messages call a schema."""
    return f"Schema {id_}" if isinstance(id_, str) else f"Schema id {id_}"


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
    return int(id_) if id_.isdigit() else id_, bytes.fromhex(prefix)


def by_age(key: Key) -> tuple[bool, SchemaId, bytes]:
    """Return the sort key of schemas: numbers ascend with time."""
    return isinstance(key[0], str), *key
