"""What becomes of a table when its records change: the rules of evolution as one pure function, `evolve`.

Nothing is read or changed here. Paths are column names joined by dots, from the top; ``element``, ``key`` and
``value`` step into lists and maps, as in `kafka_lake.lake.schema.Change`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Literal

from pyiceberg.schema import Schema
from pyiceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StructType,
    UnknownType,
)

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.names import RESERVED, Names, column_name, is_versioned, versioned_name
from kafka_lake.lake.schema import Change, promotes, type_name

EvolutionMode = Literal["evolve", "freeze", "ignore_new"]
OnIncompatible = Literal["dead_letter", "fail", "new_column"]


@dataclass(frozen=True)
class Policy:
    """What a topic's settings say about changes of its records.

    Args:
        evolution: ``evolve`` makes every safe change; ``freeze`` refuses them all; ``ignore_new`` leaves new columns
            out and makes the others.
        on_incompatible: What becomes of values whose type the column can't take.
        renames: Path of a column as it was → its new name, the last component alone.
    """

    evolution: EvolutionMode = "evolve"
    on_incompatible: OnIncompatible = "dead_letter"
    renames: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Incoming:
    """What records look like, as one schema says.

    Args:
        label: What messages call it: ``schema id 7``, ``the records``.
        columns: The fields with their names in the records, which may be anything; field ids don't count. Those of
            type ``unknown`` were always null and count as not there.
    """

    label: str
    columns: StructType


@dataclass(frozen=True)
class Conflict:
    """Values that a column can't take, and where they go.

    Args:
        column: Path of the column that has another type.
        have: The column's type.
        got: The type that the records bring.
        label: Which `Incoming` brings it.
        action: Whether such records are dead letters, or the values go to another column.
        new_column: Path of that column, None for dead letters.
    """

    column: str
    have: str
    got: str
    label: str
    action: Literal["dead_letter", "new_column"]
    new_column: str | None = None


@dataclass(frozen=True)
class Evolution:
    """What records need of a table, by the policy.

    Args:
        columns: The value columns that decoding shall give, by column names; ids of new ones mean nothing.
        sources: Path of a column → name of the field that feeds it, at its level, where the two differ.
        changes: What is to be done to the table, all of it safe; none for a table that is yet to be made.
        ignored: What would have been added but for ``ignore_new``.
        refused: What forbids to go on: any change under ``freeze``, an incompatible one under ``fail``.
        conflicts: Values that don't fit, and where they go.
        also: Path of a column → further names of fields that feed it: those it had before a rename. Where a record
            has several, the column's source in `sources`, or else its own name, counts first.
    """

    columns: StructType
    sources: Mapping[str, str]
    changes: tuple[Change, ...] = ()
    ignored: tuple[Change, ...] = ()
    refused: tuple[Change, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    also: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))


def evolve(
    current: StructType | None,
    sources: Mapping[str, str],
    incoming: Sequence[Incoming],
    policy: Policy,
    reserved: Collection[str] = (),
    adopted: bool = False,
) -> Evolution:
    """Return what the records need of the table, by the policy.

    A field belongs to the column whose source it is, or which has its name; else it gets a column, whose name
    `column_name` makes. So it is at every depth, and whatever order records come in. Columns that no field feeds stay.

    The columns of a table that others made may be in another case than the fields: the first field that fits one so
    becomes its source, for good.

    Args:
        current: The table's value columns; None if there is no table yet.
        sources: What an earlier `Evolution.sources` said, as the table keeps it.
        incoming: What the records look like, one for each schema that occurs among them, in order.
        policy: The topic's.
        reserved: Names that no new column may get at the top level, such as the metadata column's.
        adopted: Whether others made the table.

    Returns:
        The columns, the changes that lead to them, and what doesn't fit. Asked again of the result, with the same
        records, it changes nothing.

    Raises:
        ConfigurationError: If ``renames`` names a column that isn't there, or a new name that is taken or no name.
    """
    evolving = _Evolving(current, sources, policy, reserved, adopted)
    ledger = _Ledger(policy, quiet=current is None)
    shapes = [_Shape(each.label, each.columns) for each in incoming]
    columns = evolving.level(current.fields if current else (), shapes, _Place("", "", frozenset({""})), ledger)
    evolving.check_renames()
    return Evolution(
        StructType(*columns),
        ledger.sources,
        tuple(ledger.changes),
        tuple(ledger.ignored),
        tuple(dict.fromkeys(ledger.refused)),
        tuple(dict.fromkeys(ledger.conflicts)),
        ledger.also,
    )


@dataclass(frozen=True)
class _Shape:
    """A type that records have at one place, and which schema says so."""

    label: str
    kind: IcebergType


@dataclass(frozen=True)
class _Part:
    """A field of one of the shapes at a level, which is the shape's number there."""

    shape: int
    of: _Shape
    field: NestedField

    @property
    def shape_of_field(self) -> _Shape:
        return _Shape(self.of.label, self.field.field_type)


@dataclass(frozen=True)
class _Place:
    """Where in the table a type is.

    Args:
        path: Its path, as it will be; empty at the top.
        was: Its path in the table as it is.
        aliases: Paths under which ``renames`` may speak of it.
    """

    path: str
    was: str
    aliases: frozenset[str]

    def step(self, name: str, was: str | None = None, aliases: Iterable[str] = ()) -> "_Place":
        names = {name, *aliases}
        reached = frozenset(_joined_path(alias, each) for alias in self.aliases for each in names)
        return _Place(_joined_path(self.path, name), _joined_path(self.was, was or name), reached)


def _joined_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@dataclass
class _Column:
    """A column of a level while its parts are being collected.

    Args:
        name: What it will be called.
        place: Where it is.
        had: The table's own field, None for a new column.
        source: The field that feeds it, where that has another name.
        known: Whether it is written down which field that is.
        olds: The names that it had before a rename.
        kind: The type that takes all parts collected so far.
        parts: The fields whose values it takes.
        misfits: The fields whose values it can't take, each with the column that takes them instead, if one does.
    """

    name: str
    place: _Place
    had: NestedField | None
    source: str | None
    olds: tuple[str, ...] = ()
    kind: IcebergType | None = None
    parts: list[_Part] = field(default_factory=list)
    misfits: list[tuple[_Part, "_Column | None"]] = field(default_factory=list)
    known: bool = False

    @property
    def first_source(self) -> str:
        return self.name if self.source is None else self.source

    @property
    def also(self) -> tuple[str, ...]:
        names = dict.fromkeys((*self.olds, self.name) if self.olds else ())
        return tuple(name for name in names if name != self.first_source)

    @property
    def feeds(self) -> tuple[str, ...]:
        return (self.first_source, *self.also)

    @property
    def widest(self) -> IcebergType:
        assert self.kind is not None, "a new column takes whatever comes first"
        return self.kind

    def hand_over(self, parts: Sequence[_Part], version: "_Column", may_be: bool) -> list[_Part]:
        """Give what doesn't fit to a version of this column; return what doesn't fit that either."""
        left = version.take(parts)
        gone = [part for part in parts if not any(part is each for each in left)]
        self.misfits += [(part, version if may_be else None) for part in gone]
        return left

    def take(self, parts: Sequence[_Part]) -> list[_Part]:
        """Take the parts that fit, at most widened; return those that don't, however they are ordered."""
        kinds, keys_stay = [part.field.field_type for part in parts], self.had is not None
        for kind in kinds:
            joined = kind if self.kind is None else _joined(self.kind, kind, keys_stay)
            self.kind = self.kind if joined is None else joined
        fit = [_joined(self.widest, kind, keys_stay) is not None for kind in kinds]
        self.parts += [part for part, fits in zip(parts, fit, strict=True) if fits]
        return [part for part, fits in zip(parts, fit, strict=True) if not fits]


class _Ledger:
    """What has been found so far.

    Args:
        policy: Says whether a change is made, ignored or refused.
        quiet: Within what is new as a whole, a change of its own is none.
    """

    def __init__(self, policy: Policy, quiet: bool) -> None:
        self.policy = policy
        self.quiet = quiet
        self.changes: list[Change] = []
        self.ignored: list[Change] = []
        self.refused: list[Change] = []
        self.conflicts: list[Conflict] = []
        self.sources: dict[str, str] = {}
        self.also: dict[str, tuple[str, ...]] = {}

    def permits(self, change: Change) -> bool:
        """Write a safe change down and return whether it is to be made."""
        if self.quiet:
            return True
        if self.policy.evolution == "freeze":
            self.refused.append(change)
            return False
        if self.policy.evolution == "ignore_new" and change.kind == "added":
            self.ignored.append(change)
            return False
        self.changes.append(change)
        return True

    def absorb(self, other: "_Ledger") -> None:
        self.refused += other.refused
        self.conflicts += other.conflicts
        self.sources |= other.sources
        self.also |= other.also


class _Evolving:
    """One call of `evolve`: its settings, the ids it gives, the renames it has not come across."""

    def __init__(
        self,
        current: StructType | None,
        sources: Mapping[str, str],
        policy: Policy,
        reserved: Collection[str],
        adopted: bool,
    ) -> None:
        self.adopted = adopted and current is not None
        self.current = current
        self.sources = sources
        self.policy = policy
        self.reserved = RESERVED | set(reserved)
        self.ids = count(1 + (Schema(*current.fields).highest_field_id if current else 0))
        self.unmet = dict(policy.renames)
        for path, name in policy.renames.items():
            if name != column_name(name, () if "." in path else RESERVED):
                raise ConfigurationError(
                    f"renames: {path} can't become {name!r}, which is no name of a column.",
                    "Write the new name alone, without dots, and none of Iceberg's reserved ones.",
                )

    def check_renames(self) -> None:
        """Refuse renames of columns that the table has neither by the old nor by the new name."""
        if self.current is None or not self.unmet:
            return
        path, name = next(iter(self.unmet.items()))
        siblings = self._siblings(path)
        raise ConfigurationError(
            f"renames: there is no column {path}, nor one that is called {name} by now; "
            f"the columns there are {', '.join(siblings) or '(none)'}.",
            "Mend renames in the topic's YAML: the column's path as it was, and its new name.",
        )

    def _siblings(self, path: str) -> list[str]:
        """Return the names that the table has where a path leads; those at the top if it leads nowhere."""
        assert self.current is not None
        schema = Schema(*self.current.fields)
        kind = schema.find_type(_parent(path)) if _parent(path) in schema.column_names else self.current
        return [f.name for f in _fields(kind)]

    def level(
        self, have: Sequence[NestedField], shapes: Sequence[_Shape], place: _Place, ledger: _Ledger
    ) -> list[NestedField]:
        """Return the columns of one struct, or of the whole table, that take the fields of all shapes."""
        renames = self._renames_at(place)
        columns = self._existing(have, renames, place, ledger)
        taken = Names([*(c.name for c in columns), *(f.name for f in have), *(() if place.path else self.reserved)])
        parts = [_Part(i, s, f) for i, s in enumerate(shapes) for f in _fields(s.kind) if not _is_nothing(f.field_type)]
        names = dict.fromkeys(p.field.name for p in parts)
        if self.adopted:
            present = {f.name for s in shapes for f in _fields(s.kind)}
            _claim_in_any_case(columns, [n for n in names if n not in renames], present)
        columns += self._new(columns, names, renames, taken, place)
        self._meet(renames, columns, place)

        owners = _owners(columns)
        mine: dict[str, list[_Part]] = {column.name: [] for column in columns}
        for part in parts:
            mine[owners[part.field.name][0].name].append(part)
        versions: list[_Column] = []
        for column in columns:
            for source, rest in _by_source(column.take(mine[column.name])).items():
                versions += self._divert(column, source, rest, owners[source][1:], taken, place, ledger.quiet)
        fields = []
        # A loop: comprehensions are calls, and types may be as deep as the interpreter's stack.
        for column in (*columns, *versions):
            made = self._made(column, len(shapes), not place.path, ledger)
            if made is not None:
                fields.append(made)
        return fields

    def _renames_at(self, place: _Place) -> dict[str, str]:
        """Return the renames of one level: old name → the name that it comes to, through others in between."""
        once = {_last(p): name for p, name in self.policy.renames.items() if _parent(p) in place.aliases}
        final = {}
        for old, name in once.items():
            seen = [old]
            while name in once and name not in seen:
                seen.append(name)
                name = once[name]
            if name in seen:
                raise ConfigurationError(
                    f"renames: {' → '.join([*seen, name])} leads back to where it came from.",
                    "Mend renames in the topic's YAML.",
                )
            final[old] = name
        return final

    def _existing(
        self, have: Sequence[NestedField], renames: Mapping[str, str], place: _Place, ledger: _Ledger
    ) -> list[_Column]:
        names = [renames.get(f.name, f.name) for f in have]
        columns = []
        for index, (had, name) in enumerate(zip(have, names, strict=True)):
            olds = _olds(renames, name)
            where = place.step(name, had.name, olds)
            if name != had.name:
                others = [*names[:index], *names[index + 1 :], *(() if place.path else self.reserved)]
                _refuse_taken(where.was, name, Names(others), have)
                ledger.changes.append(Change(where.was, "renamed", had.name, name))
            source = self.sources.get(where.was)
            other = None if source in (name, had.name) else source
            columns.append(_Column(name, where, had, other, olds, had.field_type, known=source is not None))
        return columns

    def _new(
        self,
        columns: Sequence[_Column],
        names: Iterable[str],
        renames: Mapping[str, str],
        taken: Names,
        place: _Place,
    ) -> list[_Column]:
        """Return a column for every field that feeds none of those there are; their names are taken from then on."""
        fed = {source for column in columns for source in column.feeds}
        added: dict[str, _Column] = {}
        for source in names:
            final = renames.get(source, source)
            if source in fed or final in added:
                continue
            olds = _olds(renames, final)
            if olds:
                _refuse_taken(place.step(source).path, final, taken, [c.had for c in columns if c.had])
            name = final if olds else column_name(source, taken)
            taken.add(name)
            added[final] = _Column(name, place.step(name, None, olds), None, None if name == final else final, olds)
        return list(added.values())

    def _meet(self, renames: Mapping[str, str], columns: Sequence[_Column], place: _Place) -> None:
        names = {column.name for column in columns}
        for path in [p for p in self.unmet if _parent(p) in place.aliases]:
            if renames[_last(path)] in names:
                del self.unmet[path]

    def _divert(
        self,
        column: _Column,
        source: str,
        rest: Sequence[_Part],
        versions: Sequence[_Column],
        taken: Names,
        place: _Place,
        is_new: bool,
    ) -> list[_Column]:
        """Find a column for the values that one can't take; return those that are wanted for them."""
        wanted = []
        for version in versions:
            rest = column.hand_over(rest, version, True)
        while rest and self.policy.on_incompatible == "new_column":
            name = versioned_name(column.name, taken)
            taken.add(name)
            wanted.append(_Column(name, place.step(name), None, source))
            rest = column.hand_over(rest, wanted[-1], is_new or self.policy.evolution == "evolve")
        column.misfits += [(part, None) for part in rest]
        return wanted

    def _made(self, column: _Column, shapes: int, at_top: bool, ledger: _Ledger) -> NestedField | None:
        """Return the field that a column becomes; None if the policy doesn't let it be added."""
        path, had = column.place.path, column.had
        kinds = [part.shape_of_field for part in column.parts]
        here = [*column.parts, *(part for part, version in column.misfits if version is None)]
        always = {part.shape for part in here if part.field.required}
        if had is None:
            inner = _Ledger(self.policy, quiet=True)
            kind = self._type(None, kinds, column.place, inner)
            if not ledger.permits(Change(path, "added", "", type_name(kind))):
                return None
            ledger.absorb(inner)
            required = at_top and self.current is None and len(always) == shapes
            made = NestedField(next(self.ids), column.name, kind, required, column.parts[0].field.doc)
        else:
            required = had.required
            if required and len(always) < shapes:
                required = not ledger.permits(Change(path, "made optional", "required", "optional"))
            kind = self._type(had.field_type, kinds, column.place, ledger)
            made = had.model_copy(update={"name": column.name, "field_type": kind, "required": required})
        if column.source is not None or (self.adopted and (column.known or column.parts)):
            ledger.sources[path] = column.first_source
        if column.also:
            ledger.also[path] = column.also
        for part, version in column.misfits:
            have, got = type_name(kind), type_name(part.field.field_type)
            if version is None and self.policy.on_incompatible == "fail":
                ledger.refused.append(Change(path, "type changed", have, got))
            else:
                action: Literal["dead_letter", "new_column"] = "new_column" if version else "dead_letter"
                elsewhere = version.place.path if version else None
                ledger.conflicts.append(Conflict(path, have, got, part.of.label, action, elsewhere))
        return made

    def _type(self, have: IcebergType | None, kinds: Sequence[_Shape], place: _Place, ledger: _Ledger) -> IcebergType:
        """Return the type that takes values of all these types, which are known to fit.

        Args:
            have: The column's type; None if it is new, the first type counts then.
            kinds: The types.
            place: Where in the table it is.
            ledger: Gets what changes.
        """
        base = kinds[0].kind if have is None else have
        if isinstance(base, StructType):
            return StructType(*self.level(() if have is None else base.fields, kinds, place, ledger))
        if isinstance(base, ListType):
            elements = [each for kind in kinds for each in _elements(kind)]
            element = self._inner("element", None if have is None else base.element_field, elements, place, ledger)
            return ListType(element.field_id, element.field_type, element.required)
        if isinstance(base, MapType):
            values = [each for kind in kinds for each in _values(kind)]
            value = self._inner("value", None if have is None else base.value_field, values, place, ledger)
            key_id, key = base.key_id, base.key_type
            if have is None:
                key_id, key = (
                    next(self.ids),
                    _widest(key, [k.kind.key_type for k in kinds if isinstance(k.kind, MapType)]),
                )
            return MapType(key_id, key, value.field_id, value.field_type, value.required)
        widest = _widest(base, [k.kind for k in kinds])
        if have is None or widest == base:
            return widest
        permitted = ledger.permits(Change(place.path, "widened", type_name(base), type_name(widest)))
        return widest if permitted else base

    def _inner(
        self,
        name: str,
        have: NestedField | None,
        kinds: Sequence[tuple[_Shape, bool]],
        place: _Place,
        ledger: _Ledger,
    ) -> NestedField:
        """Return what a list or map is made of: types come with whether they are required."""
        where, shapes = place.step(name), [shape for shape, _ in kinds]
        if have is None:
            return NestedField(next(self.ids), name, self._type(None, shapes, where, ledger), False)
        required = have.required
        if required and not all(always for _, always in kinds):
            required = not ledger.permits(Change(where.path, "made optional", "required", "optional"))
        return NestedField(have.field_id, name, self._type(have.field_type, shapes, where, ledger), required)


def _refuse_taken(path: str, name: str, taken: Names, have: Iterable[NestedField]) -> None:
    if name in taken:
        raise ConfigurationError(
            f"renames: {path} can't become {name}, that name is taken; "
            f"the columns there are {', '.join(f.name for f in have) or '(none)'}.",
            "Choose another name in the topic's YAML, or take the other column away first.",
        )


def _olds(renames: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(old for old, final in renames.items() if final == name)


def _claim_in_any_case(columns: Sequence[_Column], names: Iterable[str], present: Collection[str]) -> None:
    """Let fields feed columns whose name differs in case, if those have no field of their own."""
    fed = {source for column in columns for source in column.feeds}
    alone = [c for c in columns if not c.known and not any(source in present for source in c.feeds)]
    free = {column.name.lower(): column for column in reversed(alone)}
    for name in names:
        if name not in fed and (column := free.pop(name.lower(), None)):
            column.source = name


def _owners(columns: Iterable[_Column]) -> dict[str, list[_Column]]:
    """Return the columns that each field feeds: the one that it is meant for, then the versions of that."""
    owners: dict[str, list[_Column]] = {}
    for column in sorted(columns, key=lambda c: is_versioned(c.name)):
        for source in column.feeds:
            owners.setdefault(source, []).append(column)
    return owners


def _by_source(parts: Iterable[_Part]) -> dict[str, list[_Part]]:
    found: dict[str, list[_Part]] = {}
    for part in parts:
        found.setdefault(part.field.name, []).append(part)
    return found


def _joined(have: IcebergType, got: IcebergType, keys_stay: bool) -> IcebergType | None:
    """Return the type, at most widened, that takes values of both; None if there is none.

    Structs always go together, field by field; what their fields come to is for another call.
    """
    if isinstance(have, StructType) and isinstance(got, StructType):
        return have
    if isinstance(have, ListType) and isinstance(got, ListType):
        element = _joined(have.element_type, got.element_type, keys_stay)
        return None if element is None else ListType(have.element_id, element, have.element_required)
    if isinstance(have, MapType) and isinstance(got, MapType):
        key = _joined_key(have.key_type, got.key_type)
        value = _joined(have.value_type, got.value_type, keys_stay)
        if key is None or value is None or (keys_stay and key != have.key_type):
            return None
        return MapType(have.key_id, key, have.value_id, value, have.value_required)
    if have == got or promotes(got, have):
        return have
    return got if promotes(have, got) else None


def _joined_key(have: IcebergType, got: IcebergType) -> IcebergType | None:
    if type_name(have) == type_name(got) or promotes(got, have):
        return have
    return got if promotes(have, got) else None


def _widest(base: IcebergType, others: Iterable[IcebergType]) -> IcebergType:
    for other in others:
        base = other if promotes(base, other) else base
    return base


def _is_nothing(kind: IcebergType) -> bool:
    """Return whether no value but null, or empty, was ever seen."""
    if isinstance(kind, StructType):
        return all(_is_nothing(f.field_type) for f in kind.fields)
    if isinstance(kind, ListType):
        return _is_nothing(kind.element_type)
    if isinstance(kind, MapType):
        return _is_nothing(kind.key_type) or _is_nothing(kind.value_type)
    return isinstance(kind, UnknownType)


def _fields(kind: IcebergType) -> Sequence[NestedField]:
    return kind.fields if isinstance(kind, StructType) else ()


def _elements(shape: _Shape) -> list[tuple[_Shape, bool]]:
    kind = shape.kind
    return [(_Shape(shape.label, kind.element_type), kind.element_required)] if isinstance(kind, ListType) else []


def _values(shape: _Shape) -> list[tuple[_Shape, bool]]:
    kind = shape.kind
    return [(_Shape(shape.label, kind.value_type), kind.value_required)] if isinstance(kind, MapType) else []


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _last(path: str) -> str:
    return path.rpartition(".")[2]
