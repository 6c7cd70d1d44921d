"""How values of messages become arrays: what the readers of fields have in common."""

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class UnsupportedTypeError(ValueError):
    """A message has a field that no column can hold; the text names it."""


Doubts = np.ndarray | None
"""Which values the exact reader must look at; None for none."""


@dataclass(frozen=True)
class Wire:
    """How ptars reads values, and how its arrays become those of `Values`.

    Args:
        type: The type that a field is declared with for ptars: a number of ``FieldDescriptorProto.Type``.
        arrays: From the array that ptars makes to an array of each type, and the doubtful values.
        fields: Those of a message, by number.
    """

    type: int
    arrays: Callable[[pa.Array], tuple[list[pa.Array], Doubts]]
    fields: tuple["WireField", ...] = ()


@dataclass(frozen=True)
class WireField:
    """A field of a message as ptars reads it.

    Args:
        wire: How its values are read.
        optional: Whether null tells that it is unset.
    """

    number: int
    wire: Wire
    repeated: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Values:
    """How the values of a field, null where unset, become arrays.

    Args:
        types: By the suffix of the column's name; more than one where one type can't hold the values.
        arrays: From values that the protobuf package gives to an array of each type.
        wire: The same from what ptars reads.
    """

    types: dict[str, pa.DataType]
    arrays: Callable[[list[Any]], list[pa.Array]]
    wire: Wire


SET = "_set"
"""The only field of a struct for messages and records without fields: true where there is one."""


@dataclass(frozen=True)
class Columns:
    """The columns that a field makes, how to read them from messages, none of them None, and how ptars reads it."""

    fields: list[pa.Field]
    read: Callable[[list[Any]], list[pa.Array]]
    wire: WireField


@dataclass(frozen=True)
class Files:
    """The messages of a schema; enum fields are int32 in them, and have their values' names here, by number.

    Args:
        enums: Full name of a field → its values' names.
        parts: Paths of the messages that have been looked at; it grows.
        declined: Paths of the fields that ptars can't read; it grows.
    """

    pool: Any
    enums: dict[str, dict[int, str]]
    parts: list[str] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)


def list_of(kind: pa.DataType) -> pa.DataType:
    """Return the type of lists of a type."""
    return pa.list_(pa.field("element", kind))


def either(one: Doubts, other: Doubts) -> Doubts:
    """Return what is doubtful by one of two."""
    if one is None or other is None:
        return other if one is None else one
    found: np.ndarray = one | other
    return found


def owners(elements: Doubts, offsets: np.ndarray) -> Doubts:
    """Return which lists have a doubtful element."""
    if elements is None:
        return None
    found = np.zeros(len(offsets) - 1, dtype=bool)
    found[np.searchsorted(offsets, np.flatnonzero(elements), side="right") - 1] = True
    return found


def where(mask: np.ndarray) -> Doubts:
    """Return the doubts of a mask."""
    return mask if mask.any() else None


def refuse_outside(what: str, numbers: pa.Array, low: int, high: int) -> None:
    """Refuse numbers outside of a range.

    Args:
        what: The beginning of the message, which the number ends.
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
