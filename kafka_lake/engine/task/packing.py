"""How functions travel to tasks: packed once in a process, and unpacked by each task."""

import gc
import pickle
import sys
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
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        does: Batches = pickle.loads(packed)(pickle.loads(told))
        settle_worker()
        return does(batches)

    return run


def settle_worker() -> None:
    """Spare a worker's next tasks what Spark does around each of them, 110 ms; needed once in a process.

    After a task, a worker of Spark's collects garbage among all objects of all modules: those that are imported by now
    are left alone from then on. Before a task, it has Python read each zip file on its path again, once for each of the
    packages in it: PySpark's own, which don't change, are dropped from what is read.
    """
    if gc.get_freeze_count():
        # By kafka_lake's own daemon, or by the first task.
        return
    for path in [path for path in sys.path_importer_cache if "pyspark.zip" in path or "py4j-" in path]:
        del sys.path_importer_cache[path]
    gc.freeze()
