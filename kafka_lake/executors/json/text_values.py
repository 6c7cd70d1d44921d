"""From JSON texts, as DuckDB writes them, to the values of columns that hold one."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.json.arrays import PLAIN_TIMES
from kafka_lake.executors.json.columns import Rules, arrow_type
from kafka_lake.executors.json.json_texts import JsonTexts
from kafka_lake.executors.json.marks import Marks, Path
from kafka_lake.executors.json.parsed import Parsed

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

    def __init__(self, rules: Rules, texts: JsonTexts) -> None:
        self._rules, self._texts, self._parsed = rules, texts, Parsed(rules)

    def made(self, texts: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        """Return JSON texts as a kind's values.

        Args:
            texts: The texts; null for no value.
            kind: Any that isn't made of others.
            at: The record of each, by number.
            marks: Gets what doesn't fit, or not surely.
        """
        name = kind[0]
        if name == "string":
            return self._text(texts, at, marks, path)
        if name in _WHOLES:
            return _whole(texts, kind, at, marks=marks, path=path)
        if name in ("float", "double"):
            numbers = _cast(texts, _NUMBER, pa.float64(), at=at, marks=marks, path=path)
            return self._parsed.real(numbers, kind, at, marks=marks, path=path)
        if name == "boolean":
            return _booleans(texts, at, marks, path)
        if name == "decimal":
            return self._decimal(texts, kind, at, marks=marks, path=path)
        if name in PLAIN_TIMES and self._rules.timestamp_unit is not None:
            return self._parsed.epochs(
                _cast(texts, _WHOLE, pa.int64(), at=at, marks=marks, path=path), kind, at, marks=marks, path=path
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


def _cast(texts: pa.Array, pattern: str, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
    """Return texts as numbers; those that don't match are refused."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        fit = having(texts, pattern)
        marks.refuse(at[~fit & texts.is_valid().to_numpy(zero_copy_only=False)], ".".join(path))
        return pc.if_else(pa.array(fit), texts, pa.scalar(None, texts.type)).cast(kind)


def _whole(texts: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
    numbers = _cast(texts, _WHOLE, pa.int64(), at=at, marks=marks, path=path)
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
