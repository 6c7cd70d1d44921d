"""Functions of the executors as Spark takes them: by value, so that a cluster's machines need no kafka_lake."""

import pickle
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from kafka_lake import executors
from kafka_lake.executors.packing import Batches, Task, unpacking
from kafka_lake.spark import interop

interop.send_by_value(executors)


def told(task: Task, data: Mapping[str, Any]) -> Batches:
    """Return the function for ``mapInArrow`` that a task makes of plain data."""
    return unpacking(packed(task), pickle.dumps(dict(data)))


@cache
def packed(code: Callable[..., Any]) -> bytes:
    """Return a task, or a class that one uses, as it travels; made once in a process."""
    return interop.packed(code)
