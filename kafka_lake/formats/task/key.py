"""Records whose key is a column beside those of their value."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.task.decoded import Decoded
from kafka_lake.formats.task.error_classes import BAD_KEY


class KeyDecoder:
    """Decodes value and key of records, each by a decoder of its own.

    Args:
        keys: Decodes keys; None if the table has no column for them yet.
        whole: Whether the key's column is a struct of all that the key has; else it is the one value of a key that is
            no record.
        of_tombstones: Whether the key of a record without a value is decoded too: it identifies the deleted row.
    """

    def __init__(
        self, values: Any, keys: Any | None, *, names: Sequence[str], column: str, whole: bool, of_tombstones: bool
    ) -> None:
        self._values, self._keys, self._names = values, keys, names
        self._column, self._whole, self._of_tombstones = column, whole, of_tombstones

    def decode_records(self, batch: pa.RecordBatch) -> Decoded:
        """Decode records, by their columns ``key`` and ``value``."""
        values = batch.column("value")
        value = self._values.decode_records(batch)
        keys = batch.set_column(batch.schema.get_field_index("value"), "value", batch.column("key"))
        key = self._keys.decode_records(keys) if self._keys is not None else None
        none = pc.is_null(values).to_numpy(zero_copy_only=False)
        has_row = np.zeros(len(batch), dtype=bool)
        has_row[value.places] = True
        if self._of_tombstones:
            has_row |= none
        error_class, message = value.error_class, value.error_message
        if key is not None:
            bad = pc.is_valid(key.error_class).to_numpy(zero_copy_only=False)
            # A tombstone stays one, whatever its key is, unless its key says which row goes.
            bad = bad if self._of_tombstones else bad & ~none
            has_row &= ~bad
            apart = pa.array(bad & pc.is_null(error_class).to_numpy(zero_copy_only=False))
            said = pc.binary_join_element_wise("The key: ", pc.coalesce(key.error_message, key.error_class), "")
            error_class = pc.if_else(apart, BAD_KEY, error_class)
            message = pc.if_else(apart, said, message)
        places = np.flatnonzero(has_row)
        made = self._rows(value, key, places)
        seen = value.seen if key is None or not key.seen else replace(value.seen, key=key.seen)
        return Decoded(made, places, error_class, error_message=message, seen=seen)

    def _rows(self, value: Decoded, key: Decoded | None, places: np.ndarray) -> pa.StructArray:
        parts = dict(zip([f.name for f in value.made.type], _at(value, places).flatten(), strict=True))
        if key is not None:
            keys = _at(key, places)
            parts[self._column] = keys if self._whole else keys.field(0)
        return pa.StructArray.from_arrays([parts[name] for name in self._names], names=list(self._names))


def _at(decoded: Decoded, places: np.ndarray) -> pa.StructArray:
    """Return the structs of the records at these places; null for those that have none."""
    return decoded.made if np.array_equal(decoded.places, places) else decoded.rows.take(pa.array(places))
