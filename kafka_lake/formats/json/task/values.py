"""From JSON texts and parsed values to arrays of columns: what surely fits is taken, all else noted."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.json.task.json_texts import JsonTexts
from kafka_lake.formats.task.columns import FIRST_MICROS, LAST_MICROS, UNITS, Rules, arrow_type

Path = tuple[str, ...]


@dataclass(frozen=True)
class Beside:
    """Values of a field that has no column.

    Args:
        path: The struct that the field is in, by columns' names.
        texts: The values as JSON, none of them null.
        at: The record of each value, by number.
    """

    path: Path
    name: str
    texts: pa.Array
    at: np.ndarray


@dataclass
class Marks:
    """Notes on the records of a batch.

    Args:
        count: How many records there are.

    Attributes:
        bad: The records that the fast path leaves to the strict one.
        written: The records in which a number became a part of a text, which must keep it as it was written.
        rounded: The path of a column, and the records of its numbers that were rounded.
        lenient: Whether a parser read the records that takes a comma before a closing bracket.
    """

    count: int
    bad: np.ndarray = field(init=False)
    written: np.ndarray = field(init=False)
    beside: list[Beside] = field(default_factory=list)
    rounded: list[tuple[Path, np.ndarray]] = field(default_factory=list)
    lenient: bool = False

    def __post_init__(self) -> None:
        self.bad, self.written = np.zeros(self.count, dtype=bool), np.zeros(self.count, dtype=bool)
        self._reason, self._reasons = np.zeros(self.count, dtype=np.int16), [""]

    def refuse(self, at: np.ndarray, why: str) -> None:
        """Leave records to the strict path; the first reason for each counts."""
        if not len(at):
            return
        if why not in self._reasons:
            self._reasons.append(why)
        self._reason[at[~self.bad[at]]] = self._reasons.index(why)
        self.bad[at] = True

    def reasons(self) -> dict[str, int]:
        """Return how many records were left to the strict path, by reason."""
        counts = np.bincount(self._reason[self.bad], minlength=len(self._reasons))
        return {why: int(count) for why, count in zip(self._reasons, counts, strict=True) if count}


_CLOCK = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d"
_OFFSET = r"[Zz]|[+-]([01]\d|2[0-3]):?[0-5]\d"
_DATE = r"\d{4}-\d\d-\d\d"
PLAIN_DATE = f"^{_DATE}Z?$"
PLAIN_TIMES = {
    "timestamp": rf"^{_DATE}[T ]{_CLOCK}(\.\d{{1,6}})?({_OFFSET})?$",
    "timestamp_ntz": rf"^{_DATE}[T ]{_CLOCK}(\.\d{{1,6}})?$",
}


def structs(rows: Sequence[Sequence[Any]], kind: Any) -> pa.StructArray:
    """Return rows, each the values of its columns, as an array of structs."""
    columns = zip(*rows, strict=True) if rows else [()] * kind.num_fields
    arrays = [pa.array(column, field.type) for column, field in zip(columns, kind, strict=True)]
    if not arrays:
        return pa.array([{}] * len(rows), kind)
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def list_like(array: pa.Array, items: pa.Array, kind: Any) -> pa.Array:
    """Return lists of the same lengths as those of an array, nulls where it has nulls, with other items."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]), pa.int32())
    return pa.ListArray.from_arrays(offsets, items, kind, mask=array.is_null())


def as_times(text: pa.Array, pattern: str, kind: Any) -> tuple[pa.Array, np.ndarray | None]:
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
    if pa.types.is_date(kind):
        text = pc.ascii_rtrim(text, characters="Z")
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


def from_epoch(numbers: pa.Array, kind: Any, unit: float) -> tuple[pa.Array, np.ndarray | None]:
    """Return numbers since 1970 as times, and which of them a column holds; None for all."""
    count = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    if unit < 1:
        # Digits beyond microseconds are looked at one by one.
        fit, micros = count % 1000 == 0, count // 1000
    else:
        # Not by its absolute value: the least number of 64 bits has none.
        limit = LAST_MICROS // int(unit)
        fit, micros = (-limit <= count) & (count <= limit), count * int(unit)
    fit &= (micros >= FIRST_MICROS) & (micros <= LAST_MICROS)
    made = pa.array(np.where(fit, micros, 0), pa.int64(), mask=numbers.is_null().to_numpy(zero_copy_only=False))
    return made.cast(kind), None if fit.all() else fit


def in_range(times: pa.Array) -> np.ndarray:
    """Return which times are of the years 0001 to 9999; nulls are."""
    micros = pc.fill_null(times.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    found: np.ndarray = (micros >= FIRST_MICROS) & (micros <= LAST_MICROS)
    return found


class Parsed:
    """Turns texts and numbers into values of columns; what surely fits is taken, all else refused."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def real(self, numbers: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        """Return doubles as a double or float column's."""
        size = np.abs(pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False))
        # Whole numbers from there on are looked at; NaN compares as unfit.
        fit = size < 2.0**53
        if not fit.all():
            marks.refuse(at[~fit], _column(path))
        if kind[0] == "double":
            return numbers
        with np.errstate(over="ignore"):
            near = numbers.to_numpy(zero_copy_only=False).astype(np.float32)
        made = pa.array(near, mask=numbers.is_null().to_numpy(zero_copy_only=False))
        same = pc.equal(made.cast(pa.string()).cast(pa.float64()), numbers)
        rounded = ~pc.fill_null(same, True).to_numpy(zero_copy_only=False)
        if rounded.any():
            marks.rounded.append((path, at[rounded]))
        return made

    def binary(self, texts: pa.Array, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        """Return what base64 texts stand for."""
        made: list[bytes | None] = []
        bad: list[int] = []
        for number, text in enumerate(texts.to_pylist()):
            try:
                made.append(None if text is None else base64.b64decode(text, validate=True))
            except ValueError:
                made.append(None)
                bad.append(number)
        marks.refuse(at[bad], _column(path))
        return pa.array(made, pa.binary())

    def times(self, texts: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        """Return texts as dates or times."""
        pattern = PLAIN_DATE if kind[0] == "date" else PLAIN_TIMES[kind[0]]
        made, fit = as_times(texts, pattern, arrow_type(kind))
        if fit is not None:
            marks.refuse(at[~fit], _column(path))
        return made

    def epochs(self, numbers: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        """Return whole numbers since 1970 as times."""
        assert self._rules.timestamp_unit is not None, "such numbers have a unit"
        made, fit = from_epoch(numbers, arrow_type(kind), UNITS[self._rules.timestamp_unit])
        if fit is not None:
            marks.refuse(at[~fit], _column(path))
        return made


def _column(path: Path) -> str:
    return ".".join(path)


_QUOTE, _BACKSLASH = ord('"'), b"\\"
_WHOLE, _NUMBER = r"^-?[0-9]{1,18}$", r"^-?[0-9]"
NO_JSON = r"(?i)(^|[:\[,{])[-+]?(nan|inf)"
"""Numbers that DuckDB takes and JSON hasn't."""
_TWO_FIELDS = '":.*":'
_CONTROL = r"\\u00"
"""A letter of its code may be a capital, or not."""
_WHOLES = ("byte", "short", "int", "long")
_DIGITS = b"-0123456789"
_ALL = b'"{[tf' + _DIGITS
_BEGINNINGS = {
    "struct": b"{",
    "map": b"{",
    "list": b"[",
    "boolean": b"tf",
    **dict.fromkeys((*_WHOLES, "float", "double"), _DIGITS),
    "decimal": b'"' + _DIGITS,
}
_LIMITS = {"byte": 2**7, "short": 2**15, "int": 2**31}


def firsts(texts: pa.Array) -> np.ndarray:
    """Return the first byte of texts, 0 for null and for empty ones."""
    if not len(texts):
        return np.zeros(0, np.uint8)
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = texts.buffers()[2]
    if content is None or not content.size:
        return np.zeros(len(texts), np.uint8)
    held = np.frombuffer(content, np.uint8)
    found: np.ndarray = np.where(offsets[1:] > offsets[:-1], held[np.minimum(offsets[:-1], len(held) - 1)], 0)
    if texts.null_count:
        found[texts.is_null().to_numpy(zero_copy_only=False)] = 0
    return found


def surely_unlike(texts: pa.Array, kind: Any, rules: Rules) -> np.ndarray:
    """Return which JSON texts no value of a kind is written as; it may take none of the others either."""
    first = firsts(texts)
    name = kind[0]
    begins = _BEGINNINGS.get(name, b'"')
    if name == "string":
        taken: np.ndarray = first == 0
        return taken
    if name in PLAIN_TIMES and rules.timestamp_unit is not None:
        begins += _DIGITS
    unlike: np.ndarray = np.isin(first, np.frombuffer(_ALL, np.uint8)) & ~np.isin(
        first, np.frombuffer(begins, np.uint8)
    )
    if name in _WHOLES:
        unlike |= having(texts, r"^-?[0-9].*[.eE]")
    return unlike


class TextValues:
    """Makes the values of columns of JSON texts, or refuses them."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self._texts, self._parsed = rules, JsonTexts(), Parsed(rules)

    def made(self, texts: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        """Return JSON texts as a kind's values."""
        name = kind[0]
        if name == "string":
            return self._text(texts, at, marks, path)
        if name in _WHOLES:
            return _whole(texts, kind, at, marks=marks, path=path)
        if name in ("float", "double"):
            numbers = _numbers(texts, _NUMBER, pa.float64(), at=at, marks=marks, path=path)
            return self._parsed.real(numbers, kind, at, marks=marks, path=path)
        if name == "boolean":
            return _booleans(texts, at, marks, path)
        if name == "decimal":
            return self._decimal(texts, kind, at, marks=marks, path=path)
        if name in PLAIN_TIMES and self._rules.timestamp_unit is not None:
            return self._parsed.epochs(
                _numbers(texts, _WHOLE, pa.int64(), at=at, marks=marks, path=path), kind, at, marks=marks, path=path
            )
        strings = self.strings(_quoted(texts, at, marks, path))
        if name == "binary":
            return self._parsed.binary(strings, at, marks, path)
        return self._parsed.times(strings, kind, at, marks=marks, path=path)

    def strings(self, texts: pa.Array) -> pa.Array:
        """Return what JSON strings stand for; other JSON texts stay as they are if one of the strings has escapes."""
        content = texts.buffers()[2] if len(texts) else None
        if content is not None and _BACKSLASH in memoryview(content).tobytes():
            return self._texts.strings(texts)
        return pc.binary_slice(texts.cast(pa.binary()), 1, -1).cast(pa.string())

    def _text(self, texts: pa.Array, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        """Return strings as they are, and all else as JSON; numbers are to be looked at where they were written."""
        first = firsts(texts)
        other = (first != _QUOTE) & (first != 0)
        if not other.any():
            return self.strings(texts)
        where = np.flatnonzero(other)
        odd = texts.take(pa.array(where))
        self._look_at(odd, at[where], marks, path)
        marks.written[at[where[~np.isin(first[where], (ord("t"), ord("f")))]]] = True
        quoted = pc.if_else(pa.array(other), pa.scalar(None, texts.type), texts)
        return pc.if_else(pa.array(other), texts, self.strings(quoted))

    def _look_at(self, texts: pa.Array, at: np.ndarray, marks: Marks, path: Path) -> None:
        """Refuse what strict JSON hasn't, what would be written otherwise, and objects with a field twice."""
        why = ".".join(path)
        marks.refuse(at[having(texts, NO_JSON) | having(texts, _CONTROL)], why)
        todo = [(texts, at)]
        while todo:
            held, owners = todo.pop()
            several = np.flatnonzero(having(held, _TWO_FIELDS))
            held, owners = held.take(pa.array(several)), owners[several]
            for bracket, parts in (("{", self._texts.entries), ("[", self._texts.elements)):
                mine = firsts(held) == ord(bracket)
                if not mine.any():
                    continue
                lists, whose = parts(held.filter(pa.array(mine))), owners[mine]
                # A map has no field twice.
                marks.refuse(whose[lists.is_null().to_numpy(zero_copy_only=False)], why)
                inner = lists.flatten().field(1) if bracket == "{" else lists.flatten()
                todo.append((inner, whose[pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)]))

    def _decimal(self, texts: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        precision, scale = kind[1:]
        first = firsts(texts)
        if (first == _QUOTE).any():
            texts = pc.if_else(pa.array(first == _QUOTE), self.strings(texts), texts)
        digits = f"[0-9]{{1,{precision - scale}}}" if precision > scale else "0"
        behind = rf"(\.[0-9]{{1,{scale}}})?" if scale else r"(\.0)?"
        pattern = f"^-?{digits}{behind}$"
        wrong = ~having(texts, pattern) & (first != 0)
        if wrong.any():
            marks.refuse(at[wrong], ".".join(path))
            texts = pc.if_else(pa.array(wrong), pa.scalar(None, texts.type), texts)
        if not scale:
            texts = pc.replace_substring_regex(texts, r"\.0$", "")
        return texts.cast(arrow_type(kind))


def having(texts: pa.Array, pattern: str) -> np.ndarray:
    """Return which texts match a pattern; null doesn't."""
    found: np.ndarray = pc.fill_null(pc.match_substring_regex(texts, pattern), False).to_numpy(zero_copy_only=False)
    return found


def _numbers(texts: pa.Array, pattern: str, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
    """Return texts as numbers; those that don't match are refused."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        fit = having(texts, pattern)
        marks.refuse(at[~fit & texts.is_valid().to_numpy(zero_copy_only=False)], ".".join(path))
        return pc.if_else(pa.array(fit), texts, pa.scalar(None, texts.type)).cast(kind)


def _whole(texts: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
    numbers = _numbers(texts, _WHOLE, pa.int64(), at=at, marks=marks, path=path)
    limit = _LIMITS.get(kind[0])
    if limit is None:
        return numbers
    held = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    fit = (-limit <= held) & (held < limit)
    if not fit.all():
        marks.refuse(at[~fit], ".".join(path))
        numbers = pc.if_else(pa.array(fit), numbers, pa.scalar(None, numbers.type))
    return numbers.cast(arrow_type(kind))


def _booleans(texts: pa.Array, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
    first = firsts(texts)
    marks.refuse(at[~np.isin(first, (0, ord("t"), ord("f")))], ".".join(path))
    return pa.array(first == ord("t"), mask=first == 0)


def _quoted(texts: pa.Array, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
    """Return JSON strings, null for other values, which are refused."""
    first = firsts(texts)
    wrong = (first != _QUOTE) & (first != 0)
    if not wrong.any():
        return texts
    marks.refuse(at[wrong], ".".join(path))
    return pc.if_else(pa.array(wrong), pa.scalar(None, texts.type), texts)
