"""How values of messages become arrays: what the readers of fields have in common."""

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class UnsupportedTypeError(ValueError):
    """A message has a field that no column can hold; the text names it."""


@dataclass(frozen=True)
class Values:
    """How values that the protobuf package gives, None where unset, become arrays.

    Args:
        types: By the suffix of the column's name; more than one where one type can't hold the values.
        arrays: From values to an array of each type.
    """

    types: dict[str, pa.DataType]
    arrays: Callable[[list[Any]], list[pa.Array]]


SET = "_set"
"""The only field of a struct for messages and records without fields: true where there is one."""


@dataclass(frozen=True)
class Columns:
    """The columns that a field makes, and how to read them from messages, none of them None."""

    fields: list[pa.Field]
    read: Callable[[list[Any]], list[pa.Array]]


@dataclass(frozen=True)
class Files:
    """The messages of a schema; enum fields are int32 in them, and have their values' names here, by number.

    Args:
        pool: The messages.
        enums: Full name of a field → its values' names.
        parts: Paths of the messages that have been looked at; it grows.
    """

    pool: Any
    enums: dict[str, dict[int, str]]
    parts: list[str] = field(default_factory=list)


def list_of(kind: pa.DataType) -> pa.DataType:
    """Return the type of lists of a type."""
    return pa.list_(pa.field("element", kind))


def plain_values(kind: pa.DataType) -> Values:
    """Return values that Arrow takes as they are."""
    return Values({"": kind}, lambda values: [pa.array(values, kind)])


def each_as(kind: pa.DataType, convert: Callable[[Any], Any]) -> Values:
    """Return values of which each is converted, but for None."""
    return Values({"": kind}, lambda values: [pa.array([None if v is None else convert(v) for v in values], kind)])


def refuse_outside(what: str, numbers: pa.Array, low: int, high: int) -> None:
    """Refuse numbers outside of a range.

    Args:
        what: The beginning of the message, which the number ends.
        numbers: Integers or nulls.
        low: The least that is allowed.
        high: The greatest that is allowed.

    Raises:
        ValueError: If there is one.
    """
    for found in pc.min_max(numbers).as_py().values():
        if found is not None and not low <= found <= high:
            raise ValueError(f"{what} {found}")


def exact_decimal(number: int, scale: int) -> Decimal:
    # Arithmetic would round to the digits of the context.
    """Return an unscaled number with its scale as a decimal, with all of its digits."""
    return Decimal(f"{number}E{-scale}")
