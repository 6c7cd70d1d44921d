"""Arrow's parser of JSON, which needs every field that an object may have in its schema."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from kafka_lake.formats.task.columns import Column, Rules, fed_alone

_FIELDS = 256
"""Fields without a column that the parser's schema may have."""
_PART_RECORDS, _PART_BYTES = 500, 1 << 16
"""How many records, and of how many bytes, have their fields looked for at once."""
_TIMES = ("timestamp", "timestamp_ntz")
_PARSED_AS = {
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
_SIMPLER = {pa.int64().id: pa.float64(), pa.timestamp("s").id: pa.string()}
"""Types that hold what a field without a column may have in other records."""


def readable(columns: Sequence[Column]) -> bool:
    """Return whether Arrow's parser knows all types of columns, and one field of its own feeds each."""
    return fed_alone(columns) and all(_is_readable(column[1]) for column in columns)


def _is_readable(kind: Any) -> bool:
    if kind[0] == "struct":
        return readable(kind[1])
    return _is_readable(kind[1]) if kind[0] == "list" else kind[0] in _PARSED_AS


def is_finite(values: pa.Array) -> bool:
    """Return whether an array has no NaN and no infinity, at any depth: JSON has neither, and Arrow takes them."""
    if pa.types.is_struct(values.type):
        return all(map(is_finite, values.flatten()))
    if pa.types.is_list(values.type):
        return is_finite(values.flatten())
    return not pa.types.is_floating(values.type) or pc.all(pc.is_finite(values)).as_py() is not False


class ArrowParser:
    """Reads objects that have the columns' fields, and such others as make no difference.

    It learns of the others when they first occur. If types of new fields are wanted, these are fields without values:
    null, and empty objects and lists. Values of the others may be NaN or infinite, which no JSON is.

    Args:
        unwanted: Fields whose types aren't wanted.
    """

    def __init__(self, columns: Sequence[Column], rules: Rules, unwanted: Collection[str]) -> None:
        self._rules = rules
        self._columns = self._fields = self._fields_of(columns)
        self._unwanted = set(unwanted) - {field.name for field in self._columns}

    def read(self, texts: pa.Array) -> dict[str, pa.Array] | None:
        """Return the fields of objects; None if one doesn't fit, has a field that matters, or isn't JSON."""
        block = _lines(texts)
        table = _parsed(block, self._fields)
        if table is None and self._learn(texts):
            table = _parsed(block, self._fields)
        if table is None or len(table) != len(texts):
            # Each text has one object at least; one with two would shift the others.
            return None
        return {name: table.column(name).combine_chunks() for name in table.column_names}

    def _learn(self, texts: pa.Array) -> bool:
        """Add the fields of objects to the parser's schema; return whether it can hold all of them."""
        columns, most = self._columns, _count(self._columns) + _FIELDS
        fields: pa.StructType | None = columns
        for part in _parts(texts):
            found = _parsed(_lines(part), columns, others="infer")
            if found is None or (more := self._without_difference(pa.struct(list(found.schema)))) is None:
                return False
            fields = _unified(fields, more)
            if fields is None or _count(fields) > most:
                return False
        both = _unified(self._fields, fields)
        self._fields = fields if both is None or _count(both) > most else both
        return True

    def _without_difference(self, found: pa.StructType) -> pa.StructType | None:
        """Return the type of objects of whose fields without a column none matters; None if one does."""
        if self._rules.infer:
            return _without_values(found, self._columns, self._unwanted)
        return _simplified(found, self._columns)

    def _fields_of(self, columns: Sequence[Column]) -> pa.StructType:
        return pa.struct([pa.field(column[2][0], self._parsed_as(column[1])) for column in columns])

    def _parsed_as(self, kind: Any) -> pa.DataType:
        if kind[0] == "struct":
            return self._fields_of(kind[1])
        if kind[0] == "list":
            return pa.list_(self._parsed_as(kind[1]))
        return pa.int64() if kind[0] in _TIMES and self._rules.timestamp_unit is not None else _PARSED_AS[kind[0]]


def _parts(texts: pa.Array) -> Iterator[pa.Array]:
    """Yield parts that are so small that each name of a record may take room for each other record."""
    ends = np.cumsum(pc.binary_length(texts).to_numpy(zero_copy_only=False))
    begin = 0
    while begin < len(texts):
        before = ends[begin - 1] if begin else 0
        fit = int(np.searchsorted(ends, before + _PART_BYTES, side="right"))
        end = min(max(begin + 1, fit), begin + _PART_RECORDS)
        yield texts.slice(begin, end - begin)
        begin = end


def _lines(texts: pa.Array) -> pa.Buffer:
    lines = pa.concat_arrays([texts, pa.array([""], texts.type)])
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    return pc.binary_join(whole, "\n")[0].as_buffer()


def _parsed(block: pa.Buffer, fields: pa.StructType, others: str = "error") -> pa.Table | None:
    options = pj.ReadOptions(use_threads=False, block_size=block.size + 1)
    schema = pj.ParseOptions(explicit_schema=pa.schema(list(fields)), unexpected_field_behavior=others)
    try:
        table = pj.read_json(pa.BufferReader(block), options, schema)
        # Arrow makes lists that are too short of those that have several nulls, and nothing else.
        table.validate()
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    return table


def _unified(one: pa.StructType, other: pa.StructType) -> pa.StructType | None:
    try:
        fields = pa.unify_schemas([pa.schema(list(one)), pa.schema(list(other))], promote_options="permissive")
    except pa.ArrowException:
        return None
    return pa.struct(list(fields))


def _count(kind: pa.DataType) -> int:
    """Return how many fields a type has at all levels."""
    if pa.types.is_struct(kind):
        return sum(1 + _count(field.type) for field in kind)
    return _count(kind.value_type) if pa.types.is_list(kind) else 0


def _without_values(found: pa.StructType, columns: pa.StructType, unwanted: Collection[str]) -> pa.StructType | None:
    """Return the type of objects whose wanted fields without a column have no value; None if one has."""
    others = [field for field in _simplified(found, columns) or () if field.name in unwanted]
    wanted = pa.struct([field for field in found if field.name not in unwanted])
    empty = _with_scalars(wanted, columns, lambda kind: kind if pa.types.is_null(kind) else None)
    return None if empty is None else pa.struct([*empty, *others])


def _simplified(found: pa.StructType, columns: pa.StructType) -> pa.StructType | None:
    """Return the type of objects, of whose fields without a column only the presence counts."""
    return _with_scalars(found, columns, lambda kind: _SIMPLER.get(kind.id, kind))


def _with_scalars(
    found: pa.DataType, columns: pa.DataType | None, scalar: Callable[[pa.DataType], pa.DataType | None]
) -> pa.DataType | None:
    """Return a type with another one in the place of each scalar outside the columns; None if one can't be replaced."""
    if pa.types.is_struct(found):
        known = {field.name: field.type for field in columns or ()}
        lower = {name.lower() for name in known}
        if any(field.name not in known and field.name.lower() in lower for field in found):
            # It may feed the column.
            return None
        parts = [(field.name, _with_scalars(field.type, known.get(field.name), scalar)) for field in found]
        return None if any(kind is None for _, kind in parts) else pa.struct(parts)
    if pa.types.is_list(found):
        element = _with_scalars(found.value_type, columns.value_type if columns else None, scalar)
        return None if element is None else pa.list_(element)
    return scalar(found) if columns is None else columns
