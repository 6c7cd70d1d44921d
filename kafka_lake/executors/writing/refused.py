"""Records that become no row although they decode: their places are known before the task begins."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

Places = Mapping[int, tuple[np.ndarray, np.ndarray]]
"""By Kafka partition: offsets, ascending, and for each of them the number of its reason."""


def split(
    batch: pa.RecordBatch, places: Places, reasons: Sequence[tuple[str, str]]
) -> tuple[pa.RecordBatch, pa.RecordBatch, list[pa.Array]]:
    """Part a batch of records.

    Args:
        batch: Records with ``partition`` and ``offset``.
        places: Those that become no row.
        reasons: Error class and message by number.

    Returns:
        The records that may become rows; the others; and of these error classes and messages.
    """
    numbers = np.full(len(batch), -1, dtype=np.int32)
    partitions, offsets = (batch.column(name).to_numpy() for name in ("partition", "offset"))
    for partition, (refused, reason) in places.items():
        of_it = np.flatnonzero(partitions == partition)
        if not len(of_it):
            continue
        at = np.minimum(np.searchsorted(refused, offsets[of_it]), len(refused) - 1)
        hit = refused[at] == offsets[of_it]
        numbers[of_it[hit]] = reason[at[hit]]
    apart = numbers >= 0
    chosen = pa.array(numbers[apart])
    told = [pa.array([each[part] for each in reasons], pa.string()).take(chosen) for part in (0, 1)]
    return batch.filter(pa.array(~apart)), batch.filter(pa.array(apart)), told
