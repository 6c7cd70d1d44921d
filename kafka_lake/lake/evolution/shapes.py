"""Where a type is, in the records and in the table: places by their paths, shapes, and the fields of shapes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType, UnknownType


@dataclass(frozen=True)
class Shape:
    """A type that records have at one place, and which schema says so."""

    label: str
    kind: IcebergType


@dataclass(frozen=True)
class Part:
    """A field of one of the shapes at a level, which is the shape's number there."""

    shape: int
    of: Shape
    field: NestedField

    @property
    def shape_of_field(self) -> Shape:
        """The shape that the field itself has."""
        return Shape(self.of.label, self.field.field_type)


@dataclass(frozen=True)
class Place:
    """Where in the table a type is.

    Args:
        path: Its path, as it will be; empty at the top.
        was: Its path in the table as it is.
        aliases: Paths under which ``renames`` may speak of it.
    """

    path: str
    was: str
    aliases: frozenset[str]

    def step(self, name: str, was: str | None = None, aliases: Iterable[str] = ()) -> "Place":
        """Return the place of what is within this one.

        Args:
            name: Its name, as it will be.
            was: Its name in the table as it is; None if it is the same.
            aliases: Further names under which ``renames`` may speak of it.
        """
        names = {name, *aliases}
        reached = frozenset(_joined_path(alias, each) for alias in self.aliases for each in names)
        return Place(_joined_path(self.path, name), _joined_path(self.was, was or name), reached)


def _joined_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def is_nothing(kind: IcebergType) -> bool:
    """Return whether no value but null, or empty, was ever seen."""
    if isinstance(kind, StructType):
        return all(is_nothing(f.field_type) for f in kind.fields)
    if isinstance(kind, ListType):
        return is_nothing(kind.element_type)
    if isinstance(kind, MapType):
        return is_nothing(kind.key_type) or is_nothing(kind.value_type)
    return isinstance(kind, UnknownType)


def fields_of(kind: IcebergType) -> Sequence[NestedField]:
    """Return the fields of a struct; none of any other type."""
    return kind.fields if isinstance(kind, StructType) else ()


def elements_of(shape: Shape) -> list[tuple[Shape, bool]]:
    """Return the shape of the elements of a list, and whether they are required; nothing for any other type."""
    kind = shape.kind
    return [(Shape(shape.label, kind.element_type), kind.element_required)] if isinstance(kind, ListType) else []


def values_of(shape: Shape) -> list[tuple[Shape, bool]]:
    """Return the shape of the values of a map, and whether they are required; nothing for any other type."""
    kind = shape.kind
    return [(Shape(shape.label, kind.value_type), kind.value_required)] if isinstance(kind, MapType) else []


def parent_of(path: str) -> str:
    """Return the path of what a path leads into; empty at the top."""
    return path.rpartition(".")[0]


def name_of(path: str) -> str:
    """Return the last name of a path."""
    return path.rpartition(".")[2]
