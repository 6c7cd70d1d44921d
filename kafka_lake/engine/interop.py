"""What crosses between Python and Spark: types, functions, Java's stack traces.

Not documented by PySpark, and without a documented way: ``pyspark.sql.pandas.types``, by which PySpark itself makes
data frames of Arrow tables; ``pyspark.cloudpickle``, by which it sends functions; ``CapturedException._stackTrace``.
"""

import pickle
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema

from kafka_lake.engine.task.packing import Batches, Task, unpacking

__all__ = ["from_arrow_schema", "from_arrow_type", "to_arrow_schema"]

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def ddl(kind: T.DataType) -> str:
    """Return a type in Spark's DDL, names quoted where they must be.

    >>> ddl(T.ArrayType(T.StructType([T.StructField("zip code", T.LongType())])))
    'array<struct<`zip code`:bigint>>'
    """
    if isinstance(kind, T.StructType):
        return f"struct<{','.join(f'{ddl_name(f.name)}:{ddl(f.dataType)}' for f in kind.fields)}>"
    if isinstance(kind, T.ArrayType):
        return f"array<{ddl(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{ddl(kind.keyType)},{ddl(kind.valueType)}>"
    return str(kind.simpleString())


def ddl_name(name: str) -> str:
    """Return a name in Spark's DDL, quoted where it must be."""
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def send_by_value(package: ModuleType) -> None:
    """Have PySpark send functions of a package with their code: workers don't need the package then."""
    cloudpickle.register_pickle_by_value(package)


def pickled(function: Callable[..., Any]) -> bytes:
    """Return a function as `pickle.loads` takes it, with its code if it is of a package that is sent by value."""
    content: bytes = cloudpickle.dumps(function)
    return content


def java_trace(error: BaseException) -> str:
    """Return the Java stack trace of an error of PySpark's; empty if it has none.

    Errors of Spark Connect have a public ``getStackTrace``. The text of an error lacks the trace if
    ``spark.sql.pyspark.jvmStacktrace.enabled`` is false.
    """
    trace = getattr(error, "getStackTrace", None)
    return str((trace() if callable(trace) else getattr(error, "_stackTrace", None)) or "")


def task_function(task: Task, data: Mapping[str, Any]) -> Batches:
    """Return the function for ``mapInArrow`` that a task makes of plain data."""
    return unpacking(packed(task), pickle.dumps(dict(data)))


@cache
def packed(code: Callable[..., Any]) -> bytes:
    """Return a task, or a class that one uses, with its code; made once in a process.

    Code of packages named ``task`` is in it; anything else would have to be installed where it runs.
    """
    for name in [name for name in sys.modules if name.startswith("kafka_lake.") and name.endswith(".task")]:
        send_by_value(sys.modules[name])
    return pickled(code)
