"""Functions for Spark's Python workers, sent by value, so that a cluster's machines need no kafka_lake."""

import pickle
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from kafka_lake.engine import interop
from kafka_lake.engine.task.packing import Batches, Task, unpacking


def task_function(task: Task, data: Mapping[str, Any]) -> Batches:
    """Return the function for ``mapInArrow`` that a task makes of plain data."""
    return unpacking(packed(task), pickle.dumps(dict(data)))


@cache
def packed(code: Callable[..., Any]) -> bytes:
    """Return a task, or a class that one uses, with its code; made once in a process.

    Code of packages named ``task`` is in it; anything else would have to be installed where it runs.
    """
    for name in [name for name in sys.modules if name.startswith("kafka_lake.") and name.endswith(".task")]:
        interop.send_by_value(sys.modules[name])
    return interop.packed(code)
