"""The columns of one level and the fields that feed them; where types are, in the records and in the table."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType, UnknownType

from kafka_lake.schema.names import is_versioned
from kafka_lake.schema.rules import promotes, type_name


@dataclass(frozen=True)
class Shape:
    """A type that records have at one place, and the label of the schema that declares it."""

    label: str
    kind: IcebergType


@dataclass(frozen=True)
class Part:
    """A field of one of the shapes at a level; ``shape`` is that shape's number."""

    shape: int
    of: Shape
    field: NestedField

    @property
    def shape_of_field(self) -> Shape:
        """Return the field's own shape."""
        return Shape(self.of.label, self.field.field_type)


@dataclass(frozen=True)
class Place:
    """A place in the table.

    Args:
        path: Its path after the renames; empty at the top.
        aliases: Paths by which ``renames`` may name it.
    """

    path: str
    was: str
    aliases: frozenset[str]

    def step(self, name: str, was: str | None = None, aliases: Iterable[str] = ()) -> "Place":
        """Return the place of a field within this one."""
        names = {name, *aliases}
        reached = frozenset(_joined_path(alias, name) for alias in self.aliases for name in names)
        return Place(_joined_path(self.path, name), _joined_path(self.was, was or name), reached)


def _joined_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def is_nothing(kind: IcebergType) -> bool:
    """Return whether all values so far were null or empty."""
    if isinstance(kind, StructType):
        return all(is_nothing(f.field_type) for f in kind.fields)
    if isinstance(kind, ListType):
        return is_nothing(kind.element_type)
    if isinstance(kind, MapType):
        return is_nothing(kind.key_type) or is_nothing(kind.value_type)
    return isinstance(kind, UnknownType)


def fields_of(kind: IcebergType) -> Sequence[NestedField]:
    """Return the fields of a struct; none for any other type."""
    return kind.fields if isinstance(kind, StructType) else ()


def elements_of(shape: Shape) -> list[tuple[Shape, bool]]:
    """Return the shape of a list's elements, and whether they are required; nothing for any other type."""
    kind = shape.kind
    return [(Shape(shape.label, kind.element_type), kind.element_required)] if isinstance(kind, ListType) else []


def values_of(shape: Shape) -> list[tuple[Shape, bool]]:
    """Return the shape of a map's values, and whether they are required; nothing for any other type."""
    kind = shape.kind
    return [(Shape(shape.label, kind.value_type), kind.value_required)] if isinstance(kind, MapType) else []


def parent_of(path: str) -> str:
    """Return the path without its last name."""
    return path.rpartition(".")[0]


def name_of(path: str) -> str:
    """Return the last name of a path."""
    return path.rpartition(".")[2]


def joined_type(have: IcebergType, got: IcebergType, keys_stay: bool) -> IcebergType | None:
    """Return the type, at most widened, that takes values of both; None if there is none.

    Two structs always match: their fields are compared by another call.
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


def widest_of(base: IcebergType, kinds: Iterable[IcebergType]) -> IcebergType:
    """Return the widest of types that promote to one another."""
    for kind in kinds:
        base = kind if promotes(base, kind) else base
    return base


@dataclass
class Column:
    """A column of a level while its parts are collected.

    Args:
        had: The table's own field, None for a new column.
        source: The field that feeds it, if that has another name.
        known: Whether the table records which field that is.
        olds: The names that it had before a rename.
        kind: The type that takes all parts collected so far.
        parts: The fields whose values it takes.
        rejected: The fields whose values it can't take, each with the column that takes them instead, if any.
    """

    name: str
    place: Place
    had: NestedField | None
    source: str | None
    olds: tuple[str, ...] = ()
    kind: IcebergType | None = None
    parts: list[Part] = field(default_factory=list)
    rejected: list[tuple[Part, "Column | None"]] = field(default_factory=list)
    known: bool = False

    @property
    def first_source(self) -> str:
        """Return the name of the field that feeds the column first."""
        return self.name if self.source is None else self.source

    @property
    def also(self) -> tuple[str, ...]:
        """Return the names of further fields that feed it: those that it had before a rename."""
        names = dict.fromkeys((*self.olds, self.name) if self.olds else ())
        return tuple(name for name in names if name != self.first_source)

    @property
    def feeds(self) -> tuple[str, ...]:
        """Return the names of all fields that feed it, in order of preference."""
        return (self.first_source, *self.also)

    @property
    def widest(self) -> IcebergType:
        """Return the type that takes all parts collected so far."""
        assert self.kind is not None, "a new column takes whatever comes first"
        return self.kind

    def hand_over(self, parts: Sequence[Part], version: "Column", may_be: bool) -> list[Part]:
        """Give parts that don't fit to a version of this column; return those that don't fit there either."""
        left = version.take(parts)
        gone = [part for part in parts if not any(part is other for other in left)]
        self.rejected += [(part, version if may_be else None) for part in gone]
        return left

    def take(self, parts: Sequence[Part]) -> list[Part]:
        """Take the parts that fit, at most widened; return the rest. Their order doesn't matter."""
        kinds, keys_stay = [part.field.field_type for part in parts], self.had is not None
        for kind in kinds:
            joined = kind if self.kind is None else joined_type(self.kind, kind, keys_stay)
            self.kind = self.kind if joined is None else joined
        fit = [joined_type(self.widest, kind, keys_stay) is not None for kind in kinds]
        self.parts += [part for part, fits in zip(parts, fit, strict=True) if fits]
        return [part for part, fits in zip(parts, fit, strict=True) if not fits]


def claim_in_any_case(columns: Sequence[Column], names: Iterable[str], present: Collection[str]) -> None:
    """Let fields feed columns whose name differs only in case, if those have no field of their own."""
    fed = {source for column in columns for source in column.feeds}
    alone = [c for c in columns if not c.known and not any(source in present for source in c.feeds)]
    free = {column.name.lower(): column for column in reversed(alone)}
    for name in names:
        if name not in fed and (column := free.pop(name.lower(), None)):
            column.source = name


def owners_of(columns: Iterable[Column]) -> dict[str, list[Column]]:
    """Return the columns that each field feeds: its own, then the versions of that one."""
    owners: dict[str, list[Column]] = {}
    for column in sorted(columns, key=lambda c: is_versioned(c.name)):
        for source in column.feeds:
            owners.setdefault(source, []).append(column)
    return owners


def by_source(parts: Iterable[Part]) -> dict[str, list[Part]]:
    """Return the parts by their fields' names."""
    parts_of: dict[str, list[Part]] = {}
    for part in parts:
        parts_of.setdefault(part.field.name, []).append(part)
    return parts_of
