"""Types of JSON Schemas combined: what values of both have, and what values of either have."""

from collections.abc import Callable, Iterable
from functools import reduce

from pyspark.sql import types as T

# Within this module: whatever JSON can say, and nothing but null. Both are strings in the end.
ANY, NULL = T.VariantType(), T.NullType()
# Each from the narrowest to the widest.
_WHOLE, _BINARY = (T.IntegerType, T.LongType), (T.FloatType, T.DoubleType)
_NUMBERS = (*_WHOLE, T.DecimalType, *_BINARY)
_STRINGS = (T.TimestampType, T.DateType, T.StringType)


class Record(T.StructType):  # type: ignore[misc]
    """Objects, and what they may have beside their fields.

    Args:
        rest: The type of other fields' values; None if the schema allows no other fields.
    """

    def __init__(self, fields: Iterable[T.StructField], rest: T.DataType | None) -> None:
        super().__init__(list(fields))
        self.rest = rest


def both_of(one: T.DataType, other: T.DataType) -> T.DataType:
    """Return the type of values that have both types; of two that exclude each other, any."""
    if one == other or ANY in (one, other):
        return one if other == ANY else other
    if NULL in (one, other):
        return NULL
    for family in (_NUMBERS, _STRINGS):
        if isinstance(one, family) and isinstance(other, family):
            return min(one, other, key=lambda kind: family.index(type(kind)))
    if isinstance(one, Record) and isinstance(other, Record):
        rest = None if one.rest is None or other.rest is None else both_of(one.rest, other.rest)
        return Record(_fields(one, other, both_of), rest)
    return _inside(one, other, both_of)


def either_of(one: T.DataType, other: T.DataType) -> T.DataType:
    """Return a type for values that have one or the other."""
    if one == other or NULL in (one, other):
        return one if other == NULL else other
    if isinstance(one, _WHOLE) and isinstance(other, _WHOLE):
        return T.LongType()
    if isinstance(one, (*_WHOLE, *_BINARY)) and isinstance(other, (*_WHOLE, *_BINARY)):
        return T.DoubleType()
    if isinstance(one, _STRINGS) and isinstance(other, _STRINGS):
        return T.StringType()
    if isinstance(one, Record) and isinstance(other, Record):
        rests = [record.rest for record in (one, other) if record.rest is not None]
        return Record(_fields(one, other, either_of), reduce(either_of, rests) if rests else None)
    return _inside(one, other, either_of)


def _inside(one: T.DataType, other: T.DataType, combine: Callable[[T.DataType, T.DataType], T.DataType]) -> T.DataType:
    if isinstance(one, T.ArrayType) and isinstance(other, T.ArrayType):
        return T.ArrayType(combine(one.elementType, other.elementType))
    if isinstance(one, T.MapType) and isinstance(other, T.MapType):
        return T.MapType(T.StringType(), combine(one.valueType, other.valueType))
    return ANY


def _fields(
    one: Record, other: Record, combine: Callable[[T.DataType, T.DataType], T.DataType]
) -> Iterable[T.StructField]:
    fields = {field.name: field for field in one}
    for field in other:
        if twin := fields.get(field.name):
            kind = combine(twin.dataType, field.dataType)
            field = T.StructField(field.name, kind, metadata=twin.metadata or field.metadata)
        fields[field.name] = field
    return fields.values()


def settled(kind: T.DataType) -> T.DataType:
    """Return a type as a table has it: text where it is any, or nothing but null, at every depth."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, settled(f.dataType), metadata=f.metadata) for f in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(settled(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(T.StringType(), settled(kind.valueType))
    return T.StringType() if kind in (ANY, NULL) else kind
