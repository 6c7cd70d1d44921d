"""The columns of JSON objects: all at once by Arrow's parser, or each from the JSON text of its field by DuckDB."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.json.task.arrow_parser import ArrowParser, is_finite, readable
from kafka_lake.formats.json.task.json_texts import JsonTexts
from kafka_lake.formats.json.task.values import (
    BatchNotes,
    Cells,
    NewField,
    Path,
    Values,
    beginning_with,
    mask_of,
    only,
    surely_unlike,
)
from kafka_lake.formats.task.columns import Column, Rules, arrow_type, fed_alone
from kafka_lake.formats.task.error_classes import NOT_JSON
from kafka_lake.formats.task.shapes import list_like

TWICE, OTHER_CASE, MANY_NAMES = "a field twice", "a name in another case", "too many new names"
FEW = "too few records to start DuckDB for"
_FEW = 100
"""Records that are decoded one by one in less time than DuckDB needs to start."""
_PAUSE = 16
"""Batches that aren't given to Arrow's parser after one that it couldn't take."""
_NAMES = 256
"""Fields without a column that the fast path takes in a batch."""
_CELLS = 4_000_000


class ObjectReader:
    """Reads the columns of one struct, or those of the records."""

    def __init__(self, columns: Sequence[Column], rules: Rules, path: Path = ()) -> None:
        self._columns, self._rules, self._path, self._texts = tuple(columns), rules, path, JsonTexts()
        self._sources = list(dict.fromkeys(source for column in columns for source in column[2] if source))
        self._lower: dict[str, list[str]] = {}
        for source in self._sources if rules.any_case else ():
            self._lower.setdefault(source.lower(), []).append(source)
        self._spellings: dict[str, str] = {}
        self._new_names: list[str] = []
        self._values = Values(rules)
        self._inner: dict[Path, ObjectReader] = {}
        self._pause = 0
        self._arrow: ArrowParser | None = None
        if readable(self._columns):
            self._arrow = ArrowParser(self._columns, rules, () if path else rules.unwanted)

    def read(self, texts: pa.Array, at: np.ndarray, notes: BatchNotes) -> list[pa.Array]:
        """Return the columns of JSON objects."""
        cells = Cells(self._path, at, notes)
        if self._arrow is not None and self._pause == 0:
            if (fields := self._arrow.read(texts)) is not None:
                return self._of_parsed(fields, self._columns, cells)
            self._pause = _PAUSE
        self._pause = max(0, self._pause - 1)
        if len(texts) < _FEW and not self._texts.begun:
            notes.leave(at, FEW)
            return self._nulls(len(texts))
        return self._by_field(texts, cells)

    def _of_parsed(self, fields: Mapping[str, pa.Array], columns: Sequence[Column], cells: Cells) -> list[pa.Array]:
        sources = [column[2][0] for column in columns]
        for name in fields:
            if name not in sources:
                _note_unread(name, fields[name], cells)
        return [
            self._of_parsed_value(fields[source], column[1], cells.below(column[0]))
            for source, column in zip(sources, columns, strict=True)
        ]

    def _of_parsed_value(self, array: pa.Array, kind: Any, cells: Cells) -> pa.Array:
        if kind[0] == "struct":
            fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
            inner = self._of_parsed(fields, kind[1], cells)
            return pa.StructArray.from_arrays(inner, fields=list(arrow_type(kind)), mask=array.is_null())
        if kind[0] == "list":
            items = cells.below("element", pc.list_parent_indices(array))
            return list_like(array, self._of_parsed_value(array.flatten(), kind[1], items), arrow_type(kind))
        return self._values.typed(array, kind, cells)

    def _by_field(self, texts: pa.Array, cells: Cells) -> list[pa.Array]:
        cells.notes.lenient = True
        names = [*self._sources, *self._spellings, *self._new_names]
        fields_and_keys = self._texts.fields(texts, names)
        if fields_and_keys is None:
            valid = self._texts.valid(texts)
            cells.notes.leave(cells.at[~valid], NOT_JSON)
            texts = pc.if_else(pa.array(valid), texts, "{}")
            fields_and_keys = self._texts.fields(texts, names)
            if fields_and_keys is None:
                cells.notes.leave(cells.at, NOT_JSON)
                return self._nulls(len(texts))
        fields, keys = fields_and_keys
        if more := self._take_names(keys, cells):
            others = self._texts.fields(texts, more)
            assert others is not None, "the texts are JSON"
            fields |= others[0]
        self._take_spellings(fields, cells)
        self._note_new_fields(fields, cells)
        # DuckDB's structs have no field without a name: the records that have one are left to the strict path.
        fields[""] = pa.nulls(len(texts), pa.string())
        if fed_alone(self._columns):
            return [self._value(fields[column[2][0]], column[1], cells.below(column[0])) for column in self._columns]
        return self._shared(fields, cells)

    def _nulls(self, count: int) -> list[pa.Array]:
        return [pa.nulls(count, arrow_type(column[1])) for column in self._columns]

    def _take_names(self, keys: pa.ListArray, cells: Cells) -> list[str]:
        """Return the names that are new. Objects with ambiguous or too many names are left to the strict path."""
        encoded = keys.flatten().dictionary_encode()
        codes, names = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()
        owners = pc.list_parent_indices(keys).to_numpy(zero_copy_only=False)
        cells.notes.leave(cells.at[_with_twice(owners, codes, len(keys), len(names))], TWICE)
        known, new = {*self._sources, *self._spellings, *self._new_names}, []
        case, many = np.zeros(len(names), dtype=bool), np.zeros(len(names), dtype=bool)
        for code, name in enumerate(names):
            if name in known:
                continue
            sources = self._lower.get(name.lower(), ())
            if len(sources) > 1:
                case[code] = True
            elif not name or len(self._new_names) + len(self._spellings) >= _NAMES:
                many[code] = True
            else:
                new.append(name)
                if sources:
                    self._spellings[name] = sources[0]
                else:
                    self._new_names.append(name)
        for wrong, reason in ((case, OTHER_CASE), (many, MANY_NAMES)):
            if wrong.any():
                cells.notes.leave(cells.at[np.unique(owners[wrong[codes]])], reason)
        return new

    def _take_spellings(self, fields: dict[str, pa.Array], cells: Cells) -> None:
        """Let names in another case feed the columns that nothing else in their object feeds."""
        for source in set(self._spellings.values()):
            names = [source, *(name for name, meant in self._spellings.items() if meant == source)]
            given = np.sum([mask_of(fields[name].is_valid()) for name in names], axis=0)
            cells.notes.leave(cells.at[given > 1], OTHER_CASE)
            fields[source] = pc.coalesce(*(fields[name] for name in names))

    def _note_new_fields(self, fields: dict[str, pa.Array], cells: Cells) -> None:
        present = []
        for name in self._new_names:
            given = mask_of(fields[name].is_valid())
            if given.any():
                values = fields[name] if given.all() else fields[name].filter(pa.array(given))
                cells.notes.new_fields.append(NewField(self._path, name, values, cells.at[given]))
                present.append(name)
        # Names may be data, other ones in each batch.
        self._new_names = present

    def _value(self, texts: pa.Array, kind: Any, cells: Cells) -> pa.Array:
        """Return JSON texts as values of a kind."""
        if kind[0] == "struct":
            return self._struct(texts, kind, cells)
        if kind[0] == "list":
            lists = self._texts.elements(beginning_with(texts, "[", cells))
            items = cells.below("element", pc.list_parent_indices(lists))
            return list_like(lists, self._value(lists.flatten(), kind[1], items), arrow_type(kind))
        if kind[0] == "map":
            return self._map(texts, kind, cells)
        return self._values.of_texts(texts, kind, cells)

    def _struct(self, texts: pa.Array, kind: Any, cells: Cells) -> pa.Array:
        texts = beginning_with(texts, "{", cells)
        reader = self._inner.get(cells.path)
        if reader is None:
            reader = self._inner[cells.path] = ObjectReader(kind[1], self._rules, cells.path)
        columns = reader.read(pc.fill_null(texts, "{}"), cells.at, cells.notes)
        return pa.StructArray.from_arrays(columns, fields=list(arrow_type(kind)), mask=texts.is_null())

    def _map(self, texts: pa.Array, kind: Any, cells: Cells) -> pa.Array:
        texts = beginning_with(texts, "{", cells)
        entries = self._texts.entries(texts)
        cells.notes.leave(cells.at[mask_of(pc.and_(entries.is_null(), texts.is_valid()))], TWICE)
        pairs = entries.flatten()
        values = self._value(pairs.field(1), kind[1], cells.below("value", pc.list_parent_indices(entries)))
        counts = pc.fill_null(pc.list_value_length(entries), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        return pa.MapArray.from_arrays(offsets, pairs.field(0), values, arrow_type(kind), mask=entries.is_null())

    def _shared(self, fields: dict[str, pa.Array], cells: Cells) -> list[pa.Array]:
        """Return columns if a field feeds several or several feed one: each value goes to the first that it fits."""
        arrays: dict[int, pa.Array] = {}
        for source in self._sources:
            todo = fields[source]
            takers = [number for number, column in enumerate(self._columns) if source in column[2]]
            for number in takers:
                name, kind = self._columns[number][:2]
                unlike = surely_unlike(todo, kind, self._rules)
                array = self._value(only(todo, ~unlike), kind, cells.below(name))
                todo = only(todo, unlike)
                if number in arrays:
                    # Where two fields feed a column, they may differ.
                    before = arrays[number]
                    cells.below(name).leave(mask_of(pc.and_(before.is_valid(), array.is_valid())))
                    array = pc.if_else(before.is_valid(), before, array)
                arrays[number] = array
            if takers:
                cells.below(self._columns[takers[-1]][0]).leave(mask_of(todo.is_valid()))
        nulls = self._nulls(len(cells.at))
        return [arrays.get(number, null) for number, null in enumerate(nulls)]


def _note_unread(name: str, values: pa.Array, cells: Cells) -> None:
    given = mask_of(values.is_valid())
    if not given.any():
        return
    values, at = values.filter(pa.array(given)), cells.at[given]
    if not is_finite(values):
        cells.notes.leave(at[[not is_finite(values.slice(number, 1)) for number in range(len(values))]], NOT_JSON)
    cells.notes.unread.append(NewField(cells.path, name, values, at))


def _with_twice(owners: np.ndarray, codes: np.ndarray, objects: int, names: int) -> np.ndarray:
    """Return the objects that have a name twice."""
    if not len(codes):
        return owners
    cells = owners * names + codes
    if objects * names <= _CELLS:
        twice = np.flatnonzero(np.bincount(cells, minlength=objects * names) > 1)
    else:
        cells = np.sort(cells)
        twice = cells[1:][cells[1:] == cells[:-1]]
    return np.unique(twice // names)
