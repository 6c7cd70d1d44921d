"""How functions travel to tasks: packed once in a process, and unpacked by each task."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

Batches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What ``mapInArrow`` takes."""
Task = Callable[[dict[str, Any]], Batches]
"""What makes it of plain data."""


def unpacking(packed: bytes, told: bytes) -> Batches:
    """Return a function for ``mapInArrow`` that does what a task makes of what it is told.

    Spark Connect packs the functions of a plan whenever it sends it, some four times a batch: this one is small.

    Args:
        packed: The `Task`, by cloudpickle.
        told: Plain data, pickled.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        does: Batches = pickle.loads(packed)(pickle.loads(told))
        return does(batches)

    return run
