"""From JSON texts to arrays of columns' values, where they surely fit; other records are left to the strict path."""

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.json.task.doubles import bytes_of
from kafka_lake.formats.json.task.json_texts import JsonTexts
from kafka_lake.formats.task.columns import UNITS, Rules, arrow_type
from kafka_lake.formats.task.times import PLAIN_DATE, PLAIN_TIMES, as_times, from_epoch

Path = tuple[str, ...]


@dataclass(frozen=True)
class NewField:
    """Values of a field that has no column.

    Args:
        path: The struct of the field, by columns' names.
        values: The values without nulls: JSON texts, or what Arrow's parser made of them.
        at: The record of each value, by number.
    """

    path: Path
    name: str
    values: pa.Array
    at: np.ndarray


@dataclass
class BatchNotes:
    """What the fast path notes of the records of a batch.

    Attributes:
        bad: The records that are left to the strict path.
        new_fields: Fields with their values as JSON texts.
        unread: Fields that Arrow's parser read: their types aren't wanted, or they have nothing but empty values.
        written: The records in which a number is part of a text column, which must keep it as it was written.
        rounded: The path of a column, and the records of its rounded numbers.
        lenient: Whether a parser was used that takes a comma before a closing bracket.
    """

    count: int
    bad: np.ndarray = field(init=False)
    written: np.ndarray = field(init=False)
    new_fields: list[NewField] = field(default_factory=list)
    unread: list[NewField] = field(default_factory=list)
    rounded: list[tuple[Path, np.ndarray]] = field(default_factory=list)
    lenient: bool = False

    def __post_init__(self) -> None:
        self.bad, self.written = np.zeros(self.count, dtype=bool), np.zeros(self.count, dtype=bool)
        self._reason, self._reasons = np.zeros(self.count, dtype=np.int16), [""]

    def leave(self, at: np.ndarray, reason: str) -> None:
        """Leave records to the strict path. The first reason of each counts."""
        if not len(at):
            return
        if reason not in self._reasons:
            self._reasons.append(reason)
        self._reason[at[~self.bad[at]]] = self._reasons.index(reason)
        self.bad[at] = True

    def reasons(self) -> dict[str, int]:
        """Return how many records are left to the strict path, by reason."""
        counts = np.bincount(self._reason[self.bad], minlength=len(self._reasons))
        return {reason: int(count) for reason, count in zip(self._reasons, counts, strict=True) if count}


@dataclass(frozen=True)
class Cells:
    """Where the values of an array are: a column, and the record of each value."""

    path: Path
    at: np.ndarray
    notes: BatchNotes

    def leave(self, wrong: np.ndarray) -> None:
        """Leave the records of some values to the strict path."""
        if wrong.any():
            self.notes.leave(self.at[wrong], ".".join(self.path))

    def below(self, step: str, parents: pa.Array | None = None) -> "Cells":
        """Return the cells of a field of structs; or of the items of lists, by the number of each item's list."""
        at = self.at if parents is None else self.at[parents.to_numpy(zero_copy_only=False)]
        return Cells((*self.path, step), at, self.notes)


_QUOTE, _BACKSLASH = ord('"'), b"\\"
_WHOLE, _NUMBER = r"^-?[0-9]{1,18}$", r"^-?[0-9]"
NOT_STRICT = r"(?i)(^|[:\[,{])[-+]?(nan|inf)"
"""Numbers that DuckDB takes and JSON hasn't."""
_TWO_FIELDS = '":.*":'
_CONTROL = r"\\u00"
"""A letter of its code may be a capital, or not."""
_WHOLES = ("byte", "short", "int", "long")
_DIGITS = b"-0123456789"
_ALL = b'"{[tf' + _DIGITS
_FIRST_BYTES = {
    "struct": b"{",
    "map": b"{",
    "list": b"[",
    "boolean": b"tf",
    **dict.fromkeys((*_WHOLES, "float", "double"), _DIGITS),
    "decimal": b'"' + _DIGITS,
}
_LIMITS = {"byte": 2**7, "short": 2**15, "int": 2**31}


def mask_of(flags: pa.Array) -> np.ndarray:
    """Return booleans as a mask; null is false."""
    mask: np.ndarray = flags.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def having(texts: pa.Array, pattern: str) -> np.ndarray:
    """Return which texts match a pattern; null doesn't."""
    return mask_of(pc.match_substring_regex(texts, pattern))


def only(texts: pa.Array, mask: np.ndarray) -> pa.Array:
    """Return the texts, null where the mask is false."""
    return texts if mask.all() else pc.if_else(pa.array(mask), texts, pa.scalar(None, texts.type))


def first_bytes(texts: pa.Array) -> np.ndarray:
    """Return the first byte of each text, 0 for null and for empty ones."""
    content, starts = bytes_of(texts) if len(texts) else (np.zeros(0, np.uint8), np.zeros(1, np.int32))
    if not len(content):
        return np.zeros(len(texts), np.uint8)
    first: np.ndarray = np.where(starts[1:] > starts[:-1], content[np.minimum(starts[:-1], len(content) - 1)], 0)
    if texts.null_count:
        first[mask_of(texts.is_null())] = 0
    return first


def beginning_with(texts: pa.Array, first: str, cells: Cells) -> pa.Array:
    """Return the JSON texts that begin with a character, null for others, whose records are left."""
    begins = first_bytes(texts)
    other = (begins != ord(first)) & (begins != 0)
    cells.leave(other)
    return only(texts, ~other)


def surely_unlike(texts: pa.Array, kind: Any, rules: Rules) -> np.ndarray:
    """Return which JSON texts can't be values of a kind. Some of the rest may be none either."""
    first = first_bytes(texts)
    name = kind[0]
    if name == "string":
        return np.zeros(len(first), dtype=bool)
    begins = _FIRST_BYTES.get(name, b'"')
    if name in PLAIN_TIMES and rules.timestamp_unit is not None:
        begins += _DIGITS
    unlike: np.ndarray = _in(first, _ALL) & ~_in(first, begins)
    return unlike | having(texts, r"^-?[0-9].*[.eE]") if name in _WHOLES else unlike


def _in(values: np.ndarray, characters: bytes) -> np.ndarray:
    return np.isin(values, np.frombuffer(characters, np.uint8))


class Values:
    """Makes the values of columns of JSON texts, or of what Arrow's parser made of them."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self._texts = rules, JsonTexts()

    def of_texts(self, texts: pa.Array, kind: Any, cells: Cells) -> pa.Array:
        """Return JSON texts as values of a scalar kind."""
        name = kind[0]
        if name == "string":
            return self._text(texts, cells)
        if name in _WHOLES:
            return _whole(texts, kind, cells)
        if name in ("float", "double"):
            return self.typed(_numbers(texts, _NUMBER, pa.float64(), cells), kind, cells)
        if name == "boolean":
            first = first_bytes(texts)
            cells.leave(~np.isin(first, (0, ord("t"), ord("f"))))
            return pa.array(first == ord("t"), mask=first == 0)
        if name == "decimal":
            return self._decimal(texts, kind, cells)
        if name in PLAIN_TIMES and self._rules.timestamp_unit is not None:
            return self.typed(_numbers(texts, _WHOLE, pa.int64(), cells), kind, cells)
        return self.typed(self._strings(beginning_with(texts, '"', cells)), kind, cells)

    def typed(self, values: pa.Array, kind: Any, cells: Cells) -> pa.Array:
        """Return doubles, texts, or numbers since 1970 as values of a kind."""
        if kind[0] in ("float", "double"):
            return _real(values, kind, cells)
        if kind[0] == "binary":
            return _binary(values, cells)
        if kind[0] in PLAIN_TIMES and self._rules.timestamp_unit is not None:
            times, fit = from_epoch(values, arrow_type(kind), UNITS[self._rules.timestamp_unit])
            cells.leave(~fit)
            return times
        if kind[0] == "date" or kind[0] in PLAIN_TIMES:
            pattern = PLAIN_DATE if kind[0] == "date" else PLAIN_TIMES[kind[0]]
            times, plain = as_times(values, pattern, arrow_type(kind))
            if plain is not None:
                cells.leave(~plain)
            return times
        return values

    def _strings(self, texts: pa.Array) -> pa.Array:
        """Return what JSON strings stand for; other JSON texts stay as they are if one of the strings has escapes."""
        content = texts.buffers()[2] if len(texts) else None
        if content is not None and _BACKSLASH in memoryview(content).tobytes():
            return self._texts.strings(texts)
        return pc.binary_slice(texts.cast(pa.binary()), 1, -1).cast(pa.string())

    def _text(self, texts: pa.Array, cells: Cells) -> pa.Array:
        """Return strings as they are, and all else as JSON. Numbers must be compared with what was written."""
        first = first_bytes(texts)
        other = (first != _QUOTE) & (first != 0)
        if not other.any():
            return self._strings(texts)
        where = np.flatnonzero(other)
        self._check_strict(texts.take(pa.array(where)), cells.at[where], cells)
        cells.notes.written[cells.at[where[~np.isin(first[where], (ord("t"), ord("f")))]]] = True
        return pc.if_else(pa.array(other), texts, self._strings(only(texts, ~other)))

    def _check_strict(self, texts: pa.Array, at: np.ndarray, cells: Cells) -> None:
        """Leave records with what strict JSON hasn't, what would be written otherwise, or a field twice."""
        notes, reason = cells.notes, ".".join(cells.path)
        notes.leave(at[having(texts, NOT_STRICT) | having(texts, _CONTROL)], reason)
        todo = [(texts, at)]
        while todo:
            held, owners = todo.pop()
            several = np.flatnonzero(having(held, _TWO_FIELDS))
            held, owners = held.take(pa.array(several)), owners[several]
            for bracket, parts in (("{", self._texts.entries), ("[", self._texts.elements)):
                chosen = first_bytes(held) == ord(bracket)
                if not chosen.any():
                    continue
                lists, records = parts(held.filter(pa.array(chosen))), owners[chosen]
                # A map has no field twice.
                notes.leave(records[mask_of(lists.is_null())], reason)
                items = lists.flatten().field(1) if bracket == "{" else lists.flatten()
                todo.append((items, records[pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)]))

    def _decimal(self, texts: pa.Array, kind: Any, cells: Cells) -> pa.Array:
        precision, scale = kind[1:]
        first = first_bytes(texts)
        if (first == _QUOTE).any():
            texts = pc.if_else(pa.array(first == _QUOTE), self._strings(texts), texts)
        digits = f"[0-9]{{1,{precision - scale}}}" if precision > scale else "0"
        fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else r"(\.0)?"
        fit = having(texts, f"^-?{digits}{fraction}$") | (first == 0)
        cells.leave(~fit)
        texts = only(texts, fit)
        if not scale:
            texts = pc.replace_substring_regex(texts, r"\.0$", "")
        return texts.cast(arrow_type(kind))


def _real(numbers: pa.Array, kind: Any, cells: Cells) -> pa.Array:
    size = np.abs(pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False))
    # Larger whole numbers may be rounded; NaN compares as unfit.
    cells.leave(~(size < 2.0**53))
    if kind[0] == "double":
        return numbers
    with np.errstate(over="ignore"):
        near = numbers.to_numpy(zero_copy_only=False).astype(np.float32)
    floats = pa.array(near, mask=numbers.is_null().to_numpy(zero_copy_only=False))
    same = pc.equal(floats.cast(pa.string()).cast(pa.float64()), numbers)
    rounded = ~pc.fill_null(same, True).to_numpy(zero_copy_only=False)
    if rounded.any():
        cells.notes.rounded.append((cells.path, cells.at[rounded]))
    return floats


def _binary(texts: pa.Array, cells: Cells) -> pa.Array:
    contents: list[bytes | None] = []
    wrong = np.zeros(len(texts), dtype=bool)
    for number, text in enumerate(texts.to_pylist()):
        try:
            contents.append(None if text is None else base64.b64decode(text, validate=True))
        except ValueError:
            contents.append(None)
            wrong[number] = True
    cells.leave(wrong)
    return pa.array(contents, pa.binary())


def _numbers(texts: pa.Array, pattern: str, kind: Any, cells: Cells) -> pa.Array:
    """Return texts as numbers. Records of texts that don't match are left."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        fit = having(texts, pattern)
        cells.leave(~fit & mask_of(texts.is_valid()))
        return only(texts, fit).cast(kind)


def _whole(texts: pa.Array, kind: Any, cells: Cells) -> pa.Array:
    numbers = _numbers(texts, _WHOLE, pa.int64(), cells)
    limit = _LIMITS.get(kind[0])
    if limit is None:
        return numbers
    held = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    fit = (-limit <= held) & (held < limit)
    cells.leave(~fit)
    return only(numbers, fit).cast(arrow_type(kind))
