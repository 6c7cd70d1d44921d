"""The fast path: whole columns where all values surely fit; the other records are left to the strict path."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.json.task.doubles import bytes_of, with_rounded
from kafka_lake.formats.json.task.json_texts import REWRITTEN
from kafka_lake.formats.json.task.objects import ObjectReader
from kafka_lake.formats.json.task.text import DEPTH, NotJsonError, parse, refuse_twice
from kafka_lake.formats.json.task.types import Kind, kind_of, merged_into
from kafka_lake.formats.json.task.values import NOT_STRICT, BatchNotes, NewField, Path, first_bytes, having
from kafka_lake.formats.task.columns import Column, Rules, arrow_type
from kafka_lake.formats.task.error_classes import NOT_JSON

_TRIMMED = " \t\r\n"
_LIKE_A_DATE, _REAL, _LONG = r'^"[0-9]{4}-[0-9]{2}-[0-9]{2}', r"[.eE]", r"[0-9]{18}"
_TRAILING_COMMA = r",[ \t\r\n]*[\]}]"
_DIGITS, _NULL, _WRITTEN = "numbers with many digits", "null in a required column", "numbers that are parts of texts"
_WRITTEN_OTHERWISE = rf"{REWRITTEN}|[0-9.]{{17}}"
"""Numbers that DuckDB may write otherwise than they were; it may round those of 16 digits."""


@dataclass(frozen=True)
class FastResult:
    """What the fast path made of values.

    Args:
        rows: A struct of the columns for each value that it took.
        taken: Which values it took.
        types: Types of fields without a column, if they are inferred: the struct of the field and its name → type.
        new_counts: Path of a field without a column → how many values it has.
        rounded: Path of a column → how many of its numbers were rounded.
        slow: Why values were not taken → how many.
    """

    rows: pa.StructArray
    taken: np.ndarray
    types: Mapping[tuple[Path, str], Kind] = field(default_factory=dict)
    new_counts: Mapping[str, int] = field(default_factory=dict)
    rounded: Mapping[str, int] = field(default_factory=dict)
    slow: Mapping[str, int] = field(default_factory=dict)


class FastReader:
    """Reads batches of JSON records."""

    def __init__(self, columns: Sequence[Column], rules: Rules) -> None:
        self._columns, self._rules = tuple(columns), rules
        self._kind = arrow_type(("struct", self._columns))
        self._reals = rules.infer or any(_has_real(column[1]) for column in columns)
        self._reader = ObjectReader(self._columns, rules)

    def read(self, values: pa.Array) -> FastResult:
        """Return rows for the values that surely fit."""
        notes = BatchNotes(len(values))
        texts = _objects(values, notes)
        # Parsers are slow at deeper values.
        notes.leave(np.flatnonzero(_brackets(texts) > DEPTH), "many brackets")
        if self._reals:
            notes.leave(with_rounded(texts), _DIGITS)
        at = np.flatnonzero(~notes.bad)
        if not len(at):
            return FastResult(pa.nulls(0, self._kind), ~notes.bad, slow=notes.reasons())
        todo = texts if len(at) == len(texts) else texts.take(pa.array(at))
        return self._result(self._reader.read(todo, at, notes), todo, at, notes)

    def _result(self, columns: Sequence[pa.Array], texts: pa.Array, at: np.ndarray, notes: BatchNotes) -> FastResult:
        if notes.lenient:
            notes.leave(at[having(texts, _TRAILING_COMMA)], NOT_JSON)
        if (written := np.flatnonzero(notes.written[at] & ~notes.bad[at])).size:
            otherwise = having(texts.take(pa.array(written)), _WRITTEN_OTHERWISE)
            notes.leave(at[written[otherwise]], _WRITTEN)
        for column, array in zip(self._columns, columns, strict=True):
            if column[3] and array.null_count:
                notes.leave(at[array.is_null().to_numpy(zero_copy_only=False)], _NULL)
        parsed = [(new, _parsed(new, notes, nested=self._rules.infer)) for new in notes.new_fields]
        good = ~notes.bad[at]
        rows = _structs(columns, self._kind, len(at))
        return FastResult(
            rows if good.all() else rows.filter(pa.array(good)),
            ~notes.bad,
            types=_types(parsed, notes) if self._rules.infer else {},
            new_counts=_counted((((*new.path, new.name), new.at) for new in notes.new_fields + notes.unread), notes),
            rounded=_counted(notes.rounded, notes),
            slow=notes.reasons(),
        )


def _parsed(new: NewField, notes: BatchNotes, nested: bool) -> dict[int, Any]:
    """Return the objects and arrays among a field's values, by number. Records with invalid ones are left."""
    notes.leave(new.at[having(new.values, NOT_STRICT)], NOT_JSON)
    parsed: dict[int, Any] = {}
    brackets = np.isin(first_bytes(new.values), (ord("{"), ord("[")))
    for number in np.flatnonzero(brackets).tolist() if nested else ():
        try:
            value = parse(new.values[number].as_py().encode())
            refuse_twice(value)
            parsed[number] = value
        except NotJsonError:
            notes.leave(new.at[number : number + 1], NOT_JSON)
    return parsed


def _types(new_fields: Sequence[tuple[NewField, Mapping[int, Any]]], notes: BatchNotes) -> dict[tuple[Path, str], Kind]:
    """Return the types of fields, by their values in records that aren't bad."""
    types: dict[tuple[Path, str], Kind] = {}
    for unread in notes.unread:
        good = ~notes.bad[unread.at]
        if good.any():
            types[unread.path, unread.name] = _empty(unread.values.filter(pa.array(good)))
    for new, parsed in new_fields:
        good = ~notes.bad[new.at]
        if not good.any():
            continue
        where = new.path, new.name
        kind = merged_into(types.get(where), _scalar_type(new.values.filter(pa.array(good))))
        for number, value in parsed.items():
            if good[number]:
                kind = merged_into(kind, kind_of(value))
        types[where] = kind
    return types


def _empty(values: pa.Array) -> Kind:
    """Return the type of values, in which scalars don't count."""
    if not pa.types.is_nested(values.type) or values.null_count == len(values):
        return None
    if pa.types.is_list(values.type):
        return ["list", _empty(values.flatten())]
    names = [field.name for field in values.type]
    kinds = zip(names, map(_empty, values.flatten()), strict=True)
    return ["struct", {name: kind for name, kind in kinds if kind is not None}]


def _scalar_type(texts: pa.Array) -> Kind:
    """Return the type of the values that aren't objects or arrays."""
    first = first_bytes(texts)
    kind: Kind = None
    strings = first == ord('"')
    if strings.any():
        quoted = texts.filter(pa.array(strings))
        kind = _type_of_each(quoted) if having(quoted, _LIKE_A_DATE).all() else "text"
    if np.isin(first, (ord("t"), ord("f"))).any():
        kind = merged_into(kind, "boolean")
    numbers = (first == ord("-")) | ((first >= ord("0")) & (first <= ord("9")))
    if numbers.any():
        written = texts.filter(pa.array(numbers))
        real, long = having(written, _REAL), having(written, _LONG)
        if real.any():
            kind = merged_into(kind, "double")
        if long.any():
            kind = merged_into(kind, _type_of_each(written.filter(pa.array(long))))
        if not (real | long).all():
            kind = merged_into(kind, "long")
    return kind


def _type_of_each(texts: pa.Array) -> Kind:
    kind: Kind = None
    for text in pc.unique(texts).to_pylist():
        kind = merged_into(kind, kind_of(parse(text.encode())))
    return kind


def _structs(columns: Sequence[pa.Array], kind: Any, count: int) -> pa.StructArray:
    if columns:
        return pa.StructArray.from_arrays(columns, fields=list(kind))
    return pa.array([{}] * count, kind)


def _counted(values: Iterable[tuple[Path, np.ndarray]], notes: BatchNotes) -> dict[str, int]:
    counts: dict[str, int] = {}
    for path, at in values:
        if count := int((~notes.bad[at]).sum()):
            name = ".".join(path)
            counts[name] = counts.get(name, 0) + count
    return counts


def _brackets(texts: pa.StringArray) -> np.ndarray:
    """Return how many objects and arrays each text opens, those in strings too."""
    content, starts = bytes_of(texts)
    # The two brackets differ in one bit.
    opening = np.flatnonzero((content | 32) == ord("{"))
    return np.diff(np.searchsorted(opening, starts))


def _objects(values: pa.Array, notes: BatchNotes) -> pa.Array:
    """Return values as trimmed text. Those that don't begin and end as objects do are left."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([value if _is_utf8(value) else b"" for value in values.to_pylist()], pa.binary())
        texts = texts.cast(pa.string())
    objects = _are_objects(texts)
    if not objects.all():
        texts = pc.utf8_trim(texts, characters=_TRIMMED)
        objects = _are_objects(texts)
        notes.leave(np.flatnonzero(~objects), NOT_JSON)
    return texts


def _are_objects(texts: pa.Array) -> np.ndarray:
    objects: np.ndarray = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}")).to_numpy(zero_copy_only=False)
    return objects


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _has_real(kind: Any) -> bool:
    if kind[0] == "struct":
        return any(_has_real(column[1]) for column in kind[1])
    return _has_real(kind[1]) if kind[0] in ("list", "map") else kind[0] in ("double", "float", "decimal")
