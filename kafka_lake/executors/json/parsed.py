"""From parsed values to those of columns: what needs more than the parser's types."""

import base64
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.json.arrays import PLAIN_DATE, PLAIN_TIMES, as_times, from_epoch
from kafka_lake.executors.json.columns import UNITS, Rules, arrow_type
from kafka_lake.executors.json.marks import Marks, Path


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
