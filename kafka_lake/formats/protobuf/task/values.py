"""How values of fields, as ptars reads them, become columns; and which values fit none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]

_MESSAGE = FieldDescriptor.TYPE_MESSAGE
_SCALARS = {
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_SINT32: pa.int32(),
    FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    FieldDescriptor.TYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_FIXED64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
}
AMBIGUOUS = "Parsers disagree about its fields"
"""Of messages that ptars reads otherwise than other parsers, until the protobuf package has written them again."""

Misfits = dict[int, str]
"""Number of a value → why no column holds it."""
Arrays = Callable[[pa.Array], tuple[list[pa.Array], Misfits]]


@dataclass(frozen=True)
class Values:
    """How the values of a field become columns.

    Args:
        types: By the suffix of the column's name; several where one type can't hold the values.
        wire: What ptars reads the field as, a number of ``FieldDescriptorProto.Type``.
        arrays: From the array that ptars makes to one of each type; null where unset.
        fields: Of a message, its fields.
    """

    types: Mapping[str, pa.DataType]
    wire: int
    arrays: Arrays
    fields: tuple["Field", ...] = ()


@dataclass(frozen=True)
class Field:
    """A field of a message; optional if null tells that it is unset."""

    number: int
    values: Values
    repeated: bool = False
    optional: bool = False


def structs(descriptor: Descriptor, fields: Sequence[Field], columns: Sequence[pa.Field]) -> Arrays:
    """Return how messages become structs."""
    numbers = sorted(field.number for field in fields)
    places = [numbers.index(field.number) for field in fields]
    required = [numbers.index(field.number) for field in descriptor.fields if field.is_required]
    choices = [[numbers.index(field.number) for field in oneof.fields] for oneof in descriptor.oneofs]

    def arrays(values: pa.StructArray) -> tuple[list[pa.Array], Misfits]:
        made: list[pa.Array] = []
        misfits: Misfits = {}
        for field, place in zip(fields, places, strict=True):
            parts, wrong = field.values.arrays(values.field(place))
            made += parts
            misfits |= wrong
        for place in required:
            misfits |= marked(values.field(place).is_null(), "A required field is missing")
        for choice in choices:
            # ptars keeps all fields that the bytes have, but the last one counts.
            there = [values.field(place).is_valid().cast(pa.int8()).to_numpy() for place in choice]
            if len(there) > 1:
                misfits |= marked(np.sum(there, axis=0) > 1, AMBIGUOUS)
        nulls = values.is_null() if values.null_count else None
        if misfits and nulls is not None:
            misfits = {number: why for number, why in misfits.items() if not nulls[number].as_py()}
        return [pa.StructArray.from_arrays(made, fields=list(columns), mask=nulls)], misfits

    return arrays


def lists_of(values: Values) -> Values:
    """Return how lists of values are read."""
    types = {suffix: pa.list_(pa.field("element", kind)) for suffix, kind in values.types.items()}

    def arrays(lists: pa.ListArray) -> tuple[list[pa.Array], Misfits]:
        elements, misfits = values.arrays(lists.values)
        made = [
            pa.ListArray.from_arrays(lists.offsets, e, type=k) for e, k in zip(elements, types.values(), strict=True)
        ]
        return made, _of_owners(misfits, lists.offsets)

    return Values(types, values.wire, arrays, values.fields)


def maps_of(keys: Values, values: Values) -> Values:
    """Return how maps are read: as the list of entries that they are in the bytes, each with a key and a value."""
    key_type = keys.types[""]
    types = {suffix: pa.map_(key_type, kind) for suffix, kind in values.types.items()}

    def arrays(lists: pa.ListArray) -> tuple[list[pa.Array], Misfits]:
        entries, offsets = lists.values, lists.offsets.to_numpy()
        (key,), _ = keys.arrays(entries.field(0))
        items, misfits = values.arrays(entries.field(1))
        for part in range(2):
            misfits |= marked(entries.field(part).is_null(), AMBIGUOUS)
        key = pc.fill_null(
            key, default_of(pa.int64()).cast(key_type) if pa.types.is_decimal(key_type) else default_of(key_type)
        )
        found = _of_owners(misfits, lists.offsets) | marked(_have_twins(key, offsets), AMBIGUOUS)
        return [pa.MapArray.from_arrays(lists.offsets, key, each) for each in items], found

    fields = (Field(1, keys, optional=True), Field(2, values, optional=True))
    return Values(types, _MESSAGE, arrays, fields)


def _have_twins(keys: pa.Array, offsets: np.ndarray) -> np.ndarray:
    """Return which maps have a key twice: the last one counts."""
    found = np.zeros(len(offsets) - 1, dtype=bool)
    if np.diff(offsets).max(initial=0) > 1:
        codes = pc.dictionary_encode(keys).indices.to_numpy().astype(np.int64)
        owners = np.repeat(np.arange(len(found)), np.diff(offsets))
        pairs = np.sort(owners * (len(keys) + 1) + codes)
        found[pairs[1:][pairs[1:] == pairs[:-1]] // (len(keys) + 1)] = True
    return found


def _of_owners(misfits: Misfits, offsets: pa.Array) -> Misfits:
    """Return the misfits of lists, by those of their elements."""
    ends = offsets.to_numpy()
    return {int(np.searchsorted(ends, number, side="right")) - 1: why for number, why in misfits.items()}


def marked(where: Any, why: str) -> Misfits:
    """Return the misfits of a mask."""
    return dict.fromkeys(np.flatnonzero(np.asarray(where)).tolist(), why)


def scalar(wire: int) -> Values:
    """Return how values of a primitive type are read."""
    kind = _SCALARS[wire]
    if pa.types.is_decimal(kind):
        return Values({"": kind}, wire, lambda numbers: ([_unsigned(numbers, kind)], {}))
    return Values({"": kind}, wire, lambda values: ([values.cast(kind)], {}))


def or_default(values: Values) -> Values:
    """Return how values without presence are read: unset ones have the default of their type.

    ptars reads and writes them as if they had presence, so that it writes -0.0 and defaults as they were.
    """

    def arrays(given: pa.Array) -> tuple[list[pa.Array], Misfits]:
        return values.arrays(pc.fill_null(given, default_of(given.type)) if given.null_count else given)

    return Values(values.types, values.wire, arrays)


def default_of(kind: pa.DataType) -> pa.Scalar:
    """Return what an unset value of a primitive type is."""
    return pa.scalar({pa.string(): "", pa.binary(): b"", pa.bool_(): False}.get(kind, 0), kind)


def enum(names: Mapping[int, str]) -> Values:
    """Return how numbers of an enum become the names of its values; unknown ones become digits."""
    numbers, texts = pa.array(list(names), pa.int32()), pa.array(names.values(), pa.string())

    def arrays(values: pa.Array) -> tuple[list[pa.Array], Misfits]:
        found = texts.take(pc.index_in(values, numbers))
        if found.null_count > values.null_count:
            found = pc.coalesce(found, values.cast(pa.string()))
        return [found], {}

    return Values({"": pa.string()}, FieldDescriptor.TYPE_INT32, arrays)


def _unsigned(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return 64 bits without a sign as decimals without a fraction, faster than Arrow's cast."""
    low = np.asarray(numbers.fill_null(0)).astype(np.uint64)
    return decimals(low.view(np.int64), np.zeros(len(low), dtype=np.int64), numbers, kind)


def decimals(low: np.ndarray, high: np.ndarray, nulls: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals of 128 bits, by the halves of their unscaled numbers; null where another array is."""
    words = pa.py_buffer(np.column_stack([low, high]).astype("<i8"))
    valid = pc.is_valid(nulls).buffers()[1] if nulls.null_count else None
    return pa.Array.from_buffers(kind, len(low), [valid, words])
