"""The columns of JSON objects: all at once by Arrow's parser, or each from the JSON text of its field."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.json.task.arrow_columns import ArrowColumns, arrow_can
from kafka_lake.formats.json.task.json_texts import JsonTexts
from kafka_lake.formats.json.task.values import Beside, Marks, Path, TextValues, firsts, list_like, surely_unlike
from kafka_lake.formats.task.columns import Column, Rules, arrow_type, fed_alone
from kafka_lake.formats.task.error_classes import NOT_JSON

TWICE, OTHER_CASE, MANY_NAMES = "a field twice", "a name in another case", "too many new names"
FEW = "too few records to start DuckDB for"
_FEW = 100
"""Records that are decoded one by one in less time than DuckDB needs to start."""
_PAUSE = 16
"""Batches after one that Arrow's parser couldn't take, until it is asked again."""
_NAMES = 256
"""Fields without a column that a batch may have; the records with others are looked at alone."""
_CELLS = 4_000_000


class Level:
    """Reads the columns of one struct, or those of the records.

    Args:
        path: The struct that they are in, by columns' names.
    """

    def __init__(self, columns: Sequence[Column], rules: Rules, path: Path) -> None:
        self._columns, self._rules, self._path, self._texts = tuple(columns), rules, path, JsonTexts()
        self._sources = list(dict.fromkeys(source for each in columns for source in each[2] if source))
        self._lower: dict[str, list[str]] = {}
        for source in self._sources if rules.any_case else ():
            self._lower.setdefault(source.lower(), []).append(source)
        self._spellings: dict[str, str] = {}
        self._alone = fed_alone(columns)
        self._arrow = ArrowColumns(columns, rules, path) if arrow_can(columns) else None
        self._values = TextValues(rules)
        self._inner: dict[Path, Level] = {}
        self._beside: list[str] = []
        self._pause = 0

    def read(self, texts: pa.Array, at: np.ndarray, marks: Marks) -> list[pa.Array]:
        """Return the columns of JSON objects; what they lack or what doesn't surely fit is noted in the marks."""
        if self._arrow is not None and self._pause == 0:
            if (made := self._arrow.read(texts, at, marks)) is not None:
                return made
            self._pause = _PAUSE
        if len(texts) < _FEW and not self._texts.begun:
            marks.refuse(at, FEW)
            return self._nothing(len(texts))
        self._pause = max(0, self._pause - 1)
        return self._by_field(texts, at, marks)

    def _by_field(self, texts: pa.Array, at: np.ndarray, marks: Marks) -> list[pa.Array]:
        marks.lenient = True
        duck = self._texts
        names = [*self._sources, *self._spellings, *self._beside]
        found = duck.fields(texts, names)
        if found is None:
            valid = duck.valid(texts)
            marks.refuse(at[~valid], NOT_JSON)
            texts = pc.if_else(pa.array(valid), texts, "{}")
            found = duck.fields(texts, names)
            if found is None:
                # What neither parser takes is the strict one's.
                marks.refuse(at, NOT_JSON)
                return self._nothing(len(texts))
        fields, keys = found
        if new := self._looked_at(keys, at, marks):
            more = duck.fields(texts, new)
            assert more is not None, "it was JSON before"
            fields |= more[0]
        self._take_spellings(fields, at, marks)
        self._note_beside(fields, at, marks)
        # DuckDB's structs have no field without a name: the records that have one are decoded alone.
        fields[""] = pa.nulls(len(texts), pa.string())
        if self._alone:
            return [
                self._value(fields[each[2][0]], each[1], at, marks=marks, path=(*self._path, each[0]))
                for each in self._columns
            ]
        return self._shared(fields, at, marks)

    def _nothing(self, count: int) -> list[pa.Array]:
        return [pa.nulls(count, arrow_type(each[1])) for each in self._columns]

    def _looked_at(self, keys: pa.ListArray, at: np.ndarray, marks: Marks) -> list[str]:
        """Refuse objects whose names need it, and return the names that are new."""
        encoded = keys.flatten().dictionary_encode()
        codes, names = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()
        owners = pc.list_parent_indices(keys).to_numpy(zero_copy_only=False)
        marks.refuse(at[_with_twice(owners, codes, len(keys), len(names))], TWICE)
        mine, new = {*self._sources, *self._spellings, *self._beside}, []
        case, many = np.zeros(len(names), dtype=bool), np.zeros(len(names), dtype=bool)
        for code, name in enumerate(names):
            if name in mine:
                continue
            meant = self._lower.get(name.lower(), ())
            if len(meant) > 1:
                case[code] = True
            elif not name or len(self._beside) + len(self._spellings) >= _NAMES:
                many[code] = True
            else:
                new.append(name)
                if meant:
                    self._spellings[name] = meant[0]
                else:
                    self._beside.append(name)
        for found, why in ((case, OTHER_CASE), (many, MANY_NAMES)):
            if found.any():
                marks.refuse(at[np.unique(owners[found[codes]])], why)
        return new

    def _take_spellings(self, fields: dict[str, pa.Array], at: np.ndarray, marks: Marks) -> None:
        """Let names in another case feed the columns that nothing else in their object feeds."""
        for source in set(self._spellings.values()):
            names = [source, *(name for name, meant in self._spellings.items() if meant == source)]
            given = np.sum([fields[name].is_valid().to_numpy(zero_copy_only=False) for name in names], axis=0)
            marks.refuse(at[given > 1], OTHER_CASE)
            fields[source] = pc.coalesce(*(fields[name] for name in names))

    def _note_beside(self, fields: dict[str, pa.Array], at: np.ndarray, marks: Marks) -> None:
        kept = []
        for name in self._beside:
            given = fields[name].is_valid()
            if count := pc.sum(given).as_py():
                whole = count == len(given)
                values = fields[name] if whole else fields[name].filter(given)
                where = at if whole else at[given.to_numpy(zero_copy_only=False)]
                marks.beside.append(Beside(self._path, name, values, where))
                kept.append(name)
        # Names may be data, other ones in each batch.
        self._beside = kept

    def _value(self, texts: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        """Return JSON texts as a kind's values."""
        if kind[0] == "struct":
            return self._struct(texts, kind, at, marks=marks, path=path)
        if kind[0] == "list":
            return self._list(texts, kind, at, marks=marks, path=path)
        if kind[0] == "map":
            return self._map(texts, kind, at, marks=marks, path=path)
        return self._values.made(texts, kind, at, marks=marks, path=path)

    def _struct(self, texts: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        texts = _beginning(texts, "{", at, marks=marks, path=path)
        level = self._inner.get(path)
        if level is None:
            level = self._inner[path] = Level(kind[1], self._rules, path)
        made = level.read(pc.fill_null(texts, "{}"), at, marks)
        return pa.StructArray.from_arrays(made, fields=list(arrow_type(kind)), mask=texts.is_null())

    def _list(self, texts: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        elements = self._texts.elements(_beginning(texts, "[", at, marks=marks, path=path))
        owners = at[pc.list_parent_indices(elements).to_numpy(zero_copy_only=False)]
        inner = self._value(elements.flatten(), kind[1], owners, marks=marks, path=(*path, "element"))
        return list_like(elements, inner, arrow_type(kind))

    def _map(self, texts: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        texts = _beginning(texts, "{", at, marks=marks, path=path)
        entries = self._texts.entries(texts)
        twice = pc.and_(entries.is_null(), texts.is_valid()).to_numpy(zero_copy_only=False)
        marks.refuse(at[twice], TWICE)
        pairs = entries.flatten()
        owners = at[pc.list_parent_indices(entries).to_numpy(zero_copy_only=False)]
        values = self._value(pairs.field(1), kind[1], owners, marks=marks, path=(*path, "value"))
        counts = pc.fill_null(pc.list_value_length(entries), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        return pa.MapArray.from_arrays(offsets, pairs.field(0), values, arrow_type(kind), mask=entries.is_null())

    def _shared(self, fields: dict[str, pa.Array], at: np.ndarray, marks: Marks) -> list[pa.Array]:
        """Return columns of which some are fed by one field, or one by several: each value goes where it fits first."""
        count = len(at)
        made: list[pa.Array | None] = [None] * len(self._columns)
        for source in self._sources:
            todo = fields[source]
            takers = [number for number, each in enumerate(self._columns) if source in each[2]]
            for number in takers:
                name, kind = self._columns[number][:2]
                unlike = pa.array(surely_unlike(todo, kind, self._rules))
                mine, todo = (
                    pc.if_else(each, pa.scalar(None, todo.type), todo) for each in (unlike, pc.invert(unlike))
                )
                array = self._value(mine, kind, at, marks=marks, path=(*self._path, name))
                made[number] = (
                    array if made[number] is None else self._both(made[number], array, at, marks=marks, name=name)
                )
            if todo.null_count < count:
                last = ".".join((*self._path, self._columns[takers[-1]][0]))
                marks.refuse(at[todo.is_valid().to_numpy(zero_copy_only=False)], last)
        return [
            pa.nulls(count, arrow_type(column[1])) if array is None else array
            for array, column in zip(made, self._columns, strict=True)
        ]

    def _both(self, one: pa.Array, other: pa.Array, at: np.ndarray, marks: Marks, name: str) -> pa.Array:
        """Return a column that two fields feed; where both do, they may differ."""
        both = pc.and_(one.is_valid(), other.is_valid()).to_numpy(zero_copy_only=False)
        marks.refuse(at[both], ".".join((*self._path, name)))
        return pc.if_else(one.is_valid(), one, other)


def _beginning(texts: pa.Array, bracket: str, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
    """Return JSON texts that begin with a bracket, null for others, which are refused."""
    first = firsts(texts)
    wrong = (first != ord(bracket)) & (first != 0)
    if not wrong.any():
        return texts
    marks.refuse(at[wrong], ".".join(path))
    return pc.if_else(pa.array(wrong), pa.scalar(None, texts.type), texts)


def _with_twice(owners: np.ndarray, codes: np.ndarray, objects: int, names: int) -> np.ndarray:
    """Return the objects that have a name twice."""
    if not len(codes):
        return owners
    cells = owners * names + codes
    if objects * names <= _CELLS:
        found = np.flatnonzero(np.bincount(cells, minlength=objects * names) > 1)
    else:
        cells = np.sort(cells)
        found = cells[1:][cells[1:] == cells[:-1]]
    return np.unique(found // names)
