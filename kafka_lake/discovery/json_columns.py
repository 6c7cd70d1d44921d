"""Columns of a few JSON objects, by the rule of inference that runs have. A guess: a run sees more records."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T

from kafka_lake.executors.json.text import NotJsonError, TooDeepError, parse, refuse_twice
from kafka_lake.executors.json.types import TIMES, kind_of, merged, settled
from kafka_lake.ingest.decode.json.columns import spark_type

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Column:
    """A column that a table would have.

    Args:
        name: The field's name.
        type: Its type in Spark's DDL.
        time: ``date``, ``timestamp`` or ``timestamp_ntz`` for text that is one in every object; else empty.
    """

    name: str
    type: str
    time: str = ""

    @property
    def ddl(self) -> str:
        """Return the column as DDL has it."""
        return f"{_quoted(self.name)} {self.type}"


def json_value(content: bytes) -> Any:
    """Return a JSON value as `parse` gives it; None for anything but one strict JSON value."""
    try:
        value = parse(content)
        refuse_twice(value)
    except (NotJsonError, TooDeepError):
        return None
    return value


def columns_of(objects: Iterable[dict[str, Any]]) -> tuple[Column, ...]:
    """Return the columns of objects that `json_value` gave, in the order in which their fields first appear.

    Fields that are always null or empty have none. Fields of mixed types keep their JSON as text.
    """
    seen: Any = ["struct", {}]
    for each in objects:
        seen = merged(seen, kind_of(each))
    columns = []
    for name, kind in seen[1].items():
        if (known := settled(kind, False)) is not None:
            columns.append(Column(name, ddl(spark_type(known)), kind if kind in TIMES else ""))
    return tuple(columns)


def ddl(kind: T.DataType) -> str:
    """Return a type in Spark's DDL, names quoted where they must be.

    >>> ddl(T.ArrayType(T.StructType([T.StructField("zip code", T.LongType())])))
    'array<struct<`zip code`:bigint>>'
    """
    if isinstance(kind, T.StructType):
        return f"struct<{','.join(f'{_quoted(f.name)}:{ddl(f.dataType)}' for f in kind.fields)}>"
    if isinstance(kind, T.ArrayType):
        return f"array<{ddl(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{ddl(kind.keyType)},{ddl(kind.valueType)}>"
    return str(kind.simpleString())


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"
