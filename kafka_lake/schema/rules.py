"""Which changes of a table's schema are safe, by Iceberg's rules. Pure: no Spark, no network, no Dagster.

The rules are the specification's (https://iceberg.apache.org/spec/#schema-evolution): columns may be added if they are
optional and renamed if they keep their field id, required may become optional, and a type may be promoted int → long,
float → double, decimal(P, S) → decimal(P', S) with P' > P, unknown → any primitive. Anything else would change what
readers of older files see.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    UnknownType,
)

Kind = Literal[
    "added", "widened", "made optional", "renamed", "removed", "required added", "made required", "type changed"
]
SAFE: frozenset[Kind] = frozenset({"added", "widened", "made optional", "renamed"})


@dataclass(frozen=True)
class Change:
    """One difference between two schemas.

    Args:
        column: Dotted path, of a renamed one the path that it had; ``element``, ``key`` and ``value`` step into lists
            and maps.
        before: Its type before, empty if it is new; of a renamed one its name.
        after: Its type now, empty if it is gone; of a renamed one its name.
    """

    column: str
    kind: Kind
    before: str
    after: str

    @property
    def safe(self) -> bool:
        """Return whether readers of old and new files see the right values."""
        return self.kind in SAFE


def promotes(before: IcebergType, after: IcebergType) -> bool:
    """Return whether Iceberg may read files of the first type as the second.

    >>> promotes(IntegerType(), LongType()), promotes(LongType(), IntegerType())
    (True, False)
    """
    if isinstance(before, DecimalType) and isinstance(after, DecimalType):
        return before.scale == after.scale and after.precision > before.precision
    if isinstance(before, UnknownType):
        return isinstance(after, PrimitiveType) and not isinstance(after, UnknownType)
    return (isinstance(before, IntegerType) and isinstance(after, LongType)) or (
        isinstance(before, FloatType) and isinstance(after, DoubleType)
    )


def type_name(kind: IcebergType) -> str:
    """Return a type as people read it, without field ids.

    >>> type_name(ListType(1, StructType(NestedField(2, "a", LongType(), required=False))))
    'list<struct<a: long>>'
    """
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{f.name}: {type_name(f.field_type)}' for f in kind.fields)}>"
    if isinstance(kind, ListType):
        return f"list<{type_name(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{type_name(kind.key_type)}, {type_name(kind.value_type)}>"
    return str(kind)


def changes(before: Schema, after: Schema) -> list[Change]:
    """Return what differs between two schemas, matched by field id, in the order of the newer one."""
    return list(_struct_changes("", before.as_struct(), after.as_struct()))


def _struct_changes(prefix: str, before: StructType, after: StructType) -> Iterator[Change]:
    old: Mapping[int, NestedField] = {field.field_id: field for field in before.fields}
    new = {field.field_id for field in after.fields}
    for field in after.fields:
        twin = old.get(field.field_id)
        if twin is None:
            kind: Kind = "required added" if field.required else "added"
            yield Change(f"{prefix}{field.name}", kind, "", type_name(field.field_type))
            continue
        if twin.name != field.name:
            yield Change(f"{prefix}{twin.name}", "renamed", twin.name, field.name)
        yield from _field_changes(f"{prefix}{field.name}", twin, field)
    for field in before.fields:
        if field.field_id not in new:
            yield Change(f"{prefix}{field.name}", "removed", type_name(field.field_type), "")


def _field_changes(path: str, before: NestedField, after: NestedField) -> Iterator[Change]:
    if before.required != after.required:
        kind: Kind = "made optional" if before.required else "made required"
        yield Change(
            path, kind, "required" if before.required else "optional", "required" if after.required else "optional"
        )
    yield from _type_changes(path, before.field_type, after.field_type)


def _type_changes(path: str, before: IcebergType, after: IcebergType) -> Iterator[Change]:
    if isinstance(before, StructType) and isinstance(after, StructType):
        yield from _struct_changes(f"{path}.", before, after)
    elif isinstance(before, ListType) and isinstance(after, ListType):
        yield from _field_changes(f"{path}.element", before.element_field, after.element_field)
    elif isinstance(before, MapType) and isinstance(after, MapType):
        for change in _field_changes(f"{path}.key", before.key_field, after.key_field):
            # Keys must stay as they are: values of files that are there are found by them.
            yield replace(change, kind="type changed") if change.safe and change.kind != "renamed" else change
        yield from _field_changes(f"{path}.value", before.value_field, after.value_field)
    elif before != after:
        primitive = isinstance(before, PrimitiveType) and isinstance(after, PrimitiveType)
        kind: Kind = "widened" if primitive and promotes(before, after) else "type changed"
        yield Change(path, kind, type_name(before), type_name(after))


def leaf_paths(kind: IcebergType, path: str = "") -> Iterator[str]:
    """Yield the paths of what a type is made of: each is a column of its own in a file.

    >>> list(leaf_paths(StructType(NestedField(1, "a", ListType(2, LongType(), False), False))))
    ['a.element']
    """
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from leaf_paths(field.field_type, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, ListType):
        yield from leaf_paths(kind.element_type, f"{path}.element")
    elif isinstance(kind, MapType):
        yield from leaf_paths(kind.key_type, f"{path}.key")
        yield from leaf_paths(kind.value_type, f"{path}.value")
    else:
        yield path


def needed_changes(current: Schema, target: Schema) -> list[Change]:
    """Return what a table's schema must undergo to take rows of another schema; columns are matched by name.

    Columns that the rows lack become null and need no change, and neither do columns of a type that the table's
    own type can hold already.
    """
    matched = StructType(*_ids_like(current.as_struct(), target.as_struct()))
    differences = _struct_changes("", current.as_struct(), matched)
    return [c for c in differences if c.kind not in ("removed", "made required", "renamed")]


_NEW_ID = 1_000_000


def _ids_like(current: StructType, target: StructType) -> Iterator[NestedField]:
    by_name = {field.name.lower(): field for field in current.fields}
    for field in target.fields:
        twin = by_name.get(field.name.lower())
        kind = field.field_type if twin is None else _types_like(twin.field_type, field.field_type)
        yield NestedField(
            _NEW_ID + field.field_id if twin is None else twin.field_id, field.name, kind, required=field.required
        )


def _types_like(current: IcebergType, target: IcebergType) -> IcebergType:
    if isinstance(current, StructType) and isinstance(target, StructType):
        return StructType(*_ids_like(current, target))
    if isinstance(current, ListType) and isinstance(target, ListType):
        element = _types_like(current.element_type, target.element_type)
        return ListType(current.element_id, element, element_required=target.element_required)
    if isinstance(current, MapType) and isinstance(target, MapType):
        return MapType(
            current.key_id,
            _types_like(current.key_type, target.key_type),
            current.value_id,
            _types_like(current.value_type, target.value_type),
            value_required=target.value_required,
        )
    if promotes(target, current):
        return current
    return target
