"""Which changes of a table's schema are safe, by Iceberg's rules. Pure: no Spark, no network, no Dagster.

The rules are the specification's (https://iceberg.apache.org/spec/#schema-evolution): columns may be added if they are
optional and renamed if they keep their field id, required may become optional, and a type may be promoted int → long,
float → double, decimal(P, S) → decimal(P', S) with P' > P, unknown → any primitive. Anything else would change what
readers of older files see. `RULES` is the same for users, with what becomes of the records.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
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
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
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
    """Return what differs between two schemas, matched by field id, in the order of the newer one.

    Args:
        before: The schema that readers know.
        after: The schema that a commit would give them.
    """
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

    >>> list(leaf_paths(StructType(NestedField(1, "a", ListType(2, StringType(), False), False))))
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

    Args:
        target: The schema of the rows, any field ids.
    """
    matched = StructType(*_ids_like(current.as_struct(), target.as_struct()))
    found = _struct_changes("", current.as_struct(), matched)
    return [c for c in found if c.kind not in ("removed", "made required", "renamed")]


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


@dataclass(frozen=True)
class Rule:
    """One line of the rulebook.

    Args:
        change: What differs between table and records, in words.
        table: An example: the table's columns.
        records: The fields that records bring.
        kind: The change of the table that this comes to: made by default if it is safe, and never if not.
        renames: The topic's setting of that name, for the example.
    """

    change: str
    table: StructType
    records: StructType
    kind: Kind | None
    outcome: str = "such records are dead letters"
    renames: Mapping[str, str] | None = None

    @property
    def verdict(self) -> str:
        """Return whether that can be done without changing what readers see."""
        return "nothing to do" if self.kind is None else "safe" if self.kind in SAFE else "unsafe"

    @property
    def otherwise(self) -> str:
        """Return which settings make the outcome another."""
        if self.kind == "added":
            return "`freeze` refuses the run, `ignore_new` leaves it out"
        if self.kind in ("widened", "made optional"):
            return "`freeze` refuses the run"
        return "" if self.kind != "type changed" else "`fail` refuses the run, `new_column` adds `a__v2`"


def _struct(**columns: IcebergType) -> StructType:
    return StructType(
        *[NestedField(i, name, kind, required=False) for i, (name, kind) in enumerate(columns.items(), 1)]
    )


def _required(**columns: IcebergType) -> StructType:
    return StructType(
        *[NestedField(f.field_id, f.name, f.field_type, required=True) for f in _struct(**columns).fields]
    )


def _list(element: IcebergType) -> ListType:
    return ListType(11, element, element_required=False)


def _map(value: IcebergType, key: IcebergType | None = None) -> MapType:
    return MapType(12, key or StringType(), 13, value, value_required=False)


_INT, _LONG, _FLOAT, _DOUBLE, _TEXT = IntegerType(), LongType(), FloatType(), DoubleType(), StringType()
_A, _AB, _S = _struct(a=_INT), _struct(a=_INT, b=_TEXT), _struct(a=_struct(b=_INT))
_ADDED = "added; null in the rows that are there"
_WIDER = "the column is widened; no file is written anew"

RULES = (
    Rule("new field", _A, _AB, "added", outcome=_ADDED),
    Rule("… in a struct", _struct(s=_A), _struct(s=_AB), "added", outcome=_ADDED),
    Rule("… in the structs of a list", _struct(s=_list(_A)), _struct(s=_list(_AB)), "added", outcome=_ADDED),
    Rule("… in the structs of a map", _struct(s=_map(_A)), _struct(s=_map(_AB)), "added", outcome=_ADDED),
    Rule(
        "new field that is required",
        _required(a=_INT),
        _required(a=_INT, b=_TEXT),
        "added",
        outcome="added as optional",
    ),
    Rule(
        "new field that was always null",
        _A,
        _struct(a=_INT, b=UnknownType()),
        None,
        outcome="it waits until it has a type",
    ),
    Rule("`int` becomes `long`", _A, _struct(a=_LONG), "widened", outcome=_WIDER),
    Rule("`float` becomes `double`", _struct(a=_FLOAT), _struct(a=_DOUBLE), "widened", outcome=_WIDER),
    Rule("more digits", _struct(a=DecimalType(9, 2)), _struct(a=DecimalType(12, 2)), "widened", outcome=_WIDER),
    Rule("wider elements", _struct(a=_list(_INT)), _struct(a=_list(_LONG)), "widened", outcome=_WIDER),
    Rule("narrower than the column", _struct(a=_LONG), _A, None, outcome="the column holds it as it is"),
    Rule("required becomes optional", _required(a=_INT), _A, "made optional", outcome="the column is made optional"),
    Rule("no longer there", _AB, _A, None, outcome="the column stays, and is null; none is ever dropped"),
    Rule(
        "… though required",
        _required(a=_INT, b=_TEXT),
        _required(a=_INT),
        "made optional",
        outcome="… and made optional",
    ),
    Rule("optional becomes required", _A, _required(a=_INT), None, outcome="the column stays optional"),
    Rule("another order, another doc", _AB, _struct(b=_TEXT, a=_INT), None, outcome="the columns stay where they are"),
    Rule(
        "another name, in `renames:`",
        _A,
        _struct(b=_INT),
        "renamed",
        outcome="renamed; id and values stay",
        renames={"a": "b"},
    ),
    Rule("another name, not in `renames:`", _A, _struct(b=_INT), "added", outcome="one field is gone, another is new"),
    Rule("another name, in case only", _A, _struct(A=_INT), "added", outcome="added as `A__2`"),
    Rule("names that differ in case only", _A, _struct(a=_INT, A=_TEXT), "added", outcome="added as `A__2`"),
    Rule("number becomes text", _A, _struct(a=_TEXT), "type changed"),
    Rule("text becomes number", _struct(a=_TEXT), _struct(a=_LONG), "type changed"),
    Rule("whole number becomes fraction", _A, _struct(a=_DOUBLE), "type changed"),
    Rule("fraction becomes whole number", _struct(a=_DOUBLE), _struct(a=_LONG), "type changed"),
    Rule("another scale", _struct(a=DecimalType(9, 2)), _struct(a=DecimalType(9, 3)), "type changed"),
    Rule("date becomes timestamp", _struct(a=DateType()), _struct(a=TimestampType()), "type changed"),
    Rule("time zone or none", _struct(a=TimestampType()), _struct(a=TimestamptzType()), "type changed"),
    Rule("struct becomes scalar", _S, _struct(a=_TEXT), "type changed"),
    Rule("scalar becomes struct", _struct(a=_TEXT), _S, "type changed"),
    Rule("scalar becomes list", _A, _struct(a=_list(_INT)), "type changed"),
    Rule("other keys", _struct(a=_map(_INT, _INT)), _struct(a=_map(_INT, _LONG)), "type changed"),
)
"""What happens when records differ from their table, as `kafka_lake.lake.evolution.evolve.evolve` decides it."""


def rules_table() -> str:
    """Return the rulebook as a table in Markdown."""
    lines = ["| what changes | table ← records | verdict | what happens | unless |", "|---|---|---|---|---|"]
    for rule in RULES:
        example = f"`{_example(rule.table)}` ← `{_example(rule.records)}`"
        lines.append(
            f"| {rule.change} | {example} | {rule.verdict} | {rule.outcome} | {rule.otherwise} |".replace("  ", " ")
        )
    return "\n".join(lines) + "\n"


def _example(columns: StructType) -> str:
    return ", ".join(f"{f.name}: {type_name(f.field_type)}{' required' if f.required else ''}" for f in columns.fields)
