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

from kafka_lake.schema.rules import SAFE, Kind


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
_ADDED = "the column is added, and null in existing rows"
_WIDER = "the column's type is widened; no file is rewritten"

RULES = (
    Rule("new field", _A, _AB, "added", outcome=_ADDED),
    Rule("new field in a struct", _struct(s=_A), _struct(s=_AB), "added", outcome=_ADDED),
    Rule("in the structs of a list", _struct(s=_list(_A)), _struct(s=_list(_AB)), "added", outcome=_ADDED),
    Rule("in the structs of a map", _struct(s=_map(_A)), _struct(s=_map(_AB)), "added", outcome=_ADDED),
    Rule(
        "new required field",
        _required(a=_INT),
        _required(a=_INT, b=_TEXT),
        "added",
        outcome="added as an optional column",
    ),
    Rule(
        "new field that is always null",
        _A,
        _struct(a=_INT, b=UnknownType()),
        None,
        outcome="no column until a value shows the type",
    ),
    Rule("`int` becomes `long`", _A, _struct(a=_LONG), "widened", outcome=_WIDER),
    Rule("`float` becomes `double`", _struct(a=_FLOAT), _struct(a=_DOUBLE), "widened", outcome=_WIDER),
    Rule(
        "a decimal gets more digits",
        _struct(a=DecimalType(9, 2)),
        _struct(a=DecimalType(12, 2)),
        "widened",
        outcome=_WIDER,
    ),
    Rule("list elements widen likewise", _struct(a=_list(_INT)), _struct(a=_list(_LONG)), "widened", outcome=_WIDER),
    Rule("narrower type than the column", _struct(a=_LONG), _A, None, outcome="the column stores the values"),
    Rule("required becomes optional", _required(a=_INT), _A, "made optional", outcome="the column becomes optional"),
    Rule("missing field", _AB, _A, None, outcome="the column stays and is null; columns are never dropped"),
    Rule(
        "missing field that was required",
        _required(a=_INT, b=_TEXT),
        _required(a=_INT),
        "made optional",
        outcome="the column becomes optional",
    ),
    Rule("optional becomes required", _A, _required(a=_INT), None, outcome="the column stays optional"),
    Rule("other order of fields, other doc", _AB, _struct(b=_TEXT, a=_INT), None, outcome="columns keep their place"),
    Rule(
        "new name, listed in `renames`",
        _A,
        _struct(b=_INT),
        "renamed",
        outcome="the column is renamed and keeps its id and values",
        renames={"a": "b"},
    ),
    Rule(
        "new name, not listed in `renames`",
        _A,
        _struct(b=_INT),
        "added",
        outcome="counts as a missing field and a new field",
    ),
    Rule("new name that differs only in case", _A, _struct(A=_INT), "added", outcome="a second column `A__2` is added"),
    Rule(
        "two names that differ only in case",
        _A,
        _struct(a=_INT, A=_TEXT),
        "added",
        outcome="a second column `A__2` is added",
    ),
    Rule("number becomes text", _A, _struct(a=_TEXT), "type changed"),
    Rule("text becomes number", _struct(a=_TEXT), _struct(a=_LONG), "type changed"),
    Rule("integer becomes fraction", _A, _struct(a=_DOUBLE), "type changed"),
    Rule("fraction becomes integer", _struct(a=_DOUBLE), _struct(a=_LONG), "type changed"),
    Rule("a decimal gets another scale", _struct(a=DecimalType(9, 2)), _struct(a=DecimalType(9, 3)), "type changed"),
    Rule("date becomes timestamp", _struct(a=DateType()), _struct(a=TimestampType()), "type changed"),
    Rule(
        "timestamp gains or loses its time zone",
        _struct(a=TimestampType()),
        _struct(a=TimestamptzType()),
        "type changed",
    ),
    Rule("struct becomes scalar", _S, _struct(a=_TEXT), "type changed"),
    Rule("scalar becomes struct", _struct(a=_TEXT), _S, "type changed"),
    Rule("scalar becomes list", _A, _struct(a=_list(_INT)), "type changed"),
    Rule("other key type of a map", _struct(a=_map(_INT, _INT)), _struct(a=_map(_INT, _LONG)), "type changed"),
)
"""What happens when records differ from their table, as `kafka_lake.schema.evolution.evolve.evolve` decides it."""


_HEADS = {
    "safe": "**Safe changes** are automatic. With `freeze` they fail the run; with `ignore_new`, new fields are "
    "left out:",
    "nothing to do": "**No change** is needed:",
    "unsafe": "**Values that don't fit** become dead letters. With `fail` they fail the run; with `new_column` they go "
    "to a second column, `name__v2`:",
}


def rules_list() -> str:
    """Return the rulebook as lists in Markdown."""
    parts = []
    for verdict, head in _HEADS.items():
        outcomes: dict[str, list[str]] = {}
        for rule in RULES:
            if rule.verdict == verdict:
                outcomes.setdefault(rule.outcome, []).append(rule.change)
        parts += [head, ""]
        if verdict == "unsafe":
            parts += [f"- {change}" for changes in outcomes.values() for change in changes]
        else:
            parts += [f"- {'; '.join(changes)}: {outcome}" for outcome, changes in outcomes.items()]
        parts.append("")
    return "\n".join(parts)
