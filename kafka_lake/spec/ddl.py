"""Validates and parses declared columns without an engine, so that a typo is reported when definitions load."""

import re
from typing import Any

from kafka_lake.errors import ConfigurationError

_PLAIN = {
    "boolean": "boolean",
    **dict.fromkeys(("byte", "tinyint"), "byte"),
    **dict.fromkeys(("short", "smallint"), "short"),
    **dict.fromkeys(("int", "integer"), "integer"),
    **dict.fromkeys(("long", "bigint"), "long"),
    **dict.fromkeys(("float", "real"), "float"),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), "timestamp"),
    **{name: name for name in ("double", "date", "timestamp_ntz", "string", "binary")},
}
"""Names of types in DDL, and in Spark's JSON."""
_DECIMAL = {"decimal", "dec", "numeric"}
_SIZED = {"varchar", "char", "character"}
_NESTED = {"array", "map", "struct"}
_TYPES = _PLAIN.keys() | _DECIMAL | _SIZED | _NESTED
_LARGEST_PRECISION = 38

_FIELD = re.compile(r"^\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))\s*(?::|\s)\s*(?P<type>\w.*?)\s*$", re.DOTALL)
_TYPE = re.compile(r"^(?P<name>\w+)\s*(?P<rest>.*)$", re.DOTALL)
_NUMBERS = re.compile(r"^\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)\s*(?P<after>.*)$", re.DOTALL)
_AFTER = re.compile(
    r"^(?:with(?:out|\s+local)?\s+time\s+zone)?\s*(?:not\s+null)?\s*(?:comment\s+(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"))?$",
    re.IGNORECASE | re.DOTALL,
)

_COMMENT = re.compile(r"\bcomment\s+('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\s*$", re.IGNORECASE | re.DOTALL)


def check_ddl(text: str, setting: str = "columns") -> list[str]:
    """Return the names of a DDL string's top-level columns.

    >>> check_ddl("order_id bigint not null, price decimal(10, 2), tags array<struct<a: int, b: int>>")
    ['order_id', 'price', 'tags']
    """
    return [field["name"] for field in parsed_ddl(text, setting)["fields"]]


def parsed_ddl(text: str, setting: str = "columns") -> dict[str, Any]:
    """Return the columns of a DDL string, as Spark writes a schema in JSON.

    >>> parsed_ddl("tags array<int> not null")["fields"][0]["type"]
    {'type': 'array', 'elementType': 'integer', 'containsNull': True}
    """
    return _struct(text, f"{setting}: column", setting)


def _struct(text: str, where: str, setting: str) -> dict[str, Any]:
    fields: list[dict[str, Any]] = []
    for part in _split(text, setting):
        match = _FIELD.match(part)
        if not match:
            raise ConfigurationError(
                f"{where} {part.strip()!r} has no type.", "Write `name type`, as in `order_id bigint not null`."
            )
        kind, after = _type(match["type"], f"{where} {part.strip()!r}", setting)
        comment = _COMMENT.search(after)
        metadata = {"comment": re.sub(r"\\(.)", r"\1", comment[1][1:-1])} if comment else {}
        is_required = re.search(r"\bnot\s+null\b", after[: comment.start()] if comment else after, re.IGNORECASE)
        name = match["quoted"].replace("``", "`") if match["quoted"] else match["plain"]
        if name.lower() in (field["name"].lower() for field in fields):
            raise ConfigurationError(f"{where} {name!r} occurs twice.", "Names that differ only in case clash.")
        fields.append({"name": name, "type": kind, "nullable": not is_required, "metadata": metadata})
    return {"type": "struct", "fields": fields}


def _type(text: str, where: str, setting: str) -> tuple[Any, str]:
    """Return the type that a text begins with, and what follows it in a column."""
    match = _TYPE.match(text)
    name, after = (match["name"].lower(), match["rest"]) if match else (text, "")
    if name not in _TYPES:
        raise ConfigurationError(
            f"{where} has unknown type {name!r}.", f"Spark's types are {', '.join(sorted(_TYPES))}."
        )
    kind: Any
    if name in _NESTED:
        inner, after = _inside(after, f"{where}: {name}")
        kind = _nested(name, inner, where, setting)
    elif name in _DECIMAL | _SIZED:
        numbers = _NUMBERS.match(after)
        after = numbers["after"] if numbers else after
        kind = _with_numbers(name, [int(number or 0) for number in numbers.groups()[:2]] if numbers else None, where)
    elif name == "timestamp" and re.match(r"without\s+time\s+zone\b", after, re.IGNORECASE):
        kind = "timestamp_ntz"
    else:
        kind = _PLAIN[name]
    if not _AFTER.match(after.strip()):
        raise ConfigurationError(
            f"{where}: {after.strip()!r} isn't understood after {name}.",
            "After the type, write NOT NULL, COMMENT 'text', or a comma before the next column.",
        )
    return kind, after


def _with_numbers(name: str, numbers: list[int] | None, where: str) -> str:
    if name in _DECIMAL:
        precision, scale = numbers or (10, 0)
        if not scale <= precision <= _LARGEST_PRECISION:
            raise ConfigurationError(
                f"{where} has a decimal of {precision} digits, {scale} of them after the point.",
                f"The precision is at most {_LARGEST_PRECISION}, and the scale at most the precision.",
            )
        return f"decimal({precision},{scale})"
    if not numbers:
        raise ConfigurationError(f"{where} has {name} without a length.", f"Write {name}(10), or string.")
    return f"{'varchar' if name == 'varchar' else 'char'}({numbers[0]})"


def _nested(name: str, inner: str, where: str, setting: str) -> dict[str, Any]:
    if name == "struct":
        return _struct(inner, f"{where}: field", setting) if inner.strip() else {"type": "struct", "fields": []}
    parts = [part.strip() for part in _split(inner, setting)] if inner.strip() else []
    if len(parts) != (1 if name == "array" else 2):
        example = "array<string>" if name == "array" else "map<string, int>"
        raise ConfigurationError(f"{where}: {name} has {len(parts)} types in it.", f"Write it as {example}.")
    kinds = [_type(part, f"{where}: {name} of {part!r}", setting)[0] for part in parts]
    if name == "array":
        return {"type": "array", "elementType": kinds[0], "containsNull": True}
    return {"type": "map", "keyType": kinds[0], "valueType": kinds[1], "valueContainsNull": True}


def _inside(text: str, where: str) -> tuple[str, str]:
    """Return what is between the angle brackets that a text begins with, and what comes after them."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if index == 0 and depth == 0:
            break
        if depth == 0:
            return text[1:index], text[index + 1 :]
    raise ConfigurationError(
        f"{where} has no types in brackets.", "Write array<string>, map<string, int>, struct<a: int>."
    )


def _split(text: str, setting: str) -> list[str]:
    """Return the parts between the commas that are in no brackets and no quotes."""
    parts, depth, current, quote = [], 0, "", ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "`'\"":
            quote = char
        else:
            depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0 and not quote:
            parts.append(current)
            current = ""
        else:
            current += char
    if depth:
        raise ConfigurationError(f"{setting}: brackets don't match in {text!r}.", "Close every < and (.")
    return [*parts, current]
