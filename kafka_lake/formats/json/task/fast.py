"""The fast path: columns at once where they surely fit, and which records are left to the strict path, and why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.json.task.level import Level
from kafka_lake.formats.json.task.lines import Lines
from kafka_lake.formats.json.task.text import DEPTH, NotJsonError, parse, refuse_twice
from kafka_lake.formats.json.task.types import Kind, kind_of, merged_into
from kafka_lake.formats.json.task.values import NO_JSON, Beside, Marks, Path, firsts, having
from kafka_lake.formats.task.columns import Column, Rules, arrow_type
from kafka_lake.formats.task.error_classes import NOT_JSON

_LIKE_A_DATE, _REAL, _LONG = r'^"[0-9]{4}-[0-9]{2}-[0-9]{2}', r"[.eE]", r"[0-9]{18}"
_BRACKETS = (ord("{"), ord("["))

Values = tuple[Beside, Mapping[int, Any]]
"""Values, and what those of them are, by number, that were parsed."""


def checked(marks: Marks, parsed: bool) -> list[Values]:
    """Return the values beside columns; the records with one that isn't strict JSON are refused."""
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


_TRIMMED = " \t\r\n"
_DIGITS, _NULL, _ANEW = "numbers with many digits", "null in a required column", "numbers that are parts of texts"
_WRITTEN_ANEW = r"[0-9][eE][-+]?[0-9]|\.[0-9]*[0-9]0[\s,\]}]|[0-9.]{17}|[:,\[\s]-?0\.000|-0[\s,\]}]"
"""Numbers that DuckDB may write otherwise than they were: 1.50 and 1e3, those of 16 digits, small ones, and -0."""


@dataclass(frozen=True)
class Fast:
    """What the fast path made of values.

    Args:
        rows: A struct of the columns for each value that it took.
        taken: Which those are, of all values.
        kinds: Fields without a column, where they are wanted: the struct that they are in and the name → their type.
        aside: Path of a field without a column → how many values it has.
        rounded: Path of a column → how many of its numbers were rounded.
        alone: Why values were not taken → how many.
    """

    rows: pa.StructArray
    taken: np.ndarray
    kinds: Mapping[tuple[Path, str], Kind] = field(default_factory=dict)
    aside: Mapping[str, int] = field(default_factory=dict)
    rounded: Mapping[str, int] = field(default_factory=dict)
    alone: Mapping[str, int] = field(default_factory=dict)


class FastReader:
    """Reads batches of JSON records."""

    def __init__(self, columns: Sequence[Column], rules: Rules) -> None:
        self._columns, self._rules = tuple(columns), rules
        self._kind = arrow_type(("struct", self._columns))
        self._reals = rules.infer or any(map(_has_real, (each[1] for each in columns)))
        self._level = Level(self._columns, rules, ())

    def read(self, values: pa.Array) -> Fast:
        """Return rows for the values that surely fit."""
        marks = Marks(len(values))
        texts = _objects(values, marks)
        lines = Lines(texts)
        # What is deeper than this is slow to infer.
        marks.refuse(np.flatnonzero(lines.opened() > DEPTH), "many brackets")
        if self._reals:
            marks.refuse(lines.unlike_doubles(), _DIGITS)
        at = np.flatnonzero(~marks.bad)
        if not len(at):
            return Fast(pa.nulls(0, self._kind), ~marks.bad, alone=marks.reasons())
        todo = texts if len(at) == len(texts) else texts.take(pa.array(at))
        columns = self._level.read(todo, at, marks)
        return self._done(columns, todo, at, marks)

    def _done(self, columns: Sequence[pa.Array], texts: pa.Array, at: np.ndarray, marks: Marks) -> Fast:
        if marks.lenient:
            marks.refuse(at[Lines(texts).with_trailing_comma()], NOT_JSON)
        if (asked := np.flatnonzero(marks.written[at] & ~marks.bad[at])).size:
            anew = pc.match_substring_regex(texts.take(pa.array(asked)), _WRITTEN_ANEW).to_numpy(zero_copy_only=False)
            marks.refuse(at[asked[anew]], _ANEW)
        for column, array in zip(self._columns, columns, strict=True):
            if column[3] and array.null_count:
                marks.refuse(at[array.is_null().to_numpy(zero_copy_only=False)], _NULL)
        beside = checked(marks, self._rules.infer)
        good = ~marks.bad[at]
        rows = _structs(columns, self._kind, len(at))
        return Fast(
            rows if good.all() else rows.filter(pa.array(good)),
            ~marks.bad,
            kinds=kinds_of(beside, marks.bad) if self._rules.infer else {},
            aside=_counted((((*b.path, b.name), b.at) for b, _ in beside), marks),
            rounded=_counted(marks.rounded, marks),
            alone=marks.reasons(),
        )


def _structs(columns: Sequence[pa.Array], kind: Any, count: int) -> pa.StructArray:
    if columns:
        return pa.StructArray.from_arrays(columns, fields=list(kind))
    return pa.array([{}] * count, kind)


def _counted(found: Iterable[tuple[Path, np.ndarray]], marks: Marks) -> dict[str, int]:
    counts: dict[str, int] = {}
    for path, at in found:
        if count := int((~marks.bad[at]).sum()):
            name = ".".join(path)
            counts[name] = counts.get(name, 0) + count
    return counts


def _objects(values: pa.Array, marks: Marks) -> pa.Array:
    """Return values as trimmed text; those that don't begin and end as objects do are refused."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([value if _is_utf8(value) else b"" for value in values.to_pylist()], pa.binary())
        texts = texts.cast(pa.string())
    found = _are_objects(texts)
    if not found.all():
        texts = pc.utf8_trim(texts, characters=_TRIMMED)
        found = _are_objects(texts)
        marks.refuse(np.flatnonzero(~found), NOT_JSON)
    return texts


def _are_objects(texts: pa.Array) -> np.ndarray:
    found: np.ndarray = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}")).to_numpy(zero_copy_only=False)
    return found


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _has_real(kind: Any) -> bool:
    if kind[0] == "struct":
        return any(_has_real(each[1]) for each in kind[1])
    return _has_real(kind[1]) if kind[0] in ("list", "map") else kind[0] in ("double", "float", "decimal")
