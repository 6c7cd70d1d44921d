"""Columns of a few JSON objects, by the rule of inference that runs have. A guess: a run sees more records."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import types as T

from kafka_lake.executors.json.text import NotJsonError, TooDeepError, parse, refuse_twice
from kafka_lake.executors.json.types import TIMES, kind_of, merged, settled
from kafka_lake.ingest.decode.json.columns import spark_type
from kafka_lake.spark.ddl import ddl, ddl_name

_DIGITS, _IDENTITY = re.compile("[0-9]+"), re.compile("(?=.*[0-9])[0-9A-Fa-f-]{16,}")
_SOME, _MANY = 8, 50
_OF_FEW, _OF_VERY_FEW = 0.5, 0.1


@dataclass(frozen=True)
class Column:
    """A column that a table would have.

    Args:
        name: The field's name.
        type: Its type in Spark's DDL.
        time: ``date``, ``timestamp`` or ``timestamp_ntz`` for text that is one in every object; else empty.
        maps: Paths of maps whose keys were names of fields, in it or the column itself.
    """

    name: str
    type: str
    time: str = ""
    maps: tuple[str, ...] = ()

    @property
    def ddl(self) -> str:
        """Return the column as DDL has it."""
        return f"{ddl_name(self.name)} {self.type}"


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
    given = list(objects)
    seen: Any = ["struct", {}]
    for value in given:
        seen = merged(seen, kind_of(value))
    columns = []
    for name, kind in seen[1].items():
        if (known := settled(kind, False)) is not None:
            maps: list[str] = []
            made = _with_maps(spark_type(known), [value.get(name) for value in given], name, maps)
            columns.append(Column(name, ddl(made), kind if kind in TIMES else "", tuple(maps)))
    return tuple(columns)


def _with_maps(kind: T.DataType, values: Sequence[Any], path: str, maps: list[str]) -> T.DataType:
    """Return a type with maps where the names of fields look like data, whose paths are added to a list."""
    if isinstance(kind, T.ArrayType):
        elements = [element for value in values if isinstance(value, list) for element in value]
        return T.ArrayType(_with_maps(kind.elementType, elements, f"{path}.element", maps))
    if not isinstance(kind, T.StructType):
        return kind
    objects = [value for value in values if isinstance(value, dict) and value]
    if len({type(field.dataType) for field in kind}) == 1 and _are_data(kind.names, objects):
        maps.append(path)
        inner = [value for found in objects for value in found.values()]
        held = spark_type(settled(reduce(merged, map(kind_of, inner)), False))
        return T.MapType(T.StringType(), _with_maps(held, inner, f"{path}.value", maps))
    fields = [
        T.StructField(
            f.name, _with_maps(f.dataType, [found.get(f.name) for found in objects], f"{path}.{f.name}", maps)
        )
        for f in kind
    ]
    return T.StructType(fields)


def _are_data(names: Sequence[str], objects: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether names look like data: an object has few of them, and they are alike, or very many."""
    share = sum(map(len, objects)) / len(objects) / len(names)
    alike = len({_DIGITS.sub("0", name) for name in names}) == 1 and any(map(str.isdigit, names[0]))
    if alike or all(map(_IDENTITY.fullmatch, names)):
        return len(names) >= _SOME and share <= _OF_FEW
    return len(names) >= _MANY and share <= _OF_VERY_FEW
