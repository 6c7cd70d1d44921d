"""From what Arrow's parser gives to the values of columns, and which of them fit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.json.arrays import PLAIN_DATE, PLAIN_TIMES, as_times, from_epoch, list_like
from kafka_lake.executors.json.columns import UNITS, Column, Rules, arrow_type


class ParsedColumns:
    """Turns what Arrow's parser gives into the values of columns.

    Args:
        columns: Those of the rows.
        rules: The topic's.
    """

    def __init__(self, columns: Sequence[Column], rules: Rules) -> None:
        self._columns = tuple(columns)
        self._rules = rules

    def made(self, table: pa.Table) -> tuple[list[pa.Array], np.ndarray]:
        """Return the columns of parsed values, and which values fit them all."""
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
