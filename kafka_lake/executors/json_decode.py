"""Batches of JSON records become Arrow columns: by Arrow's parser what plainly fits, record by record all else.

The two agree on every record that the first takes; what it can't take is set apart, and only that is looked at alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from kafka_lake.executors.json_text import DEPTH, NotJsonError, TooDeepError, parse_object
from kafka_lake.executors.json_types import Kind, empty_fields, is_double, kind_of, merged
from kafka_lake.executors.json_values import (
    FIRST_MICROS,
    LAST_MICROS,
    UNITS,
    Column,
    Converter,
    MisfitError,
    Rules,
    arrow_type,
)

NOT_JSON, TOO_DEEP, TOO_LARGE = "not_json", "too_deep", "too_large"
WRONG_TYPE, NULL_IN_REQUIRED_COLUMN, UNDECODABLE = "wrong_type", "null_in_required_column", "undecodable"
MESSAGE = 2000
"""Characters of an error message that are kept."""

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
_TWO_OBJECTS = r"\}\s*\{"
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d"
_OFFSET = r"[Zz]|[+-]([01]\d|2[0-3]):?[0-5]\d"
_DATE = r"\d{4}-\d\d-\d\d"
_PLAIN_DATE = f"^{_DATE}$"
_PLAIN_TIMES = {
    "timestamp": rf"^{_DATE}[T ]{_CLOCK}(\.\d{{1,6}})?({_OFFSET})?$",
    "timestamp_ntz": rf"^{_DATE}[T ]{_CLOCK}(\.\d{{1,6}})?$",
}
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_BEGIN, _NUMBER_END = re.compile(rb"[0-9.eE+-]*"), re.compile(rb"[0-9.eE+-]*\Z")
_REACH = 40
_SIGNIFICANT = 15
_PLAIN = {
    "boolean",
    "byte",
    "short",
    "int",
    "long",
    "double",
    "string",
    "decimal",
    "date",
    "timestamp",
    "timestamp_ntz",
}


@dataclass(frozen=True)
class Seen:
    """What a batch had that is in no column.

    Args:
        news: Fields without a column: ``{"in": {column: …}, "new": {field: type}}``, a level for each struct and list.
        misfits: Fields whose values fit no column, as a struct's type; None if there are none.
        cut: Path of a column → how many of its times lost digits beyond microseconds.
        empty: Paths of fields that are empty and have no column.
    """

    news: Mapping[str, Any]
    misfits: Kind
    cut: Mapping[str, int]
    empty: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.news or self.misfits or self.cut or self.empty)

    def data(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"news": self.news, "misfits": self.misfits, "cut": self.cut, "empty": sorted(self.empty)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Seen":
        """Return what `data` gave."""
        return cls(data["news"], data["misfits"], data["cut"], frozenset(data["empty"]))

    def and_(self, later: "Seen") -> "Seen":
        """Return what two batches had together."""
        cut = {path: self.cut.get(path, 0) + later.cut.get(path, 0) for path in {**self.cut, **later.cut}}
        return Seen(
            merged_news(self.news, later.news), merged(self.misfits, later.misfits), cut, self.empty | later.empty
        )


NOTHING = Seen({}, None, {})


@dataclass(frozen=True)
class Decoded:
    """What became of a batch's values, in their order.

    Args:
        made: A struct of the columns for each value that is not null and did not fail.
        places: Which values those are, ascending.
        error_class: Null where it did not fail.
        error_message: Likewise.
        seen: What is in no column.
    """

    made: pa.StructArray
    places: np.ndarray
    error_class: pa.StringArray
    error_message: pa.StringArray
    seen: Seen

    @property
    def rows(self) -> pa.StructArray:
        """A struct of the columns for each value; null where it is null, or failed."""
        if len(self.made) == len(self.error_class):
            return self.made
        return self.made.take(_at(self.places, len(self.error_class)))


def merged_news(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the news of two batches as those of both."""
    if not one or not other:
        return dict(one or other)
    inner = {
        name: merged_news(one.get("in", {}).get(name, {}), other.get("in", {}).get(name, {}))
        for name in {**one.get("in", {}), **other.get("in", {})}
    }
    new = dict(one.get("new", {}))
    for name, kind in other.get("new", {}).items():
        new[name] = merged(new.get(name), kind)
    return {key: found for key, found in (("in", inner), ("new", new)) if found}


class JsonDecoder:
    """Decodes batches of JSON records.

    Args:
        columns: Those of the rows.
        rules: The topic's.
        max_bytes: Longer values are ``too_large`` and not parsed; None for no limit.
        plain: Whether Arrow's parser takes what it can; without it every record is looked at alone.
    """

    def __init__(
        self, columns: Sequence[Column], rules: Rules, max_bytes: int | None = None, plain: bool = True
    ) -> None:
        self._kind = arrow_type(("struct", tuple(columns)))
        self._exact = Converter(columns, rules)
        self._max_bytes = max_bytes
        self._plain = _PlainReader(columns, rules) if plain and can_be_plain(columns) else None

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values.

        Args:
            values: Binary; nulls are tombstones.
        """
        open_ = pc.is_valid(values).to_numpy(zero_copy_only=False)
        if self._max_bytes is not None:
            size = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
            large = size > self._max_bytes
            open_ &= ~large
        todo = np.flatnonzero(open_)
        parts: list[pa.StructArray] = []
        places: list[np.ndarray] = []
        empty: frozenset[str] = frozenset()
        if self._plain is not None and len(todo):
            taken, fits, empty = self._plain.read(values if len(todo) == len(values) else values.take(pa.array(todo)))
            parts.append(taken)
            places.append(todo[fits])
            todo = todo[~fits]
        errors: dict[int, tuple[str, str]] = {}
        misfits: Kind = None
        if len(todo):
            made, at, errors, misfits = self._one_by_one(values, todo)
            parts.append(made)
            places.append(at)
        if self._max_bytes is not None:
            for index in np.flatnonzero(large):
                said = f"The value has {size[index]} bytes, the limit is {self._max_bytes}."
                errors[int(index)] = (TOO_LARGE, said)
        made, at = _in_order(parts, places, self._kind)
        return Decoded(made, at, *_failed(errors, len(values)), self._seen(misfits, empty))

    def _seen(self, misfits: Kind, empty: frozenset[str]) -> Seen:
        notes = self._exact.notes
        news: dict[str, Any] = {}
        kinds: dict[tuple[tuple[str, ...], str], Kind] = {}
        for path, name, value in notes.found:
            kinds[path, name] = merged(kinds.get((path, name)), kind_of(value))
        for (path, name), kind in kinds.items():
            node = news
            for step in path:
                node = node.setdefault("in", {}).setdefault(step, {})
            node.setdefault("new", {})[name] = kind
            below = ".".join((*path, name))
            empty |= {below if not inner else f"{below}.{inner}" for inner in _empty(kind)}
        cut: dict[str, int] = {}
        for path in notes.cut:
            cut[".".join(path)] = cut.get(".".join(path), 0) + 1
        notes.back((0, 0))
        return Seen(news, misfits, cut, empty)

    def _one_by_one(
        self, values: pa.Array, todo: np.ndarray
    ) -> tuple[pa.StructArray, np.ndarray, dict[int, tuple[str, str]], Kind]:
        """Return the rows of the values at these places, where they are, and why others failed."""
        rows: list[list[Any]] = []
        good: list[int] = []
        errors: dict[int, tuple[str, str]] = {}
        misfits: Kind = None
        for index, content in zip(todo.tolist(), values.take(pa.array(todo)).to_pylist(), strict=True):
            mark = self._exact.notes.mark()
            try:
                value = parse_object(content)
                row = self._exact.row(value)
                if not (missing := self._exact.missing(row)):
                    rows.append(row)
                    good.append(index)
                    continue
                error = NULL_IN_REQUIRED_COLUMN, f"Required, but null or missing: {', '.join(missing)}."
            except NotJsonError as reason:
                error = NOT_JSON, str(reason)
            except TooDeepError as reason:
                error = TOO_DEEP, str(reason)
            except MisfitError as reason:
                misfits = merged(misfits, reason.kind)
                error = WRONG_TYPE, self._exact.message(value, reason.kind[1])
            except Exception as reason:
                # Whatever it is, it is this record's, and must not stop the others.
                error = UNDECODABLE, f"{type(reason).__name__}: {reason}"
            self._exact.notes.back(mark)
            errors[index] = error[0], error[1][:MESSAGE]
        return *self._built(rows, good, errors), errors, misfits

    def _built(
        self, rows: list[list[Any]], good: list[int], errors: dict[int, tuple[str, str]]
    ) -> tuple[pa.StructArray, np.ndarray]:
        try:
            return _structs(rows, self._kind), np.array(good, dtype=np.int64)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as reason:
            if len(rows) == 1:
                errors[good[0]] = UNDECODABLE, f"{type(reason).__name__}: {reason}"[:MESSAGE]
                return _structs([], self._kind), np.array([], dtype=np.int64)
        half = len(rows) // 2
        first, first_at = self._built(rows[:half], good[:half], errors)
        second, second_at = self._built(rows[half:], good[half:], errors)
        return pa.concat_arrays([first, second]), np.concatenate([first_at, second_at])


def _empty(kind: Kind) -> Iterator[str]:
    return empty_fields(kind)


def _structs(rows: Sequence[Sequence[Any]], kind: Any) -> pa.StructArray:
    columns = zip(*rows, strict=True) if rows else [()] * kind.num_fields
    arrays = [pa.array(column, field.type) for column, field in zip(columns, kind, strict=True)]
    if not arrays:
        return pa.array([{}] * len(rows), kind)
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def _in_order(
    parts: Sequence[pa.StructArray], places: Sequence[np.ndarray], kind: Any
) -> tuple[pa.StructArray, np.ndarray]:
    """Return the elements of all parts in the order of their places, and those; within each part they ascend."""
    filled = [number for number, part in enumerate(parts) if len(part)]
    if not filled:
        return pa.nulls(0, kind), np.array([], dtype=np.int64)
    if len(filled) == 1:
        return parts[filled[0]], places[filled[0]]
    at = np.concatenate(places)
    order = np.argsort(at, kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order)), at[order]


def _at(places: np.ndarray, count: int) -> pa.Array:
    """Return, for each of so many values, its number among those at the places; null for others."""
    where = np.full(count, -1, dtype=np.int64)
    where[places] = np.arange(len(places))
    return pa.array(where, mask=where < 0)


def _failed(errors: Mapping[int, tuple[str, str]], count: int) -> tuple[pa.StringArray, pa.StringArray]:
    if not errors:
        return pa.nulls(count, pa.string()), pa.nulls(count, pa.string())
    where = _at(np.fromiter(errors, dtype=np.int64, count=len(errors)), count)
    classes, messages = (pa.array(each, pa.string()) for each in zip(*errors.values(), strict=True))
    return classes.take(where), messages.take(where)


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


class _PlainReader:
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
        return _structs(rows, self._kind)

    def _parsed_as(self, kind: Any) -> Any:
        if kind[0] == "struct":
            return pa.struct([pa.field(each[2][0], self._parsed_as(each[1])) for each in kind[1]])
        if kind[0] == "list":
            return pa.list_(self._parsed_as(kind[1]))
        if kind[0] in _PLAIN_TIMES and self._rules.timestamp_unit is not None:
            return pa.int64()
        return pa.string() if kind[0] in ("date", *_PLAIN_TIMES) else arrow_type(kind)

    def _looks_plain(self, text: pa.Array) -> np.ndarray:
        """Return which values have nothing that Arrow's parser takes and strict JSON, or a column, does not."""
        plain = np.ones(len(text), dtype=bool)
        lines = _Lines(text)
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
                    plain[index] = _fits_a_double(lines.around(place))
        return plain

    def _tables(self, text: pa.Array, at: np.ndarray) -> tuple[pa.Table | None, np.ndarray, frozenset[str]]:
        """Return a table of the values that Arrow's parser takes, and which ones those are."""
        block = _Block(text)
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
                keep &= _Lines(text).balanced()
                if stop.row is None:
                    keep &= ~pc.match_substring_regex(text, _TWO_OBJECTS).to_numpy(zero_copy_only=False)
            else:
                break
            if not keep.any():
                return None, at, empty
            if not keep.all():
                text, at = text.filter(pa.array(keep)), at[keep]
                block = _Block(text)
                table, stop, empty = self._read(block)
        if table is not None or stop.row is None:
            return table, at, empty
        taken = self._taken(block, stop.row)
        if taken is None:
            return None, at, empty
        table, _, empty = self._read(_Block(text.filter(pa.array(taken))))
        return table, at[taken], empty

    def _found(self, pattern: bytes, stop: "_Stop", text: pa.Array) -> np.ndarray:
        """Return the values in which a pattern is.

        It is kept in mind: as long as it finds some, they are set apart before the parser sees them.
        """
        found = _Lines(text).matching(pattern)
        few = len(np.unique(found)) * _SHARE <= len(text)
        if few and len(found) and pattern not in self._unfits and len(self._unfits) < _SEARCHES:
            self._unfits.append(pattern)
        return found if few or stop.row is None else found[:0]

    def _looks_fit(self, lines: "_Lines") -> np.ndarray:
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

    def _taken(self, block: "_Block", row: int) -> np.ndarray | None:
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

    def _read(self, block: "_Block") -> tuple[pa.Table | None, "_Stop", frozenset[str]]:
        """Return one row for each value; or None and what stopped the parser."""
        table, stop = _read_json(block.lines, self._asked, self._unexpected)
        empty: frozenset[str] | None = frozenset()
        if table is None and stop.row is None and self._unexpected == "error":
            # Fields that are null or empty wherever they are need no column. To see that costs more: kept in mind.
            table, stop = _read_json(block.lines, self._asked, "infer")
        if table is not None and self._rules.infer:
            empty = _only_nothing(pa.struct(list(table.schema)), pa.struct(list(self._asked)))
        if table is None:
            return None, stop, frozenset()
        if empty is None:
            unknown = _unknown(pa.struct(list(table.schema)), pa.struct(list(self._asked)))
            return None, _Stop(unknown=tuple(unknown)), frozenset()
        if len(table.schema) > len(self._asked) or empty:
            self._unexpected = "infer"
        # Each value begins and ends an object, so each has one at least; more are more rows.
        return (table, stop, empty) if len(table) == len(block) else (None, stop, frozenset())

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
        if kind[0] in _PLAIN_TIMES and self._rules.timestamp_unit is not None:
            return _from_epoch(parsed, arrow_type(kind), UNITS[self._rules.timestamp_unit])
        if kind[0] in _PLAIN_TIMES:
            return _times(parsed, _PLAIN_TIMES[kind[0]], arrow_type(kind))
        if kind[0] == "date":
            return _times(parsed, _PLAIN_DATE, arrow_type(kind))
        if kind[0] == "double":
            size = np.abs(pc.fill_null(parsed, 0).to_numpy(zero_copy_only=False))
            # Whole numbers from there on are looked at; NaN compares as unfit.
            fit = size < 2.0**53
            return parsed, None if fit.all() else fit
        if kind[0] == "decimal":
            # Arrow's parser lets whole numbers of more digits through.
            limit = pa.scalar(Decimal(10) ** (kind[1] - kind[2]), pa.decimal256(39, 0))
            below = pc.less(pc.abs(parsed.cast(pa.decimal256(50, kind[2]))), limit)
            fit = pc.fill_null(below, True).to_numpy(zero_copy_only=False)
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


class _Block:
    """Values as the lines of a text.

    Attributes:
        lines: The text.
    """

    def __init__(self, text: pa.Array) -> None:
        values = pa.concat_arrays([text, pa.array([""], text.type)])
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values), "\n")
        self.lines: pa.Buffer = joined[0].as_buffer()
        self._starts = np.zeros(len(text) + 1, dtype=np.int64)
        np.cumsum(pc.binary_length(text).to_numpy(zero_copy_only=False) + 1, out=self._starts[1:])

    def __len__(self) -> int:
        return len(self._starts) - 1

    def behind(self, count: int) -> "_Block":
        """Return what is left behind the first values."""
        rest = _Block.__new__(_Block)
        begin = int(self._starts[count])
        rest.lines, rest._starts = self.lines.slice(begin), self._starts[count:] - begin
        return rest


class _Lines:
    """The bytes of many texts in a row, and which of them a place is in."""

    def __init__(self, text: pa.Array) -> None:
        offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
        content = text.buffers()[2]
        self._starts = offsets - offsets[0]
        self._bytes = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] if content else np.zeros(0, np.uint8)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def around(self, place: int) -> bytes:
        """Return what may be a number around a place, of 80 characters at most."""
        before = _NUMBER_END.search(self._bytes[max(0, place - _REACH) : place].tobytes())
        behind = _NUMBER_BEGIN.match(self._bytes[place : place + _REACH].tobytes())
        return (before[0] if before else b"") + (behind[0] if behind else b"")

    def of(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers of the texts at these places."""
        found: np.ndarray = np.searchsorted(self._starts, places, side="right") - 1
        return found

    def opened(self) -> np.ndarray:
        """Return how many brackets each text opens."""
        return self._brackets("{")

    def balanced(self) -> np.ndarray:
        """Return which texts close as many brackets as they open; those in strings count too."""
        found: np.ndarray = self._brackets("{") == self._brackets("}")
        return found

    def _brackets(self, curly: str) -> np.ndarray:
        # The square one differs in one bit.
        return np.bincount(self.of(np.flatnonzero((self._bytes | 32) == ord(curly))), minlength=len(self))

    def matching(self, pattern: bytes) -> np.ndarray:
        """Return the texts in which a pattern begins to match."""
        return self.of(np.array([match.start() for match in re.finditer(pattern, self._bytes.data)], dtype=np.int64))

    def places(self, word: bytes) -> np.ndarray:
        """Return where a word is."""
        whole, found, place = self._bytes.tobytes(), [], -1
        while (place := whole.find(word, place + 1)) >= 0:
            found.append(place)
        return np.array(found, dtype=np.int64)

    def long_numbers(self) -> np.ndarray:
        """Return places within what may be a number with a fraction and 16 digits, or with an exponent of 3."""
        padded = np.concatenate(
            [np.zeros(_SIGNIFICANT + 1, np.uint8), self._bytes, np.zeros(_SIGNIFICANT + 1, np.uint8)]
        )
        points = np.flatnonzero(self._bytes == ord("."))
        points = points[self._digits(padded, points, 1) & self._digits(padded, points, -1)]
        ahead, behind = (self._run(padded, points, step) for step in (1, -1))
        letters = np.flatnonzero((self._bytes | 32) == ord("e"))
        letters = letters[self._digits(padded, letters, -1)]
        signed = np.isin(padded[letters + _SIGNIFICANT + 2], (ord("-"), ord("+")))
        first = np.where(signed, 2, 1)
        long = np.ones(len(letters), dtype=bool)
        for step in range(3):
            long &= self._digits(padded, letters, first + step)
        # 16 digits without a point, and an exponent of any length.
        long |= self._digits(padded, letters, first) & (self._run(padded, letters, -1) > _SIGNIFICANT)
        return np.concatenate([points[ahead + behind > _SIGNIFICANT], letters[long]])

    @staticmethod
    def _digits(padded: np.ndarray, places: np.ndarray, step: Any) -> np.ndarray:
        found: np.ndarray = (padded[places + _SIGNIFICANT + 1 + step] - ord("0")) < 10
        return found

    @classmethod
    def _run(cls, padded: np.ndarray, places: np.ndarray, step: int) -> np.ndarray:
        """Return how many digits there are in a row from the places on, 16 at most."""
        count, still = np.zeros(len(places), dtype=np.int64), np.ones(len(places), dtype=bool)
        for index in range(1, _SIGNIFICANT + 2):
            still &= cls._digits(padded, places, step * index)
            if not still.any():
                break
            count += still
        return count


def _fits_a_double(number: bytes) -> bool:
    if len(number) > _REACH:
        return False
    # What is no number is a part of a text.
    return _NUMBER.fullmatch(number) is None or is_double(number.decode())


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


def list_like(array: pa.Array, items: pa.Array, kind: Any) -> pa.Array:
    """Return lists of the same lengths as those of an array, nulls where it has nulls, with other items."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]), pa.int32())
    return pa.ListArray.from_arrays(offsets, items, kind, mask=array.is_null())


def _times(text: pa.Array, pattern: str, kind: Any) -> tuple[pa.Array, np.ndarray | None]:
    """Return texts as dates or times, and which of them are plain ones; None for all."""
    plain = pc.fill_null(pc.match_substring_regex(text, pattern), True)
    fit: np.ndarray | None = None
    if not pc.all(plain, min_count=0).as_py():
        fit = plain.to_numpy(zero_copy_only=False)
        text = pc.if_else(plain, text, None)
    try:
        made = _cast(text, kind)
    except pa.ArrowInvalid:
        # A day that no month has.
        each = [_cast_or_none(one, kind) for one in text.to_pylist()]
        made = pa.array(each, kind)
        real = np.array([one is not None for one in each]) | text.is_null().to_numpy(zero_copy_only=False)
        fit = real if fit is None else fit & real
    inside = in_range(made.cast(pa.timestamp("us")))
    if not inside.all():
        fit = inside if fit is None else fit & inside
    return made, fit


def _cast(text: pa.Array, kind: Any) -> pa.Array:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # With an offset and without one, which means UTC.
        zoned = pc.match_substring_regex(text, r"([Zz]|[+-]\d\d:?\d\d)$")
        text = pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", ""))
    return text.cast(kind)


def _cast_or_none(text: str | None, kind: Any) -> Any:
    if text is None:
        return None
    try:
        return _cast(pa.array([text], pa.string()), kind)[0].as_py()
    except (pa.ArrowInvalid, ValueError, OverflowError):
        return None


def _from_epoch(numbers: pa.Array, kind: Any, unit: float) -> tuple[pa.Array, np.ndarray | None]:
    count = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    if unit < 1:
        # Digits beyond microseconds are looked at one by one.
        fit, micros = count % 1000 == 0, count // 1000
    else:
        fit, micros = np.abs(count) <= LAST_MICROS // int(unit), count * int(unit)
    fit &= (micros >= FIRST_MICROS) & (micros <= LAST_MICROS)
    made = pa.array(np.where(fit, micros, 0), pa.int64(), mask=numbers.is_null().to_numpy(zero_copy_only=False))
    return made.cast(kind), None if fit.all() else fit


def in_range(times: pa.Array) -> np.ndarray:
    """Return which times are of the years 0001 to 9999; nulls are."""
    micros = pc.fill_null(times.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    found: np.ndarray = (micros >= FIRST_MICROS) & (micros <= LAST_MICROS)
    return found
