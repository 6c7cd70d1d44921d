"""Columns of a few JSON objects, found in plain Python. A guess for people; what a run infers is up to the run."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import types as T

# What holds a number without losing digits.
_BIGINT = range(-(2**63), 2**63)
_DECIMAL_DIGITS, _DOUBLE_DIGITS = 38, 15
_DEEPEST = 20
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?P<clock>[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(?P<zone>Z|[+-]\d\d:?\d\d)?)?", re.ASCII)
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
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
    """Return a JSON value, its numbers as the types that hold them; None for anything but one strict JSON value."""
    try:
        return json.loads(
            content.decode(),
            parse_int=_whole,
            parse_float=_fraction,
            parse_constant=_refuse,
            object_pairs_hook=_once,
        )
    except (ValueError, RecursionError):
        return None


def columns_of(objects: Iterable[dict[str, Any]]) -> tuple[Column, ...]:
    """Return the columns of objects that `json_value` gave, in the order in which their fields first appear.

    Fields that are always null or empty have none. Fields of mixed types keep their JSON as text.
    """
    seen: T.DataType = T.StructType([])
    for each in objects:
        seen = _merged(seen, _type(each, 0))
    columns = []
    for one in seen.fields if isinstance(seen, T.StructType) else ():
        kind = _settled(one.dataType)
        time = one.dataType.simpleString() if isinstance(one.dataType, _TIMES) else ""
        if kind is not None:
            columns.append(Column(one.name, ddl(kind), time))
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


def _whole(text: str) -> T.DataType:
    if len(text.lstrip("-")) > _DECIMAL_DIGITS:
        return T.DoubleType()
    return T.LongType() if int(text) in _BIGINT else T.DecimalType(_DECIMAL_DIGITS, 0)


def _fraction(text: str) -> T.DataType:
    exact = "e" in text.lower() or len(text.lstrip("-").replace(".", "").lstrip("0")) <= _DOUBLE_DIGITS
    return T.DoubleType() if exact else T.StringType()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is there twice")
    return fields


def _type(value: Any, depth: int) -> T.DataType:
    if isinstance(value, T.DataType):
        return value
    if value is None:
        return T.NullType()
    if isinstance(value, bool):
        return T.BooleanType()
    if isinstance(value, str):
        return _text_type(value)
    if depth == _DEEPEST:
        return T.StringType()
    if isinstance(value, dict):
        return T.StructType([T.StructField(name, _type(each, depth + 1)) for name, each in value.items()])
    element: T.DataType = T.NullType()
    for each in value:
        element = _merged(element, _type(each, depth + 1))
    return T.ArrayType(element)


def _text_type(text: str) -> T.DataType:
    match = _TIME.fullmatch(text)
    try:
        if match is None or not datetime.fromisoformat(text):
            return T.StringType()
    except ValueError:
        return T.StringType()
    if match["clock"] is None:
        return T.DateType()
    return T.TimestampType() if match["zone"] else T.TimestampNTZType()


def _merged(one: T.DataType, other: T.DataType) -> T.DataType:
    """Return the type that holds what either does; fields keep their order, new ones come last."""
    if one == other or isinstance(other, T.NullType):
        return one
    if isinstance(one, T.NullType):
        return other
    if isinstance(one, T.StructType) and isinstance(other, T.StructType):
        kinds = {f.name: f.dataType for f in one.fields}
        for f in other.fields:
            kinds[f.name] = _merged(kinds.get(f.name, T.NullType()), f.dataType)
        return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])
    if isinstance(one, T.ArrayType) and isinstance(other, T.ArrayType):
        return T.ArrayType(_merged(one.elementType, other.elementType))
    for narrow, wide in ((T.LongType, T.DecimalType), (T.LongType, T.DoubleType)):
        if {type(one), type(other)} == {narrow, wide}:
            return one if isinstance(one, wide) else other
    return T.StringType()


def _settled(kind: T.DataType) -> T.DataType | None:
    """Return the type without fields of which nothing is known, times as the text that they are; None for nothing."""
    if isinstance(kind, T.StructType):
        kinds = [(f.name, _settled(f.dataType)) for f in kind.fields]
        kept = [T.StructField(name, known) for name, known in kinds if known is not None]
        return T.StructType(kept) if kept else None
    if isinstance(kind, T.ArrayType):
        element = _settled(kind.elementType)
        return T.ArrayType(element) if element is not None else None
    if isinstance(kind, _TIMES):
        return T.StringType()
    return None if isinstance(kind, T.NullType) else kind
