"""How a table changes with its records: the rules of schema evolution as one pure function, `evolve`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from kafka_lake.errors import ConfigurationError
from kafka_lake.schema.evolution.columns import (
    Column,
    Part,
    Place,
    Shape,
    by_source,
    claim_in_any_case,
    elements_of,
    fields_of,
    is_nothing,
    name_of,
    owners_of,
    parent_of,
    values_of,
    widest_of,
)
from kafka_lake.schema.evolution.model import Conflict, Evolution, Incoming, Ledger, Policy
from kafka_lake.schema.names import RESERVED, Names, column_name, versioned_name
from kafka_lake.schema.rules import Change, type_name


class Renames:
    """The renames of one call of `evolve`, and those among them for which no column was found yet.

    Args:
        renames: Old path of a column → its new name.
    """

    def __init__(self, renames: Mapping[str, str], current: StructType | None) -> None:
        self.renames = renames
        self.current = current
        self.unmet = dict(renames)
        for path, name in renames.items():
            if name != column_name(name, () if "." in path else RESERVED):
                raise ConfigurationError(
                    f"renames: {path} can't become {name!r}, which isn't a valid column name.",
                    "Write only the new name: letters, digits and underscores, and no name that Iceberg reserves.",
                )

    def at(self, place: Place) -> dict[str, str]:
        """Return the renames of one level: old name → final name; a rename may follow another."""
        once = {name_of(p): name for p, name in self.renames.items() if parent_of(p) in place.aliases}
        final = {}
        for old, name in once.items():
            seen = [old]
            while name in once and name not in seen:
                seen.append(name)
                name = once[name]
            if name in seen:
                raise ConfigurationError(
                    f"renames: {' → '.join([*seen, name])} is a cycle.",
                    "Correct renames in the topic's YAML.",
                )
            final[old] = name
        return final

    def meet(self, renames: Mapping[str, str], columns: Sequence[Column], place: Place) -> None:
        """Note the renames of a level that have led to a column."""
        names = {column.name for column in columns}
        for path in [p for p in self.unmet if parent_of(p) in place.aliases]:
            if renames[name_of(path)] in names:
                del self.unmet[path]

    def check(self) -> None:
        """Refuse renames of columns that the table has neither under the old nor under the new name."""
        if self.current is None or not self.unmet:
            return
        path, name = next(iter(self.unmet.items()))
        siblings = self._siblings(path)
        raise ConfigurationError(
            f"renames: there is no column {path} and no column {name}; the columns at this level are "
            f"{', '.join(siblings) or '(none)'}.",
            "Correct renames in the topic's YAML: write the column's old path, and its new name.",
        )

    def _siblings(self, path: str) -> list[str]:
        """Return the names of the columns beside a path; those at the top if the path leads nowhere."""
        assert self.current is not None
        schema = Schema(*self.current.fields)
        kind = schema.find_type(parent_of(path)) if parent_of(path) in schema.column_names else self.current
        return [f.name for f in fields_of(kind)]


def refuse_taken(path: str, name: str, taken: Names, have: Iterable[NestedField]) -> None:
    """Refuse a rename to a name that is taken."""
    if name in taken:
        raise ConfigurationError(
            f"renames: {path} can't become {name}: that name is taken; the columns at this level are "
            f"{', '.join(f.name for f in have) or '(none)'}.",
            "Choose another name in the topic's YAML, or remove the other column first.",
        )


def old_names(renames: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the names that a column had before its renames."""
    return tuple(old for old, final in renames.items() if final == name)


def evolve(
    current: StructType | None,
    sources: Mapping[str, str],
    incoming: Sequence[Incoming],
    policy: Policy,
    reserved: Collection[str] = (),
    adopted: bool = False,
) -> Evolution:
    """Return the columns that the records need, and the changes of the table that the policy allows.

    A field feeds the column whose source it is, or which has its name; otherwise it gets a new column, named by
    `column_name`. This holds at every depth and for any order of the records. Columns that no field feeds stay.

    In a table that was taken over, columns may differ from fields in case: the first such field becomes the column's
    source for good.

    Paths are column names joined by dots; ``element``, ``key`` and ``value`` step into lists and maps.
    """
    evolving = _Evolving(current, sources, policy=policy, reserved=reserved, adopted=adopted)
    ledger = Ledger(policy, quiet=current is None)
    shapes = [Shape(schema.label, schema.columns) for schema in incoming]
    columns = evolving.level(current.fields if current else (), shapes, Place("", "", frozenset({""})), ledger)
    evolving.renames.check()
    return Evolution(
        StructType(*columns),
        ledger.sources,
        changes=tuple(ledger.changes),
        ignored=tuple(ledger.ignored),
        refused=tuple(dict.fromkeys(ledger.refused)),
        conflicts=tuple(dict.fromkeys(ledger.conflicts)),
        also=ledger.also,
    )


class _Evolving:
    """One call of `evolve`: its settings and the next field id."""

    def __init__(
        self,
        current: StructType | None,
        sources: Mapping[str, str],
        policy: Policy,
        reserved: Collection[str],
        adopted: bool,
    ) -> None:
        self.adopted = adopted and current is not None
        self.renames = Renames(policy.renames, current)
        self.current = current
        self.sources = sources
        self.policy = policy
        self.reserved = RESERVED | set(reserved)
        self.ids = count(1 + (Schema(*current.fields).highest_field_id if current else 0))

    def level(
        self, have: Sequence[NestedField], shapes: Sequence[Shape], place: Place, ledger: Ledger
    ) -> list[NestedField]:
        """Return the columns of one struct, or of the whole table, for the fields of all shapes."""
        renames = self.renames.at(place)
        columns = self._existing(have, renames, place, ledger)
        taken = Names([*(c.name for c in columns), *(() if place.path else self.reserved)])
        parts = [Part(i, s, f) for i, s in enumerate(shapes) for f in fields_of(s.kind) if not is_nothing(f.field_type)]
        names = dict.fromkeys(p.field.name for p in parts)
        if self.adopted:
            present = {f.name for s in shapes for f in fields_of(s.kind)}
            claim_in_any_case(columns, [n for n in names if n not in renames], present)
        columns += self._new(columns, names, renames=renames, taken=taken, place=place)
        self.renames.meet(renames, columns, place)

        owners = owners_of(columns)
        parts_of: dict[str, list[Part]] = {column.name: [] for column in columns}
        for part in parts:
            parts_of[owners[part.field.name][0].name].append(part)
        versions: list[Column] = []
        for column in columns:
            for source, rest in by_source(column.take(parts_of[column.name])).items():
                versions += self._divert(
                    column, source, rest, versions=owners[source][1:], taken=taken, place=place, is_new=ledger.quiet
                )
        fields = []
        # A loop: comprehensions are calls, and types may be as deep as the interpreter's stack.
        for column in (*columns, *versions):
            made = self._made(column, len(shapes), not place.path, ledger)
            if made is not None:
                fields.append(made)
        return fields

    def _existing(
        self, have: Sequence[NestedField], renames: Mapping[str, str], place: Place, ledger: Ledger
    ) -> list[Column]:
        names = [renames.get(f.name, f.name) for f in have]
        columns = []
        for index, (had, name) in enumerate(zip(have, names, strict=True)):
            olds = old_names(renames, name)
            where = place.step(name, had.name, olds)
            if name != had.name:
                taken = [*names[:index], *names[index + 1 :], *(() if place.path else self.reserved)]
                refuse_taken(where.was, name, Names(taken), have)
                ledger.changes.append(Change(where.was, "renamed", had.name, name))
            source = self.sources.get(where.was)
            other = None if source in (name, had.name) else source
            columns.append(
                Column(name, where, had=had, source=other, olds=olds, kind=had.field_type, known=source is not None)
            )
        return columns

    def _new(
        self,
        columns: Sequence[Column],
        names: Iterable[str],
        renames: Mapping[str, str],
        taken: Names,
        place: Place,
    ) -> list[Column]:
        """Return a new column for every field that feeds no existing one, and mark its name as taken."""
        fed = {source for column in columns for source in column.feeds}
        added: dict[str, Column] = {}
        for source in names:
            final = renames.get(source, source)
            if source in fed or final in added:
                continue
            olds = old_names(renames, final)
            if olds:
                refuse_taken(place.step(source).path, final, taken, [c.had for c in columns if c.had])
            name = final if olds else column_name(source, taken)
            taken.add(name)
            added[final] = Column(
                name, place.step(name, None, olds), had=None, source=None if name == final else final, olds=olds
            )
        return list(added.values())

    def _divert(
        self,
        column: Column,
        source: str,
        rest: Sequence[Part],
        versions: Sequence[Column],
        taken: Names,
        place: Place,
        is_new: bool,
    ) -> list[Column]:
        """Find versions of a column for the values that it can't take; return the new ones."""
        columns = []
        for version in versions:
            rest = column.hand_over(rest, version, True)
        while rest and self.policy.on_incompatible == "new_column":
            name = versioned_name(column.name, taken)
            taken.add(name)
            columns.append(Column(name, place.step(name), None, source))
            rest = column.hand_over(rest, columns[-1], is_new or self.policy.evolution == "evolve")
        column.rejected += [(part, None) for part in rest]
        return columns

    def _made(self, column: Column, shapes: int, at_top: bool, ledger: Ledger) -> NestedField | None:
        """Return the field that a column becomes; None if the policy forbids adding it."""
        path, had = column.place.path, column.had
        kinds = [part.shape_of_field for part in column.parts]
        here = [*column.parts, *(part for part, version in column.rejected if version is None)]
        always = {part.shape for part in here if part.field.required}
        if had is None:
            inner = Ledger(self.policy, quiet=True)
            kind = self._type(None, kinds, column.place, inner)
            if not ledger.permits(Change(path, "added", "", type_name(kind))):
                return None
            ledger.absorb(inner)
            required = at_top and self.current is None and len(always) == shapes
            made = NestedField(next(self.ids), column.name, kind, required=required, doc=column.parts[0].field.doc)
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
        for part, version in column.rejected:
            have, got = type_name(kind), type_name(part.field.field_type)
            if version is None and self.policy.on_incompatible == "fail":
                ledger.refused.append(Change(path, "type changed", have, got))
            else:
                elsewhere = version.place.path if version else None
                ledger.conflicts.append(Conflict(path, have, got, label=part.of.label, new_column=elsewhere))
        return made

    def _type(self, have: IcebergType | None, kinds: Sequence[Shape], place: Place, ledger: Ledger) -> IcebergType:
        """Return the type that takes values of all these types, which fit together."""
        base = kinds[0].kind if have is None else have
        if isinstance(base, StructType):
            return StructType(*self.level(() if have is None else base.fields, kinds, place, ledger))
        if isinstance(base, ListType):
            elements = [inner for kind in kinds for inner in elements_of(kind)]
            element = self._inner(
                "element", None if have is None else base.element_field, kinds=elements, place=place, ledger=ledger
            )
            return ListType(element.field_id, element.field_type, element.required)
        if isinstance(base, MapType):
            values = [inner for kind in kinds for inner in values_of(kind)]
            value = self._inner(
                "value", None if have is None else base.value_field, kinds=values, place=place, ledger=ledger
            )
            key_id, key = base.key_id, base.key_type
            if have is None:
                key_id, key = (
                    next(self.ids),
                    widest_of(key, [k.kind.key_type for k in kinds if isinstance(k.kind, MapType)]),
                )
            return MapType(key_id, key, value.field_id, value.field_type, value_required=value.required)
        widest = widest_of(base, [k.kind for k in kinds])
        if have is None or widest == base:
            return widest
        permitted = ledger.permits(Change(place.path, "widened", type_name(base), type_name(widest)))
        return widest if permitted else base

    def _inner(
        self,
        name: str,
        have: NestedField | None,
        kinds: Sequence[tuple[Shape, bool]],
        place: Place,
        ledger: Ledger,
    ) -> NestedField:
        """Return the inner field of a list or map; each type comes with whether it is required."""
        where, shapes = place.step(name), [shape for shape, _ in kinds]
        if have is None:
            return NestedField(next(self.ids), name, self._type(None, shapes, where, ledger), False)
        required = have.required
        if required and not all(always for _, always in kinds):
            required = not ledger.permits(Change(where.path, "made optional", "required", "optional"))
        return NestedField(have.field_id, name, self._type(have.field_type, shapes, where, ledger), required)
