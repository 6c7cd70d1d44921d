"""Columns of records, as tasks know them, and what a topic's settings say about JSON values.

A column is plain data, so that it travels: ``(name, kind, sources, required, shown)`` with the names of the fields that
feed it and its type as messages show it. A kind is ``("long",)`` and the like, ``("decimal", precision, scale)``,
``("list", kind)``, ``("map", kind)`` with text as keys, ``("map", kind, kind)`` with other keys, or
``("struct", columns)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Column = tuple[str, Any, tuple[str, ...], bool, str]

UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0.001}
"""Units of a time that is a number since 1970, and how many microseconds each is."""
FIRST_MICROS, LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 0001 to 9999, which is what every reader of a table holds."""
_ARROW = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


@dataclass(frozen=True)
class Rules:
    """What a topic's settings say about its values.

    Args:
        infer: Whether fields without a column are wanted; else they are counted.
        unwanted: Fields of the record that aren't wanted all the same.
        any_case: Whether a field feeds the one column whose field's name differs from its own in case alone, if the
            object has a value by no name that is closer.
        timestamp_unit: Of numbers in columns of times, one of `UNITS`; None if such numbers are type errors.
        max_columns: How many columns the table may have. More new fields than that aren't listed.
    """

    infer: bool = False
    unwanted: Sequence[str] = ()
    timestamp_unit: str | None = None
    max_columns: int = 1000
    any_case: bool = False


def fed_alone(columns: Sequence[Column]) -> bool:
    """Return whether one field of its own feeds each column; those within them aside."""
    sources = [source for column in columns for source in column[2]]
    return bool(columns) and len(set(sources)) == len(sources) == len(columns)


def arrow_type(kind: Any) -> Any:
    """Return the Arrow type of a kind."""
    if kind[0] == "struct":
        return pa.struct([pa.field(part[0], arrow_type(part[1])) for part in kind[1]])
    if kind[0] == "list":
        return pa.list_(arrow_type(kind[1]))
    if kind[0] == "map":
        return pa.map_(arrow_type(kind[2]) if len(kind) > 2 else pa.string(), arrow_type(kind[1]))
    return pa.decimal128(kind[1], kind[2]) if kind[0] == "decimal" else _ARROW[kind[0]]
