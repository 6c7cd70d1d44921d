"""Values that stop Arrow's parser: found by patterns of what its messages say."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kafka_lake.executors.json.arrow_parser import Stop
from kafka_lake.executors.json.lines import Lines

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
SEARCHES, _SHARE = 4, 4


class StopPatterns:
    """Finds the values that stop Arrow's parser, by patterns, so that they are set apart before it sees them.

    Args:
        asked: The fields that the parser is asked for.
    """

    def __init__(self, asked: pa.Schema) -> None:
        self._unfits: list[bytes] = []
        self._whole: dict[str, list[str]] = {}
        for name, kind in _scalars(pa.struct(list(asked))):
            self._whole.setdefault(str(kind), []).append(name)

    def found(self, pattern: bytes, stop: Stop, text: pa.Array) -> np.ndarray:
        """Return the values in which a pattern is.

        It is kept in mind: as long as it finds some, they are set apart before the parser sees them.
        """
        found = Lines(text).matching(pattern)
        few = len(np.unique(found)) * _SHARE <= len(text)
        if few and len(found) and pattern not in self._unfits and len(self._unfits) < SEARCHES:
            self._unfits.append(pattern)
        return found if few or stop.row is None else found[:0]

    def look_fit(self, lines: Lines) -> np.ndarray:
        """Return which values have nothing of what has stopped the parser before."""
        fit = np.ones(len(lines), dtype=bool)
        for pattern in tuple(self._unfits):
            found = lines.matching(pattern)
            fit[found] = False
            if not len(found):
                self._unfits.remove(pattern)
        return fit

    def pattern_of(self, stop: Stop) -> bytes | None:
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
