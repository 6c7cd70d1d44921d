"""Functions for tasks: pickled once in a process, and unpickled by each task."""

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


def unpacking(task: bytes, data: bytes) -> Batches:
    """Return the function for ``mapInArrow`` that a pickled task makes of pickled data.

    Spark Connect pickles a plan's functions whenever it sends the plan, some four times a batch: this one is small.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        process: Batches = pickle.loads(task)(pickle.loads(data))
        settle_worker()
        return process(batches)

    return run


def settle_worker() -> None:
    """Make a worker's next tasks cheaper by 110 ms; needed once in a process.

    After each task, Spark's worker collects garbage among the objects of all modules, so these are frozen. Before each
    task, Python reads the directory of each zip file on its path again, once for each package in it, so PySpark's own
    zip files, which don't change, leave the importer cache.
    """
    if gc.get_freeze_count():
        # kafka_lake's daemon did it, or the first task.
        return
    for path in [path for path in sys.path_importer_cache if "pyspark.zip" in path or "py4j-" in path]:
        del sys.path_importer_cache[path]
    gc.freeze()
