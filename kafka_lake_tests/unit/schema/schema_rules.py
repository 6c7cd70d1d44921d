"""The rulebook of schema evolution, as the documentation has it; tests compare it with the code."""

from collections.abc import Mapping
from dataclasses import dataclass

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
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UnknownType,
)

from kafka_lake.schema.rules import SAFE, Kind, type_name


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
"""What happens when records differ from their table, as `kafka_lake.schema.evolution.evolve.evolve` decides it."""


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
