"""The quick way: Arrow's parser reads what plainly fits, and what it can't take, or not for certain, is told apart."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.json.arrays import PLAIN_TIMES, structs
from kafka_lake.executors.json.arrow_parser import Stop, read_json
from kafka_lake.executors.json.columns import Column, Rules, arrow_type
from kafka_lake.executors.json.inferred import (
    names_in_other_case,
    only_asked,
    only_nothing,
    unknown_fields,
    values_aside,
)
from kafka_lake.executors.json.lines import Block, Lines, fits_a_double
from kafka_lake.executors.json.parsed_columns import ParsedColumns
from kafka_lake.executors.json.stop_patterns import SEARCHES, StopPatterns
from kafka_lake.executors.json.text import DEPTH

_TRIMMED = " \t\r\n"
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
        self._unexpected = "error"
        self._doubles = any(_has_double(each[1]) for each in columns)
        self._stops = StopPatterns(self._asked)
        self._converted = ParsedColumns(self._columns, rules)

    def read(self, values: pa.Array) -> tuple[pa.StructArray, np.ndarray, Mapping[str, int]]:
        """Return rows for the values that plainly fit, which ones those are, and the paths of fields without a column.

        Those are the fields that are empty, if others are wanted; else all that aren't, each with how many values it
        has.

        Args:
            values: Binary, none of them null.
        """
        count = len(values)
        fits = np.zeros(count, dtype=bool)
        text = _text(values)
        if text is None:
            return self._rows([]), fits, {}
        objects = _objects(text)
        trimmed = text
        if not objects.all():
            trimmed = pc.utf8_trim(text, characters=_TRIMMED)
            objects = _objects(trimmed)
        objects &= self._looks_plain(trimmed)
        todo = np.flatnonzero(objects)
        if not len(todo):
            return self._rows([]), fits, {}
        found, todo, aside = self._tables(trimmed if len(todo) == count else trimmed.take(pa.array(todo)), todo)
        if found is None:
            return self._rows([]), fits, {}
        columns, good = self._converted.made(found)
        for name, array in zip(self._columns, columns, strict=True):
            if name[3] and array.null_count:
                good &= pc.is_valid(array).to_numpy(zero_copy_only=False)
        rows = pa.StructArray.from_arrays(columns, fields=list(self._kind))
        if not good.all():
            rows, todo = rows.filter(pa.array(good)), todo[good]
            if aside and not self._rules.infer:
                # What the others have aside is counted where they are looked at alone.
                aside = self._read(Block(trimmed.take(pa.array(todo))))[2] if len(todo) else {}
        fits[todo] = True
        return rows, fits, aside

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
        plain &= self._stops.look_fit(lines)
        if not self._rules.infer:
            for word in (b"NaN", b"Inf"):
                plain[lines.of(lines.places(word))] = False
        if self._doubles:
            places = lines.long_numbers()
            for place, index in zip(places.tolist(), lines.of(places).tolist(), strict=True):
                if plain[index]:
                    plain[index] = fits_a_double(lines.around(place))
        return plain

    def _tables(self, text: pa.Array, at: np.ndarray) -> tuple[pa.Table | None, np.ndarray, Mapping[str, int]]:
        """Return a table of the values that Arrow's parser takes, and which ones those are."""
        block = Block(text)
        table, stop, aside = self._read(block)
        tried: set[bytes] = set()
        balanced = False
        while table is None:
            keep = np.ones(len(text), dtype=bool)
            pattern = self._stops.pattern_of(stop)
            if pattern is not None and pattern not in tried and len(tried) < SEARCHES:
                tried.add(pattern)
                keep[self._stops.found(pattern, stop, text)] = False
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
                return None, at, aside
            if not keep.all():
                text, at = text.filter(pa.array(keep)), at[keep]
                block = Block(text)
                table, stop, aside = self._read(block)
        if table is not None or stop.row is None:
            return table, at, aside
        taken = self._taken(block, stop.row)
        if taken is None:
            return None, at, aside
        table, _, aside = self._read(Block(text.filter(pa.array(taken))))
        return table, at[taken], aside

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

    def _read(self, block: "Block") -> tuple[pa.Table | None, "Stop", Mapping[str, int]]:
        """Return one row for each value; or None and what stopped the parser; and what `read` finds aside."""
        if self._unexpected == "error":
            table, stop = read_json(block.lines, self._asked, "error")
            if table is not None or stop.row is not None:
                # Each value begins and ends an object, so each has one at least; more are more rows.
                return (table if table is not None and len(table) == len(block) else None), stop, {}
        # Fields that are null or empty wherever they are need no column. To see that costs more: kept in mind.
        return self._inferred(block)

    def _inferred(self, block: "Block") -> tuple[pa.Table | None, "Stop", Mapping[str, int]]:
        """Return the rows if no field without a column must be looked at; or None, and which must.

        Part by part: what is inferred has each name that occurs, and each value has a place for all of them.
        """
        asked = pa.struct(list(self._asked))
        tables, unknown, start = [], dict[str, None](), 0
        aside: dict[str, int] = {}
        for part in block.parts(_INFERRED_VALUES, _INFERRED_BYTES):
            table, stop = read_json(part.lines, self._asked, "infer")
            if table is None or len(table) != len(part):
                return None, stop if stop.row is None else replace(stop, row=start + stop.row), {}
            found = pa.struct(list(table.schema))
            unknown |= dict.fromkeys(self._looked_at(found, asked))
            for path, count in self._aside(table, found, asked):
                aside[path] = aside.get(path, 0) + count
            if len(unknown) + len(aside) > _INFERRED_NAMES or len(table.schema) > len(self._asked) + _INFERRED_NAMES:
                # To search for so many costs more than to look at each value alone.
                return None, Stop(), {}
            tables.append(table)
            start += len(part)
        if unknown:
            return None, Stop(unknown=tuple(unknown)), {}
        if aside or any(len(table.schema) > len(self._asked) for table in tables):
            self._unexpected = "infer"
        return pa.concat_tables([only_asked(table, self._asked) for table in tables]), Stop(), aside

    def _looked_at(self, found: Any, asked: Any) -> Iterator[str]:
        """Yield the names of fields without a column whose values must be looked at alone."""
        names = unknown_fields(found, asked) if self._rules.infer else ()
        return chain(names, names_in_other_case(found, asked) if self._rules.any_case else ())

    def _aside(self, table: pa.Table, found: Any, asked: Any) -> Iterable[tuple[str, int]]:
        """Return the paths of fields that are left aside, and how many values each has."""
        if found == asked:
            return ()
        if not self._rules.infer:
            return values_aside(table.to_struct_array().combine_chunks(), asked)
        return ((path, 0) for path in only_nothing(found, asked) or ())


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
