"""What crosses between Python and Spark: types, functions, Java's stack traces.

Not documented by PySpark, and without a documented way: ``pyspark.sql.pandas.types``, by which PySpark itself makes
data frames of Arrow tables; ``pyspark.cloudpickle``, by which it sends functions; ``CapturedException._stackTrace``.
"""

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema

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


def packed(function: Callable[..., Any]) -> bytes:
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
