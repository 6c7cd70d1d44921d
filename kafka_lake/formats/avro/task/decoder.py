"""Decodes batches of Avro values to a table's columns, all values of a batch at once."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kafka_lake.formats.avro.task.readers import Reader
from kafka_lake.formats.avro.task.scan import Scan
from kafka_lake.formats.avro.task.schema import SchemaReader
from kafka_lake.formats.task.columns import Column
from kafka_lake.formats.task.decoded import NOTHING, Decoded, small_enough
from kafka_lake.formats.task.decoders import ValueDecoder
from kafka_lake.formats.task.error_classes import MALFORMED
from kafka_lake.formats.task.fit import Errors, Fit

VALUE = "value"
"""The one column of values that aren't records."""


class AvroDecoder(ValueDecoder):
    """Decodes Avro values of one schema, in the binary encoding without framing.

    Malformed are values with missing or extra bytes, text that isn't UTF-8, times and decimals beyond their type's
    range, and dates and timestamps outside of the years 1 to 9999.

    Args:
        schema: The schema as JSON, each named type defined where it is first used.
        columns: Those of the rows, see `kafka_lake.formats.task.columns`.
    """

    def __init__(self, schema: str, columns: Sequence[Column], label: str, max_bytes: int | None = None) -> None:
        self._reader = SchemaReader(label, schema).root()
        self._fit = Fit(row_type(self._reader.type), columns, label)
        self._max_bytes = max_bytes

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values."""
        errors: Errors = {}
        places = small_enough(values, self._max_bytes, errors)
        rows, good = read(self._reader, values if len(places) == len(values) else values.take(pa.array(places)))
        if not good.all():
            message = f"The bytes don't decode with {self._fit.label}."
            errors |= dict.fromkeys(places[~good].tolist(), (MALFORMED, message))
            rows, places = rows.filter(pa.array(good)), places[good]
        return self._fit.decoded(rows, places, errors, count=len(values), seen=NOTHING)


def read(reader: Reader, values: pa.Array) -> tuple[pa.StructArray, np.ndarray]:
    """Return values as rows, and which values aren't malformed."""
    scan = Scan(values)
    rows, ends = reader.read(scan, scan.begins, np.arange(len(values)))
    good = ~scan.bad & (ends == scan.ends)
    if not pa.types.is_struct(reader.type):
        return pa.StructArray.from_arrays([rows], [VALUE]), good
    # A null value has no columns.
    return rows, good & rows.is_valid().to_numpy(zero_copy_only=False) if rows.null_count else good


def row_type(kind: pa.DataType) -> pa.StructType:
    """Return the type of rows of values."""
    return kind if pa.types.is_struct(kind) else pa.struct([(VALUE, kind)])
