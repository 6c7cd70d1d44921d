"""What records say of keyed rows, a batch at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.task.decoded import NOTHING as NO_NEWS
from kafka_lake.formats.task.decoded import Decoded, Observed, failed_at

UPSERT, READ, DELETE, TRUNCATE, NOTHING = "upsert", "read", "delete", "truncate", "nothing"
"""What a change does: brings a row, brings one that a snapshot has read, takes one away, takes all away; or nothing."""

Columns = dict[str, pa.Array]


class Errors:
    """Why records of a batch fail. The first reason of a record counts."""

    def __init__(self, count: int) -> None:
        self.failed = np.zeros(count, dtype=bool)
        self._reasons: dict[int, tuple[str, str]] = {}

    def add(self, reasons: Mapping[int, tuple[str, str]]) -> None:
        """Add error classes and messages by the numbers of records."""
        for number, (error_class, message) in reasons.items():
            # A name in JSON may have half a surrogate pair, which no table can hold.
            said = error_class, message.encode("utf-8", "backslashreplace").decode()
            self._reasons.setdefault(number, said)
            self.failed[number] = True

    def add_decoded(self, decoded: Decoded, where: np.ndarray | None = None) -> None:
        """Add the reasons why records weren't decoded; those in a mask only, if there is one."""
        failed = mask_of(decoded.error_class)
        numbers = np.flatnonzero(failed if where is None else failed & where).tolist()
        self.add({n: (decoded.error_class[n].as_py(), decoded.error_message[n].as_py() or "") for n in numbers})

    def refuse(self, where: np.ndarray, error_class: str, message: Callable[[int], str]) -> None:
        """Refuse the records in a mask."""
        numbers = np.flatnonzero(where & ~self.failed).tolist()
        self.add({number: (error_class, message(number)) for number in numbers})

    def arrays(self) -> tuple[pa.StringArray, pa.StringArray]:
        """Return error classes and messages, null where a record hasn't failed."""
        return failed_at(self._reasons, len(self.failed))


@dataclass
class Changes:
    """What the records of a batch say.

    Args:
        does: What each does; null if it is no change.
        columns: The row's columns in the table; of a delete, those of the key at least.
        errors: Why records fail.
        old: The columns of the row's key before an update; None if there are none.
        has_old: The updates that may have changed the key.
        order: Where changes are in their source's order; null if only Kafka's offset tells.
        at: When they were made, in milliseconds since the epoch.
        snapshot: Of rows that a snapshot has read: which of them it is, as the envelope calls it.
        source: The source's table, with all parts of its name.
        unavailable: Columns whose values weren't sent, by the numbers of records.
        seen: What is in no column.
    """

    does: pa.Array
    columns: Columns
    errors: Errors
    old: Decoded | None = None
    has_old: np.ndarray | None = None
    order: pa.Array | None = None
    at: pa.Array | None = None
    snapshot: pa.Array | None = None
    source: pa.Array | None = None
    unavailable: Mapping[int, Sequence[str]] = field(default_factory=dict)
    seen: Observed = NO_NEWS


class Envelope(Protocol):
    """Opens what records are wrapped in."""

    def open(self, batch: pa.RecordBatch) -> Changes:
        """Return what records say, by their columns ``key`` and ``value``."""


def mask_of(values: pa.Array) -> np.ndarray:
    """Return which values are not null."""
    found: np.ndarray = pc.is_valid(values).to_numpy(zero_copy_only=False)
    return found


def where(condition: pa.Array) -> np.ndarray:
    """Return where a condition is true; null is false."""
    found: np.ndarray = pc.fill_null(condition, False).to_numpy(zero_copy_only=False)
    return found


def only(values: pa.Array, mask: np.ndarray) -> pa.Array:
    """Return values, null outside of a mask."""
    return values if mask.all() else pc.if_else(pa.array(mask), values, pa.scalar(None, values.type))


def joined(parts: Sequence[pa.Array]) -> pa.Array:
    """Return texts put together of parts that begin with a separator, without the first one; null is left out."""
    # Arrow's own way to leave out nulls drops the rows that have nothing else (26.0.1).
    return pc.utf8_slice_codeunits(pc.binary_join_element_wise(*(pc.fill_null(part, "") for part in parts), ""), 1)


def columns_of(decoded: Decoded) -> Columns:
    """Return decoded columns, null for records that have none."""
    return fields_of(decoded.rows)


def fields_of(structs: pa.StructArray) -> Columns:
    """Return the fields of structs, null where a struct is."""
    return dict(zip([f.name for f in structs.type], structs.flatten(), strict=True))


def with_value(batch: pa.RecordBatch, texts: pa.Array) -> pa.RecordBatch:
    """Return records with other values."""
    return batch.set_column(batch.schema.get_field_index("value"), "value", texts.cast(pa.binary()))
