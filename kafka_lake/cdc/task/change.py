"""Change events of a batch of records, and why records fail."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.task.decoded import NOTHING as NOTHING_OBSERVED
from kafka_lake.formats.task.decoded import Decoded, Observed, failed_at

UPSERT, READ, DELETE, TRUNCATE, NOTHING = "upsert", "read", "delete", "truncate", "nothing"
"""Operations of change events. ``read`` is a row that a snapshot of the source has read."""

Columns = dict[str, pa.Array]


class Errors:
    """Error classes and messages of a batch's records. The first error of a record counts."""

    def __init__(self, count: int) -> None:
        self.failed = np.zeros(count, dtype=bool)
        self._errors: dict[int, tuple[str, str]] = {}

    def add(self, errors: Mapping[int, tuple[str, str]]) -> None:
        """Add error classes and messages by record number."""
        for number, (error_class, message) in errors.items():
            # A name in JSON may have half of a surrogate pair, which no table can store.
            valid = message.encode("utf-8", "backslashreplace").decode()
            self._errors.setdefault(number, (error_class, valid))
            self.failed[number] = True

    def add_decoded(self, decoded: Decoded, mask: np.ndarray | None = None) -> None:
        """Add the errors of decoding, by default those of all records."""
        failed = mask_of(decoded.error_class)
        numbers = np.flatnonzero(failed if mask is None else failed & mask).tolist()
        self.add({n: (decoded.error_class[n].as_py(), decoded.error_message[n].as_py() or "") for n in numbers})

    def reject(self, mask: np.ndarray, error_class: str, message: Callable[[int], str]) -> None:
        """Add an error to the records of a mask that have none yet."""
        self.add({n: (error_class, message(n)) for n in np.flatnonzero(mask & ~self.failed).tolist()})

    def arrays(self) -> tuple[pa.StringArray, pa.StringArray]:
        """Return error classes and messages; null for records without an error."""
        return failed_at(self._errors, len(self.failed))


@dataclass
class ChangeEvents:
    """The change events of a batch.

    Args:
        operations: The operation of each; null if the record isn't a change event.
        old_key: The row's key before an update; None if no record has one.
        has_old_key: The updates that may have changed the key.
        order: Positions in the source's log; null if only Kafka's offset orders changes.
        at: When the changes were made, in milliseconds since the epoch.
        snapshot: Of rows that a snapshot has read: the envelope's word for their place in it.
        source: Full names of the source's tables.
        unavailable: Fields whose values weren't sent, by record number.
    """

    operations: pa.Array
    columns: Columns
    errors: Errors
    old_key: Decoded | None = None
    has_old_key: np.ndarray | None = None
    order: pa.Array | None = None
    at: pa.Array | None = None
    snapshot: pa.Array | None = None
    source: pa.Array | None = None
    unavailable: Mapping[int, Sequence[str]] = field(default_factory=dict)
    observed: Observed = NOTHING_OBSERVED


class Envelope(Protocol):
    """Reads change events out of records."""

    def open(self, batch: pa.RecordBatch) -> ChangeEvents:
        """Return the change events of records, by their columns ``key`` and ``value``."""


def mask_of(values: pa.Array) -> np.ndarray:
    """Return which values are not null."""
    mask: np.ndarray = pc.is_valid(values).to_numpy(zero_copy_only=False)
    return mask


def where(condition: pa.Array) -> np.ndarray:
    """Return where a condition is true; null is false."""
    mask: np.ndarray = pc.fill_null(condition, False).to_numpy(zero_copy_only=False)
    return mask


def only(values: pa.Array, mask: np.ndarray) -> pa.Array:
    """Return values, null outside of a mask."""
    return values if mask.all() else pc.if_else(pa.array(mask), values, pa.scalar(None, values.type))


def joined(parts: Sequence[pa.Array]) -> pa.Array:
    """Concatenate texts that begin with a separator, without the first separator; nulls are left out."""
    # Arrow's option to leave out nulls drops rows that have nothing else (26.0.1).
    return pc.utf8_slice_codeunits(pc.binary_join_element_wise(*(pc.fill_null(part, "") for part in parts), ""), 1)


def fields_of(structs: pa.StructArray) -> Columns:
    """Return the fields of structs, null where a struct is null."""
    return dict(zip([f.name for f in structs.type], structs.flatten(), strict=True))


def with_value(batch: pa.RecordBatch, texts: pa.Array) -> pa.RecordBatch:
    """Return records with other values."""
    return batch.set_column(batch.schema.get_field_index("value"), "value", texts.cast(pa.binary()))
