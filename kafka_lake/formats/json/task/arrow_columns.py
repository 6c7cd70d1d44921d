"""The columns of JSON objects by Arrow's parser, which takes a batch as a whole or not at all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from kafka_lake.formats.json.task.lines import lines_of
from kafka_lake.formats.json.task.values import Marks, Parsed, Path, list_like
from kafka_lake.formats.task.columns import Column, Rules, arrow_type, fed_alone

_TIMES = ("timestamp", "timestamp_ntz")
_TAKEN = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.string(),
    "date": pa.string(),
    "timestamp": pa.string(),
    "timestamp_ntz": pa.string(),
}
"""What Arrow's parser reads the values of columns as."""


def arrow_can(columns: Sequence[Column]) -> bool:
    """Return whether Arrow's parser knows all types of columns, and one field of its own feeds each."""
    return fed_alone(columns) and all(_kind_can(each[1]) for each in columns)


def _kind_can(kind: Any) -> bool:
    if kind[0] == "struct":
        return arrow_can(kind[1])
    return _kind_can(kind[1]) if kind[0] == "list" else kind[0] in _TAKEN


class ArrowColumns:
    """Arrow's parser, and the checks that its values are the very ones that were written.

    Args:
        columns: Those to read; `arrow_can` holds for them.
        path: The struct that they are in.
    """

    def __init__(self, columns: Sequence[Column], rules: Rules, path: Path) -> None:
        self._columns, self._path = tuple(columns), path
        self._epochs = rules.timestamp_unit is not None
        self._parsed = Parsed(rules)
        fields = pa.schema([pa.field(each[2][0], self._read_as(each[1])) for each in columns])
        self._options = pj.ParseOptions(explicit_schema=fields, unexpected_field_behavior="error")

    def read(self, texts: pa.Array, at: np.ndarray, marks: Marks) -> list[pa.Array] | None:
        """Return the columns of JSON objects; None if a value or field doesn't fit them, or a text isn't JSON."""
        block = lines_of(texts)
        options = pj.ReadOptions(use_threads=False, block_size=block.size + 1)
        try:
            table = pj.read_json(pa.BufferReader(block), options, self._options)
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        if len(table) != len(texts):
            # Each text has one object at least; one with two would shift the others.
            return None
        arrays = [table.column(each[2][0]).combine_chunks() for each in self._columns]
        return self._made(arrays, self._columns, at, marks=marks, path=self._path)

    def _read_as(self, kind: Any) -> Any:
        if kind[0] == "struct":
            return pa.struct([pa.field(each[2][0], self._read_as(each[1])) for each in kind[1]])
        if kind[0] == "list":
            return pa.list_(self._read_as(kind[1]))
        return pa.int64() if kind[0] in _TIMES and self._epochs else _TAKEN[kind[0]]

    def _made(
        self, arrays: Sequence[pa.Array], columns: Sequence[Column], at: np.ndarray, marks: Marks, path: Path
    ) -> list[pa.Array]:
        return [
            self._value(array, column[1], at, marks=marks, path=(*path, column[0]))
            for array, column in zip(arrays, columns, strict=True)
        ]

    def _value(self, array: pa.Array, kind: Any, at: np.ndarray, marks: Marks, path: Path) -> pa.Array:
        if kind[0] == "struct":
            fields = [array.field(each[2][0]) for each in kind[1]]
            inner = self._made(fields, kind[1], at, marks=marks, path=path)
            return pa.StructArray.from_arrays(inner, fields=list(arrow_type(kind)), mask=array.is_null())
        if kind[0] == "list":
            owners = at[pc.list_parent_indices(array).to_numpy(zero_copy_only=False)]
            made = self._value(array.flatten(), kind[1], owners, marks=marks, path=(*path, "element"))
            return list_like(array, made, arrow_type(kind))
        if kind[0] in ("float", "double"):
            return self._parsed.real(array, kind, at, marks=marks, path=path)
        if kind[0] == "binary":
            return self._parsed.binary(array, at, marks, path)
        if kind[0] in _TIMES and self._epochs:
            return self._parsed.epochs(array, kind, at, marks=marks, path=path)
        if kind[0] in ("date", *_TIMES):
            return self._parsed.times(array, kind, at, marks=marks, path=path)
        return array
