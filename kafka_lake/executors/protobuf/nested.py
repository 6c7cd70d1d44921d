"""What ptars reads of messages, lists and maps becomes arrays; doubtful is what other parsers read otherwise."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]

from kafka_lake.executors.protobuf.model import Columns, Doubts, Values, Wire, WireField, either, owners, where

_DEFAULTS = {pa.string(): "", pa.bool_(): False}
"""Of a map's keys; of other types it is 0."""


def wire_of_struct(descriptor: Descriptor, columns: list[Columns], fields: list[pa.Field]) -> Wire:
    """Return how ptars reads a message that becomes a struct."""
    by_number = sorted(column.wire.number for column in columns)
    places = [by_number.index(column.wire.number) for column in columns]
    required = [by_number.index(field.number) for field in descriptor.fields if field.is_required]
    choices = [[by_number.index(field.number) for field in oneof.fields] for oneof in descriptor.oneofs]

    def wired(values: pa.StructArray) -> tuple[list[pa.Array], Doubts]:
        found: list[pa.Array] = []
        doubts: Doubts = None
        for column, place in zip(columns, places, strict=True):
            arrays, strange = column.wire.wire.arrays(values.field(place))
            found += arrays
            doubts = either(doubts, strange)
        for place in required:
            if values.field(place).null_count:
                doubts = either(doubts, where(_numpy(values.field(place).is_null())))
        for choice in choices:
            doubts = either(doubts, _several([values.field(place) for place in choice]))
        nulls = values.is_null() if values.null_count else None
        if doubts is not None and nulls is not None:
            doubts = where(doubts & ~_numpy(nulls))
        return [pa.StructArray.from_arrays(found, fields=fields, mask=nulls)], doubts

    wire = sorted((column.wire for column in columns), key=lambda field: field.number)
    return Wire(FieldDescriptor.TYPE_MESSAGE, wired, tuple(wire))


def _several(choice: list[pa.Array]) -> Doubts:
    """Return where more than one field of a oneof is set: ptars keeps all that the bytes have, the last one counts."""
    there = [_numpy(field.is_valid()) for field in choice if field.null_count < len(field)]
    if len(there) < 2:
        return None
    return where(np.stack(there).sum(axis=0) > 1)


def _numpy(values: pa.Array) -> np.ndarray:
    found: np.ndarray = values.to_numpy(zero_copy_only=False)
    return found


def wire_of_list(values: Values, kinds: list[pa.DataType]) -> Wire:
    """Return how ptars reads lists of values, which become lists of these types."""

    def wired(lists: pa.ListArray) -> tuple[list[pa.Array], Doubts]:
        elements, doubts = values.wire.arrays(lists.values)
        made = [pa.ListArray.from_arrays(lists.offsets, e, type=k) for e, k in zip(elements, kinds, strict=True)]
        return made, owners(doubts, lists.offsets.to_numpy())

    return Wire(values.wire.type, wired, values.wire.fields)


def wire_of_map(keys: Values, values: Values) -> Wire:
    """Return how ptars reads a map: as the list of entries that it is in the bytes, each with a key and a value."""

    def wired(lists: pa.ListArray) -> tuple[list[pa.Array], Doubts]:
        entries, offsets = lists.values, lists.offsets.to_numpy()
        doubts: Doubts = None
        for part in range(2):
            if entries.field(part).null_count:
                doubts = either(doubts, where(_numpy(entries.field(part).is_null())))
        (key,), _ = keys.wire.arrays(entries.field(0))
        items, strange = values.wire.arrays(entries.field(1))
        doubts = either(owners(either(doubts, strange), offsets), _twins(entries.field(0), offsets))
        if key.null_count:
            key = pc.fill_null(key, pa.scalar(_DEFAULTS.get(key.type, 0)).cast(key.type))
        return [pa.MapArray.from_arrays(lists.offsets, key, each) for each in items], doubts

    fields = (WireField(1, keys.wire, optional=True), WireField(2, values.wire, optional=True))
    return Wire(FieldDescriptor.TYPE_MESSAGE, wired, fields)


def _twins(keys: pa.Array, offsets: np.ndarray) -> Doubts:
    """Return which maps have a key twice: the last one counts."""
    if np.diff(offsets).max(initial=0) < 2:
        return None
    codes = pc.fill_null(pc.dictionary_encode(keys).indices, -1).to_numpy().astype(np.int64)
    pairs = np.sort(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)) * (len(keys) + 1) + codes)
    twice = pairs[1:][pairs[1:] == pairs[:-1]]
    if not len(twice):
        return None
    found = np.zeros(len(offsets) - 1, dtype=bool)
    found[(twice + 1) // (len(keys) + 1)] = True
    return found


def wrapped(inner: Values) -> Values:
    """Return how wrappers of values become those, null where unset."""

    def wired(values: pa.StructArray) -> tuple[list[pa.Array], Doubts]:
        (found,), doubts = inner.wire.arrays(values.field(0))
        if values.null_count:
            found = pc.if_else(values.is_valid(), found, pa.scalar(None, found.type))
        return [found], doubts

    wire = Wire(FieldDescriptor.TYPE_MESSAGE, wired, (WireField(1, inner.wire),))
    return Values(inner.types, lambda values: inner.arrays([None if v is None else v.value for v in values]), wire)
