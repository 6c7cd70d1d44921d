"""The fast path: columns at once where they surely fit, and which records are left to the strict path, and why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.json.beside import checked, kinds_of
from kafka_lake.executors.json.columns import Column, Rules, arrow_type
from kafka_lake.executors.json.json_texts import JsonTexts
from kafka_lake.executors.json.level import NOT_JSON, Level
from kafka_lake.executors.json.lines import Lines
from kafka_lake.executors.json.marks import Marks, Path
from kafka_lake.executors.json.text import DEPTH
from kafka_lake.executors.json.types import Kind

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
    """Reads batches of JSON records.

    Args:
        texts: DuckDB, if one has begun.
    """

    def __init__(self, columns: Sequence[Column], rules: Rules, texts: JsonTexts | None = None) -> None:
        self._columns, self._rules, self.texts = tuple(columns), rules, texts or JsonTexts()
        self._kind = arrow_type(("struct", self._columns))
        self._reals = rules.infer or any(map(_has_real, (each[1] for each in columns)))
        self._level = Level(self._columns, rules, (), self.texts)

    def read(self, values: pa.Array) -> Fast:
        """Return rows for the values that surely fit.

        Args:
            values: Binary, none of them null.
        """
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
