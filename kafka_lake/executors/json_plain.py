"""The quick way: Arrow's parser reads what plainly fits, and what it can't take, or not for certain, is told apart."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from kafka_lake.executors.json_arrays import PLAIN_DATE, PLAIN_TIMES, as_times, from_epoch, list_like, structs
from kafka_lake.executors.json_lines import Block, Lines, fits_a_double
from kafka_lake.executors.json_text import DEPTH
from kafka_lake.executors.json_values import UNITS, Column, Rules, arrow_type

_TRIMMED = " \t\r\n"
_ROW = re.compile(r"in row (\d+)$")
_CHANGED = re.compile(r"Column\(/(?:.*/)?([^/]+)\) changed from (\w+) to \w+ in row \d+$", re.DOTALL)
_NOT_CONVERTED = re.compile(r"Failed to convert JSON to (\w+),")
_BEGINNINGS = {"number": rb"-0-9", "string": rb'"', "boolean": rb"tf", "array": rb"\[", "object": rb"\{"}
_WHOLE_NUMBERS = {
    "int8": rb"(?:1[01])?[0-9]|[0-9]{2}",
    "int16": rb"[12]?[0-9]{1,4}",
    "int32": rb"1?[0-9]{1,9}",
    "int64": rb"[1-8]?[0-9]{1,18}",
}
"""Those that surely fit."""
# What a search finds is looked at alone. If it finds more than a share, they aren't what stopped the parser.
_SEARCHES, _SHARE = 4, 4
# To begin to read costs some 100 microseconds, a record that is looked at alone some 10.
_STOPS, _RECORDS_WORTH_A_STOP = 8, 20
# Names of six characters, each of them once: a table of 250 MB at the most.
_INFERRED_VALUES, _INFERRED_BYTES, _INFERRED_NAMES = 1_000, 262_144, 1_000
_TWO_OBJECTS = r"\}\s*\{"
_PLAIN = {
    "boolean",
    "byte",
    "short",
    "int",
    "long",
    "double",
    "string",
    "date",
    "timestamp",
    "timestamp_ntz",
}


def can_be_plain(columns: Sequence[Column]) -> bool:
    """Return whether Arrow's parser may take values with these columns: each is fed by one field of its own."""
    sources = [source for each in columns for source in each[2]]
    return (
        bool(columns)
        and len(set(sources)) == len(sources) == len(columns)
        and all(_kind_can_be_plain(each[1]) for each in columns)
    )


def _kind_can_be_plain(kind: Any) -> bool:
    if kind[0] == "struct":
        return can_be_plain(kind[1])
    return _kind_can_be_plain(kind[1]) if kind[0] == "list" else kind[0] in _PLAIN


class PlainReader:
    """Arrow's parser, and the checks that its values are the very ones that were written."""

    def __init__(self, columns: Sequence[Column], rules: Rules) -> None:
        self._columns = tuple(columns)
        self._rules = rules
        self._asked = pa.schema([pa.field(each[2][0], self._parsed_as(each[1])) for each in columns])
        self._kind = arrow_type(("struct", self._columns))
        self._unexpected = "error" if rules.infer else "ignore"
        self._doubles = any(_has_double(each[1]) for each in columns)
        self._unfits: list[bytes] = []
        self._whole: dict[str, list[str]] = {}
        for name, kind in _scalars(pa.struct(list(self._asked))):
            self._whole.setdefault(str(kind), []).append(name)

    def read(self, values: pa.Array) -> tuple[pa.StructArray, np.ndarray, frozenset[str]]:
        """Return rows for the values that plainly fit, which ones those are, and the paths of empty fields.

        Args:
            values: Binary, none of them null.
        """
        count = len(values)
        fits = np.zeros(count, dtype=bool)
        text = _text(values)
        if text is None:
            return self._rows([]), fits, frozenset()
        objects = _objects(text)
        trimmed = text
        if not objects.all():
            trimmed = pc.utf8_trim(text, characters=_TRIMMED)
            objects = _objects(trimmed)
        objects &= self._looks_plain(trimmed)
        todo = np.flatnonzero(objects)
        if not len(todo):
            return self._rows([]), fits, frozenset()
        found, todo, empty = self._tables(trimmed if len(todo) == count else trimmed.take(pa.array(todo)), todo)
        if found is None:
            return self._rows([]), fits, frozenset()
        columns, good = self._finished(found)
        for name, array in zip(self._columns, columns, strict=True):
            if name[3] and array.null_count:
                good &= pc.is_valid(array).to_numpy(zero_copy_only=False)
        rows = pa.StructArray.from_arrays(columns, fields=list(self._kind))
        if not good.all():
            rows, todo = rows.filter(pa.array(good)), todo[good]
        fits[todo] = True
        return rows, fits, empty

    def _rows(self, rows: Sequence[Sequence[Any]]) -> pa.StructArray:
        return structs(rows, self._kind)

    def _parsed_as(self, kind: Any) -> Any:
        if kind[0] == "struct":
            return pa.struct([pa.field(each[2][0], self._parsed_as(each[1])) for each in kind[1]])
        if kind[0] == "list":
            return pa.list_(self._parsed_as(kind[1]))
        if kind[0] in PLAIN_TIMES and self._rules.timestamp_unit is not None:
            return pa.int64()
        return pa.string() if kind[0] in ("date", *PLAIN_TIMES) else arrow_type(kind)

    def _looks_plain(self, text: pa.Array) -> np.ndarray:
        """Return which values have nothing that Arrow's parser takes and strict JSON, or a column, does not."""
        plain = np.ones(len(text), dtype=bool)
        lines = Lines(text)
        # What is deeper ends the process where Arrow infers its type.
        plain &= lines.opened() <= DEPTH
        plain &= self._looks_fit(lines)
        if self._unexpected == "ignore":
            for word in (b"NaN", b"Inf"):
                plain[lines.of(lines.places(word))] = False
        if self._doubles:
            places = lines.long_numbers()
            for place, index in zip(places.tolist(), lines.of(places).tolist(), strict=True):
                if plain[index]:
                    plain[index] = fits_a_double(lines.around(place))
        return plain

    def _tables(self, text: pa.Array, at: np.ndarray) -> tuple[pa.Table | None, np.ndarray, frozenset[str]]:
        """Return a table of the values that Arrow's parser takes, and which ones those are."""
        block = Block(text)
        table, stop, empty = self._read(block)
        tried: set[bytes] = set()
        balanced = False
        while table is None:
            keep = np.ones(len(text), dtype=bool)
            pattern = self._unfit(stop)
            if pattern is not None and pattern not in tried and len(tried) < _SEARCHES:
                tried.add(pattern)
                keep[self._found(pattern, stop, text)] = False
            elif not balanced:
                # Brackets that don't match, or two objects in one value: seen at once, and a parser of lines can't
                # tell.
                balanced = True
                keep &= Lines(text).balanced()
                if stop.row is None:
                    keep &= ~pc.match_substring_regex(text, _TWO_OBJECTS).to_numpy(zero_copy_only=False)
            else:
                break
            if not keep.any():
                return None, at, empty
            if not keep.all():
                text, at = text.filter(pa.array(keep)), at[keep]
                block = Block(text)
                table, stop, empty = self._read(block)
        if table is not None or stop.row is None:
            return table, at, empty
        taken = self._taken(block, stop.row)
        if taken is None:
            return None, at, empty
        table, _, empty = self._read(Block(text.filter(pa.array(taken))))
        return table, at[taken], empty

    def _found(self, pattern: bytes, stop: "_Stop", text: pa.Array) -> np.ndarray:
        """Return the values in which a pattern is.

        It is kept in mind: as long as it finds some, they are set apart before the parser sees them.
        """
        found = Lines(text).matching(pattern)
        few = len(np.unique(found)) * _SHARE <= len(text)
        if few and len(found) and pattern not in self._unfits and len(self._unfits) < _SEARCHES:
            self._unfits.append(pattern)
        return found if few or stop.row is None else found[:0]

    def _looks_fit(self, lines: "Lines") -> np.ndarray:
        """Return which values have nothing of what has stopped the parser before."""
        fit = np.ones(len(lines), dtype=bool)
        for pattern in tuple(self._unfits):
            found = lines.matching(pattern)
            fit[found] = False
            if not len(found):
                self._unfits.remove(pattern)
        return fit

    def _unfit(self, stop: "_Stop") -> bytes | None:
        """Return what finds the values that may stop the parser for the same reason; None if nothing does.

        It may find others too: they are looked at alone, which costs time and nothing else.
        """
        if stop.unknown:
            return _field(stop.unknown)
        if changed := _CHANGED.search(stop.said):
            name, begins = changed[1], _BEGINNINGS.get(changed[2])
            if name != "[]" and begins is not None:
                return _field([name]) + rb"\s*[^%bn\s]" % begins
        if failed := _NOT_CONVERTED.match(stop.said):
            names, fitting = self._whole.get(failed[1]), _WHOLE_NUMBERS.get(failed[1])
            if names and fitting:
                return _field(names) + rb"(?!\s*(?:null|-?(?:%b))\s*[,}])" % fitting
        return None

    def _taken(self, block: "Block", row: int) -> np.ndarray | None:
        """Return which values the parser takes, which says where it stops; None if that takes longer than it is worth.

        Args:
            block: The values.
            row: Where it stopped first.
        """
        keep, start, stops = np.ones(len(block), dtype=bool), 0, 0
        stopped: int | None = row
        while stopped is not None and start + stopped < len(block):
            keep[start + stopped] = False
            start += stopped + 1
            stops += 1
            if stops >= _STOPS and start < stops * _RECORDS_WORTH_A_STOP:
                return None
            if start == len(block):
                break
            table, stop, _ = self._read(block.behind(start))
            stopped = stop.row
            if table is None and stopped is None:
                return None
        return keep if keep.any() else None

    def _read(self, block: "Block") -> tuple[pa.Table | None, "_Stop", frozenset[str]]:
        """Return one row for each value; or None and what stopped the parser."""
        if self._unexpected != "infer":
            table, stop = _read_json(block.lines, self._asked, self._unexpected)
            if table is not None or stop.row is not None or self._unexpected == "ignore":
                # Each value begins and ends an object, so each has one at least; more are more rows.
                return (table if table is not None and len(table) == len(block) else None), stop, frozenset()
        # Fields that are null or empty wherever they are need no column. To see that costs more: kept in mind.
        return self._inferred(block)

    def _inferred(self, block: "Block") -> tuple[pa.Table | None, "_Stop", frozenset[str]]:
        """Return the rows if fields without a column are null or empty wherever they are; or None, and which are not.

        Part by part: what is inferred has each name that occurs, and each value has a place for all of them.
        """
        asked = pa.struct(list(self._asked))
        tables, empty, unknown, start = [], set[str](), dict[str, None](), 0
        for part in block.parts(_INFERRED_VALUES, _INFERRED_BYTES):
            table, stop = _read_json(part.lines, self._asked, "infer")
            if table is None or len(table) != len(part):
                return None, stop if stop.row is None else replace(stop, row=start + stop.row), frozenset()
            found = pa.struct(list(table.schema))
            none_but = _only_nothing(found, asked)
            if none_but is None:
                unknown |= dict.fromkeys(_unknown(found, asked))
            else:
                empty |= none_but
            if len(unknown) + len(empty) > _INFERRED_NAMES or len(table.schema) > len(self._asked) + _INFERRED_NAMES:
                # To search for so many costs more than to look at each value alone.
                return None, _Stop(), frozenset()
            tables.append(table)
            start += len(part)
        if unknown:
            return None, _Stop(unknown=tuple(unknown)), frozenset()
        if empty or any(len(table.schema) > len(self._asked) for table in tables):
            self._unexpected = "infer"
        return pa.concat_tables([_only(table, self._asked) for table in tables]), _Stop(), frozenset(empty)

    def _finished(self, table: pa.Table) -> tuple[list[pa.Array], np.ndarray]:
        good = np.ones(len(table), dtype=bool)
        columns = []
        for column in self._columns:
            parsed = table.column(column[2][0]).combine_chunks()
            array, fit = self._value(parsed, column[1])
            columns.append(array)
            if fit is not None:
                good &= fit
        return columns, good

    def _value(self, parsed: pa.Array, kind: Any) -> tuple[pa.Array, np.ndarray | None]:
        """Return what was parsed as a kind's Arrow type, and which elements fit it; None for all."""
        if kind[0] == "struct":
            return self._struct(parsed, kind)
        if kind[0] == "list":
            inner, fit = self._value(parsed.flatten(), kind[1])
            if fit is not None:
                parents = pc.list_parent_indices(parsed).to_numpy(zero_copy_only=False)
                whole = np.ones(len(parsed), dtype=bool)
                whole[parents[~fit]] = False
                fit = whole
            return list_like(parsed, inner, arrow_type(kind)), fit
        if kind[0] in PLAIN_TIMES and self._rules.timestamp_unit is not None:
            return from_epoch(parsed, arrow_type(kind), UNITS[self._rules.timestamp_unit])
        if kind[0] in PLAIN_TIMES:
            return as_times(parsed, PLAIN_TIMES[kind[0]], arrow_type(kind))
        if kind[0] == "date":
            return as_times(parsed, PLAIN_DATE, arrow_type(kind))
        if kind[0] == "double":
            size = np.abs(pc.fill_null(parsed, 0).to_numpy(zero_copy_only=False))
            # Whole numbers from there on are looked at; NaN compares as unfit.
            fit = size < 2.0**53
            return parsed, None if fit.all() else fit
        return parsed, None

    def _struct(self, parsed: pa.Array, kind: Any) -> tuple[pa.Array, np.ndarray | None]:
        fit: np.ndarray | None = None
        arrays = []
        for column in kind[1]:
            array, inner = self._value(parsed.field(column[2][0]), column[1])
            arrays.append(array)
            if inner is not None:
                fit = inner if fit is None else fit & inner
        made = pa.StructArray.from_arrays(arrays, fields=list(arrow_type(kind)), mask=parsed.is_null())
        return made, fit


@dataclass(frozen=True)
class _Stop:
    """Why Arrow's parser took no more.

    Args:
        row: The value that stopped it; None if it doesn't say.
        said: Its message, empty if it was not stopped.
        unknown: Names of fields that it found and that have no column.
    """

    row: int | None = None
    said: str = ""
    unknown: tuple[str, ...] = ()


def _read_json(block: pa.Buffer, fields: pa.Schema, unexpected: str) -> tuple[pa.Table | None, _Stop]:
    try:
        return (
            pj.read_json(
                pa.BufferReader(block),
                pj.ReadOptions(use_threads=False, block_size=block.size + 1),
                pj.ParseOptions(explicit_schema=fields, unexpected_field_behavior=unexpected),
            ),
            _Stop(),
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        match = _ROW.search(str(error))
        return None, _Stop(int(match[1]) if match else None, str(error))


def _field(names: Sequence[str]) -> bytes:
    """Return the pattern of a field's name and colon."""
    return rb'"(?:%b)"\s*:' % b"|".join(re.escape(name.encode()) for name in names)


def _scalars(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a struct that hold one value, those of structs in it too, with their types."""
    for field in kind:
        inner = field.type
        while pa.types.is_list(inner):
            inner = inner.value_type
        if pa.types.is_struct(inner):
            yield from _scalars(inner)
        elif inner == field.type:
            yield field.name, inner


def _only_nothing(found: Any, asked: Any, path: str = "") -> frozenset[str] | None:
    """Return the paths of fields that are empty, if an inferred type adds nothing but nulls and those; else None."""
    if found == asked:
        return frozenset()
    if pa.types.is_list(asked) and pa.types.is_list(found):
        return _only_nothing(found.value_type, asked.value_type, f"{path}.element")
    if not (pa.types.is_struct(asked) and pa.types.is_struct(found)):
        return None
    kinds = {field.name: field.type for field in asked}
    empty: set[str] = set()
    for field in found:
        below = f"{path}.{field.name}" if path else field.name
        if field.name not in kinds:
            if not _is_nothing(field.type):
                return None
            empty |= set() if pa.types.is_null(field.type) else {below}
            continue
        inner = _only_nothing(field.type, kinds[field.name], below)
        if inner is None:
            return None
        empty |= inner
    return frozenset(empty)


def _only(table: pa.Table, asked: pa.Schema) -> pa.Table:
    """Return a table without the fields, at any depth, that a schema lacks."""
    if table.schema.equals(asked):
        return table
    columns = [table[field.name] for field in asked]
    return pa.table([c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, asked, strict=True)], asked)


def _unknown(found: Any, asked: Any) -> Iterator[str]:
    """Yield the names of fields that are more than nothing and that a type lacks."""
    if pa.types.is_list(asked) and pa.types.is_list(found):
        yield from _unknown(found.value_type, asked.value_type)
    elif pa.types.is_struct(asked) and pa.types.is_struct(found):
        kinds = {field.name: field.type for field in asked}
        for field in found:
            if field.name in kinds:
                yield from _unknown(field.type, kinds[field.name])
            elif not _is_nothing(field.type):
                yield field.name


def _is_nothing(kind: Any) -> bool:
    if pa.types.is_list(kind):
        return _is_nothing(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_nothing(field.type) for field in kind)
    return bool(pa.types.is_null(kind))


def _text(values: pa.Array) -> pa.Array | None:
    """Return binary values as text, what isn't UTF-8 as empty text; None if none is UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    whole = [value if _is_utf8(value) else b"" for value in values.to_pylist()]
    return pa.array(whole, pa.binary()).cast(pa.string()) if any(whole) else None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _objects(text: pa.Array) -> np.ndarray:
    found: np.ndarray = pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}")).to_numpy(zero_copy_only=False)
    return found


def _has_double(kind: Any) -> bool:
    if kind[0] == "struct":
        return any(_has_double(each[1]) for each in kind[1])
    return _has_double(kind[1]) if kind[0] == "list" else kind[0] == "double"
