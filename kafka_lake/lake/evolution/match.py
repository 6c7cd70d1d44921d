"""Which column a field goes to: a column with the fields that feed it, and how fields find theirs."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from kafka_lake.lake.evolution.shapes import Part, Place
from kafka_lake.lake.names import is_versioned
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


@dataclass
class Column:
    """A column of a level while its parts are being collected.

    Args:
        name: What it will be called.
        had: The table's own field, None for a new column.
        source: The field that feeds it, where that has another name.
        known: Whether it is written down which field that is.
        olds: The names that it had before a rename.
        kind: The type that takes all parts collected so far.
        parts: The fields whose values it takes.
        misfits: The fields whose values it can't take, each with the column that takes them instead, if one does.
    """

    name: str
    place: Place
    had: NestedField | None
    source: str | None
    olds: tuple[str, ...] = ()
    kind: IcebergType | None = None
    parts: list[Part] = field(default_factory=list)
    misfits: list[tuple[Part, "Column | None"]] = field(default_factory=list)
    known: bool = False

    @property
    def first_source(self) -> str:
        """The field that feeds the column first."""
        return self.name if self.source is None else self.source

    @property
    def also(self) -> tuple[str, ...]:
        """Further names of fields that feed it: those that it had before a rename."""
        names = dict.fromkeys((*self.olds, self.name) if self.olds else ())
        return tuple(name for name in names if name != self.first_source)

    @property
    def feeds(self) -> tuple[str, ...]:
        """The names of all fields that feed it, the first one first."""
        return (self.first_source, *self.also)

    @property
    def widest(self) -> IcebergType:
        """The type that takes all parts collected so far."""
        assert self.kind is not None, "a new column takes whatever comes first"
        return self.kind

    def hand_over(self, parts: Sequence[Part], version: "Column", may_be: bool) -> list[Part]:
        """Give what doesn't fit to a version of this column; return what doesn't fit that either."""
        left = version.take(parts)
        gone = [part for part in parts if not any(part is each for each in left)]
        self.misfits += [(part, version if may_be else None) for part in gone]
        return left

    def take(self, parts: Sequence[Part]) -> list[Part]:
        """Take the parts that fit, at most widened; return those that don't, however they are ordered."""
        kinds, keys_stay = [part.field.field_type for part in parts], self.had is not None
        for kind in kinds:
            joined = kind if self.kind is None else joined_type(self.kind, kind, keys_stay)
            self.kind = self.kind if joined is None else joined
        fit = [joined_type(self.widest, kind, keys_stay) is not None for kind in kinds]
        self.parts += [part for part, fits in zip(parts, fit, strict=True) if fits]
        return [part for part, fits in zip(parts, fit, strict=True) if not fits]


def claim_in_any_case(columns: Sequence[Column], names: Iterable[str], present: Collection[str]) -> None:
    """Let fields feed columns whose name differs in case, if those have no field of their own."""
    fed = {source for column in columns for source in column.feeds}
    alone = [c for c in columns if not c.known and not any(source in present for source in c.feeds)]
    free = {column.name.lower(): column for column in reversed(alone)}
    for name in names:
        if name not in fed and (column := free.pop(name.lower(), None)):
            column.source = name


def owners_of(columns: Iterable[Column]) -> dict[str, list[Column]]:
    """Return the columns that each field feeds: the one that it is meant for, then the versions of that."""
    owners: dict[str, list[Column]] = {}
    for column in sorted(columns, key=lambda c: is_versioned(c.name)):
        for source in column.feeds:
            owners.setdefault(source, []).append(column)
    return owners


def by_source(parts: Iterable[Part]) -> dict[str, list[Part]]:
    """Return the parts by their fields' names."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(part.field.name, []).append(part)
    return found
