"""Which type takes the values of two others, at most widened."""

from collections.abc import Iterable

from pyiceberg.types import IcebergType, ListType, MapType, StructType

from kafka_lake.lake.schema import promotes, type_name


def joined_type(have: IcebergType, got: IcebergType, keys_stay: bool) -> IcebergType | None:
    """Return the type, at most widened, that takes values of both; None if there is none.

    Structs always go together, field by field; what their fields come to is for another call.
    """
    if isinstance(have, StructType) and isinstance(got, StructType):
        return have
    if isinstance(have, ListType) and isinstance(got, ListType):
        element = joined_type(have.element_type, got.element_type, keys_stay)
        return None if element is None else ListType(have.element_id, element, have.element_required)
    if isinstance(have, MapType) and isinstance(got, MapType):
        key = _joined_key(have.key_type, got.key_type)
        value = joined_type(have.value_type, got.value_type, keys_stay)
        if key is None or value is None or (keys_stay and key != have.key_type):
            return None
        return MapType(have.key_id, key, have.value_id, value, value_required=have.value_required)
    if have == got or promotes(got, have):
        return have
    return got if promotes(have, got) else None


def _joined_key(have: IcebergType, got: IcebergType) -> IcebergType | None:
    if type_name(have) == type_name(got) or promotes(got, have):
        return have
    return got if promotes(have, got) else None


def widest_of(base: IcebergType, others: Iterable[IcebergType]) -> IcebergType:
    """Return the widest of types that promote to one another."""
    for other in others:
        base = other if promotes(base, other) else base
    return base
