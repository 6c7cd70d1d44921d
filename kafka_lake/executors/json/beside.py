"""Values of fields without a column: whether they are strict JSON, and what types they have together."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.json.level import NOT_JSON
from kafka_lake.executors.json.marks import Beside, Marks, Path
from kafka_lake.executors.json.text import NotJsonError, parse, refuse_twice
from kafka_lake.executors.json.text_values import NO_JSON, firsts, having
from kafka_lake.executors.json.types import Kind, kind_of, merged_into

_LIKE_A_DATE, _REAL, _LONG = r'^"[0-9]{4}-[0-9]{2}-[0-9]{2}', r"[.eE]", r"[0-9]{18}"
_BRACKETS = (ord("{"), ord("["))

Values = tuple[Beside, Mapping[int, Any]]
"""Values, and what those of them are, by number, that were parsed."""


def checked(marks: Marks, parsed: bool) -> list[Values]:
    """Return the values beside columns; the records with one that isn't strict JSON are refused.

    Args:
        marks: The notes on a batch.
        parsed: Whether objects and arrays among the values are to be parsed, none of which may have a field twice.
    """
    made: list[Values] = []
    for beside in marks.beside:
        marks.refuse(beside.at[having(beside.texts, NO_JSON)], NOT_JSON)
        held: dict[int, Any] = {}
        for number in np.flatnonzero(np.isin(firsts(beside.texts), _BRACKETS)).tolist() if parsed else ():
            try:
                value = parse(beside.texts[number].as_py().encode())
                refuse_twice(value)
                held[number] = value
            except NotJsonError:
                marks.refuse(beside.at[number : number + 1], NOT_JSON)
        made.append((beside, held))
    return made


def kinds_of(values: Sequence[Values], bad: np.ndarray) -> dict[tuple[Path, str], Kind]:
    """Return the types of fields, of the values in records that aren't bad."""
    kinds: dict[tuple[Path, str], Kind] = {}
    for beside, held in values:
        good = ~bad[beside.at]
        if not good.any():
            continue
        where = beside.path, beside.name
        kind = merged_into(kinds.get(where), _scalars(beside.texts.filter(pa.array(good))))
        for number, value in held.items():
            if good[number]:
                kind = merged_into(kind, kind_of(value))
        kinds[where] = kind
    return kinds


def _scalars(texts: pa.Array) -> Kind:
    """Return the type of the values that aren't objects or arrays."""
    first = firsts(texts)
    kind: Kind = None
    strings = first == ord('"')
    if strings.any():
        quoted = texts.filter(pa.array(strings))
        like = having(quoted, _LIKE_A_DATE)
        kind = "text" if not like.all() else _parsed(quoted)
    if np.isin(first, (ord("t"), ord("f"))).any():
        kind = merged_into(kind, "boolean")
    numbers = (first == ord("-")) | ((first >= ord("0")) & (first <= ord("9")))
    if numbers.any():
        written = texts.filter(pa.array(numbers))
        real, long = having(written, _REAL), having(written, _LONG)
        if real.any():
            kind = merged_into(kind, "double")
        if long.any():
            kind = merged_into(kind, _parsed(written.filter(pa.array(long))))
        if not (real | long).all():
            kind = merged_into(kind, "long")
    return kind


def _parsed(texts: pa.Array) -> Kind:
    kind: Kind = None
    for text in pc.unique(texts).to_pylist():
        kind = merged_into(kind, kind_of(parse(text.encode())))
    return kind
