"""The least and the greatest partition, offset and time of a data file's records.

PyIceberg keeps no bounds of fields within structs (`PyArrowStatisticsCollector`), as Iceberg's own writers do. With
them, a file is skipped by the offsets of its records, and dropped by their age.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, PrimitiveType, StructType, TimestamptzType

_NAMES = {"topic", "topic_id", "partition", "offset"}
_KINDS = (IntegerType, LongType, TimestamptzType)


class OriginBounds:
    """Bounds of the numbers and times in the metadata column; of nothing, where a table has none."""

    def __init__(self, schema: Schema) -> None:
        self._fields: list[tuple[str, NestedField, PrimitiveType]] = [
            (column.name, inner, inner.field_type)
            for column in schema.fields
            if isinstance(column.field_type, StructType) and {f.name for f in column.field_type.fields} >= _NAMES
            for inner in column.field_type.fields
            if isinstance(inner.field_type, _KINDS)
        ]
        self._found: dict[int, tuple[int, int]] = {}

    def add(self, rows: pa.Table) -> None:
        """Take rows into account; those whose value is null have no bounds."""
        for column, field, _ in self._fields:
            values = pc.struct_field(rows.column(column), [field.name])
            # Microseconds, as everywhere in the table.
            ends = pc.min_max(values.cast(pa.int64())).as_py()
            if ends["min"] is None:
                continue
            least, most = self._found.get(field.field_id, (ends["min"], ends["max"]))
            self._found[field.field_id] = min(least, ends["min"]), max(most, ends["max"])

    def added_to(self, statistics: dict[str, Any]) -> dict[str, Any]:
        """Return a data file's statistics with these bounds."""
        kinds = {field.field_id: kind for _, field, kind in self._fields}
        bounds = [{key: to_bytes(kinds[key], ends[which]) for key, ends in self._found.items()} for which in (0, 1)]
        return {
            **statistics,
            "lower_bounds": {**(statistics.get("lower_bounds") or {}), **bounds[0]},
            "upper_bounds": {**(statistics.get("upper_bounds") or {}), **bounds[1]},
        }
