"""Checks of a declared schema that need no engine, so that a typo is refused when definitions load."""

import re

from kafka_lake.errors import ConfigurationError

_TYPES = {
    "boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real", "double",
    "date", "timestamp", "timestamp_ltz", "timestamp_ntz", "string", "binary", "decimal", "dec", "numeric",
    "array", "map", "struct", "varchar", "char",
}  # fmt: skip
_COLUMN = re.compile(r"^\s*(?:`(?P<quoted>[^`]+)`|(?P<plain>\w+))\s*:?\s+(?P<type>\w+)\s*(?P<rest>.*?)\s*$", re.DOTALL)


def check_ddl(text: str) -> list[str]:
    """Return the names of a DDL string's top-level columns.

    Args:
        text: As in ``order_id bigint not null, meats array<string>``. Nested types are left to Spark.

    Raises:
        ConfigurationError: If it is no column list, a type is unknown, or a column is there twice.

    >>> check_ddl("order_id bigint not null, price decimal(10, 2), tags array<struct<a: int, b: int>>")
    ['order_id', 'price', 'tags']
    """
    names: list[str] = []
    for part in _split(text):
        match = _COLUMN.match(part)
        if not match:
            raise ConfigurationError(
                f"schema: {part.strip()!r} is no column.", "Write `name type`, as in `order_id bigint not null`."
            )
        if match["type"].lower() not in _TYPES:
            raise ConfigurationError(
                f"schema: column {part.strip()!r} has unknown type {match['type']!r}.",
                f"Spark's types are {', '.join(sorted(_TYPES))}.",
            )
        name = match["quoted"] or match["plain"]
        if name.lower() in (n.lower() for n in names):
            raise ConfigurationError(
                f"schema: column {name!r} is there twice.", "Names that differ in case only clash."
            )
        names.append(name)
    return names


def _split(text: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    if depth:
        raise ConfigurationError(f"schema: brackets don't match in {text!r}.", "Close every < and (.")
    return [*parts, current]
