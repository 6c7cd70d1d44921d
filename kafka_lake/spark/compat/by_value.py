"""Functions that travel to Spark's Python workers with their code, so that those need no kafka_lake."""

import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any


def send_by_value(package: ModuleType) -> None:
    """Have PySpark send functions of a package with their code, in data frames' plans as well as by `packed`.

    Not documented: ``pyspark.cloudpickle``, which PySpark itself packs functions by. Without it they travel by name,
    and work where the machines of Spark have this version of the package; on one machine they have.

    Args:
        package: With all that is in it.
    """
    try:
        from pyspark import cloudpickle
    except ImportError:
        return
    cloudpickle.register_pickle_by_value(package)


def packed(function: Callable[..., Any]) -> bytes:
    """Return a function as it travels, for `pickle.loads`; `send_by_value` says what it needs there."""
    try:
        from pyspark import cloudpickle
    except ImportError:
        return pickle.dumps(function)
    content: bytes = cloudpickle.dumps(function)
    return content
