"""Converts values of fields, as ptars reads them, to columns; and finds values that no column can hold."""

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
"""Reason for messages that ptars reads differently; Google's package writes them again before they are read."""

Rejected = dict[int, str]
"""Number of a value → the reason why no column can hold it."""
Arrays = Callable[[pa.Array], tuple[list[pa.Array], Rejected]]


@dataclass(frozen=True)
class Values:
    """The conversion of a field's values to columns.

    Args:
        types: By the suffix of the column's name; several if one type can't hold the values.
        wire: The type that ptars reads, of ``FieldDescriptorProto.Type``.
        arrays: Converts ptars' array to one array of each type; unset values are null.
    """

    types: Mapping[str, pa.DataType]
    wire: int
    arrays: Arrays
    fields: tuple["Field", ...] = ()


@dataclass(frozen=True)
class Field:
    """A field of a message; optional if null means that it is unset."""

    number: int
    values: Values
    repeated: bool = False
    optional: bool = False


def structs(descriptor: Descriptor, fields: Sequence[Field], columns: Sequence[pa.Field]) -> Arrays:
    """Return the conversion of messages to structs."""
    numbers = sorted(field.number for field in fields)
    places = [numbers.index(field.number) for field in fields]
    required = [numbers.index(field.number) for field in descriptor.fields if field.is_required]
    choices = [[numbers.index(field.number) for field in oneof.fields] for oneof in descriptor.oneofs]

    def arrays(values: pa.StructArray) -> tuple[list[pa.Array], Rejected]:
        made: list[pa.Array] = []
        rejected: Rejected = {}
        for field, place in zip(fields, places, strict=True):
            parts, wrong = field.values.arrays(values.field(place))
            made += parts
            rejected |= wrong
        for place in required:
            rejected |= marked(values.field(place).is_null(), "A required field is missing")
        for choice in choices:
            # ptars keeps all fields that the bytes have, but the last one counts.
            is_set = [values.field(place).is_valid().cast(pa.int8()).to_numpy() for place in choice]
            if len(is_set) > 1:
                rejected |= marked(np.sum(is_set, axis=0) > 1, AMBIGUOUS)
        nulls = values.is_null() if values.null_count else None
        if rejected and nulls is not None:
            rejected = {number: why for number, why in rejected.items() if not nulls[number].as_py()}
        return [pa.StructArray.from_arrays(made, fields=list(columns), mask=nulls)], rejected

    return arrays


def lists_of(values: Values) -> Values:
    """Return the conversion of lists."""
    types = {suffix: pa.list_(pa.field("element", kind)) for suffix, kind in values.types.items()}

    def arrays(lists: pa.ListArray) -> tuple[list[pa.Array], Rejected]:
        elements, rejected = values.arrays(lists.values)
        made = [
            pa.ListArray.from_arrays(lists.offsets, e, type=k) for e, k in zip(elements, types.values(), strict=True)
        ]
        return made, _of_owners(rejected, lists.offsets)

    return Values(types, values.wire, arrays, values.fields)


def maps_of(keys: Values, values: Values) -> Values:
    """Return the conversion of maps. In the bytes, they are lists of entries with a key and a value."""
    key_type = keys.types[""]
    types = {suffix: pa.map_(key_type, kind) for suffix, kind in values.types.items()}

    def arrays(lists: pa.ListArray) -> tuple[list[pa.Array], Rejected]:
        entries, offsets = lists.values, lists.offsets.to_numpy()
        (key,), _ = keys.arrays(entries.field(0))
        items, rejected = values.arrays(entries.field(1))
        for part in range(2):
            rejected |= marked(entries.field(part).is_null(), AMBIGUOUS)
        key = pc.fill_null(
            key, default_of(pa.int64()).cast(key_type) if pa.types.is_decimal(key_type) else default_of(key_type)
        )
        rejected = _of_owners(rejected, lists.offsets) | marked(_have_twins(key, offsets), AMBIGUOUS)
        return [pa.MapArray.from_arrays(lists.offsets, key, values) for values in items], rejected

    fields = (Field(1, keys, optional=True), Field(2, values, optional=True))
    return Values(types, _MESSAGE, arrays, fields)


def _have_twins(keys: pa.Array, offsets: np.ndarray) -> np.ndarray:
    """Return which maps have a key twice."""
    found = np.zeros(len(offsets) - 1, dtype=bool)
    if np.diff(offsets).max(initial=0) > 1:
        codes = pc.dictionary_encode(keys).indices.to_numpy().astype(np.int64)
        owners = np.repeat(np.arange(len(found)), np.diff(offsets))
        pairs = np.sort(owners * (len(keys) + 1) + codes)
        found[pairs[1:][pairs[1:] == pairs[:-1]] // (len(keys) + 1)] = True
    return found


def _of_owners(rejected: Rejected, offsets: pa.Array) -> Rejected:
    """Return the rejected lists by their rejected elements."""
    ends = offsets.to_numpy()
    return {int(np.searchsorted(ends, number, side="right")) - 1: why for number, why in rejected.items()}


def marked(where: Any, why: str) -> Rejected:
    """Return the values of a mask as rejected for one reason."""
    return dict.fromkeys(np.flatnonzero(np.asarray(where)).tolist(), why)


def scalar(wire: int) -> Values:
    """Return the conversion of a primitive type."""
    kind = _SCALARS[wire]
    if pa.types.is_decimal(kind):
        return Values({"": kind}, wire, lambda numbers: ([_unsigned(numbers, kind)], {}))
    return Values({"": kind}, wire, lambda values: ([values.cast(kind)], {}))


def or_default(values: Values) -> Values:
    """Return the conversion of fields without presence: unset values get the default of their type.

    ptars reads them as if they had presence, so that it writes -0.0 and defaults unchanged.
    """

    def arrays(given: pa.Array) -> tuple[list[pa.Array], Rejected]:
        return values.arrays(pc.fill_null(given, default_of(given.type)) if given.null_count else given)

    return Values(values.types, values.wire, arrays)


def default_of(kind: pa.DataType) -> pa.Scalar:
    """Return the default of a primitive type."""
    return pa.scalar({pa.string(): "", pa.binary(): b"", pa.bool_(): False}.get(kind, 0), kind)


def enum(names: Mapping[int, str]) -> Values:
    """Return the conversion of an enum's numbers to names; unknown numbers become digits."""
    numbers, texts = pa.array(list(names), pa.int32()), pa.array(names.values(), pa.string())

    def arrays(values: pa.Array) -> tuple[list[pa.Array], Rejected]:
        symbols = texts.take(pc.index_in(values, numbers))
        if symbols.null_count > values.null_count:
            symbols = pc.coalesce(symbols, values.cast(pa.string()))
        return [symbols], {}

    return Values({"": pa.string()}, FieldDescriptor.TYPE_INT32, arrays)


def _unsigned(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert unsigned 64-bit integers to decimals, faster than Arrow's cast."""
    low = np.asarray(numbers.fill_null(0)).astype(np.uint64)
    return decimals(low.view(np.int64), np.zeros(len(low), dtype=np.int64), numbers, kind)


def decimals(low: np.ndarray, high: np.ndarray, nulls: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return 128-bit decimals by the halves of their unscaled integers; null where ``nulls`` is null."""
    words = pa.py_buffer(np.column_stack([low, high]).astype("<i8"))
    valid = pc.is_valid(nulls).buffers()[1] if nulls.null_count else None
    return pa.Array.from_buffers(kind, len(low), [valid, words])
