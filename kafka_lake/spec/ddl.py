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
    names: list[str] = []
    for part in _split(text, setting):
        match = _FIELD.match(part)
        if not match:
            raise ConfigurationError(
                f"{setting}: {part.strip()!r} is no column.", "Write `name type`, as in `order_id bigint not null`."
            )
        _check_type(match["type"], f"{setting}: column {part.strip()!r}", setting)
        names.append(_unique(match, names, f"{setting}: column"))
    return names


def parsed_ddl(text: str) -> dict[str, Any]:
    """Return the columns of a DDL string that `check_ddl` accepts, as Spark writes a schema in JSON.

    >>> parsed_ddl("tags array<int> not null")["fields"][0]["type"]
    {'type': 'array', 'elementType': 'integer', 'containsNull': True}
    """
    return {"type": "struct", "fields": [_parsed_field(part) for part in _split(text, "columns")]}


def _parsed_field(part: str) -> dict[str, Any]:
    match = _FIELD.match(part)
    assert match is not None, "check_ddl has accepted it"
    kind, after = _parsed_type(match["type"])
    comment = _COMMENT.search(after)
    metadata = {"comment": re.sub(r"\\(.)", r"\1", comment[1][1:-1])} if comment else {}
    is_required = re.search(r"\bnot\s+null\b", after[: comment.start()] if comment else after, re.IGNORECASE)
    name = match["quoted"].replace("``", "`") if match["quoted"] else match["plain"]
    return {"name": name, "type": kind, "nullable": not is_required, "metadata": metadata}


def _parsed_type(text: str) -> tuple[Any, str]:
    """Return the type that a text begins with, and what comes after it."""
    match = _TYPE.match(text)
    assert match is not None, "check_ddl has accepted it"
    name, rest = match["name"].lower(), match["rest"]
    if name in _NESTED:
        inner, after = _inside(rest, name, "columns")
        if name == "struct":
            return parsed_ddl(inner) if inner.strip() else {"type": "struct", "fields": []}, after
        kinds = [_parsed_type(part.strip())[0] for part in _split(inner, "columns")]
        if name == "array":
            return {"type": "array", "elementType": kinds[0], "containsNull": True}, after
        return {"type": "map", "keyType": kinds[0], "valueType": kinds[1], "valueContainsNull": True}, after
    numbers = _NUMBERS.match(rest) if name in _DECIMAL | _SIZED else None
    if name in _DECIMAL:
        precision, scale = (numbers[1], numbers[2] or "0") if numbers else ("10", "0")
        return f"decimal({precision},{scale})", numbers["after"] if numbers else rest
    if numbers:
        return f"{'varchar' if name == 'varchar' else 'char'}({numbers[1]})", numbers["after"]
    if name == "timestamp" and re.match(r"without\s+time\s+zone\b", rest, re.IGNORECASE):
        return "timestamp_ntz", rest
    return _PLAIN[name], rest


def _unique(match: re.Match[str], names: list[str], what: str) -> str:
    name = match["quoted"].replace("``", "`") if match["quoted"] else match["plain"]
    if name.lower() in (n.lower() for n in names):
        raise ConfigurationError(f"{what} {name!r} occurs twice.", "Names that differ only in case clash.")
    return name


def _check_type(text: str, where: str, setting: str) -> None:
    """Raise a ConfigurationError unless a text is a type and what may follow it in a column."""
    found = _TYPE.match(text)
    name, rest = (found["name"].lower(), found["rest"]) if found else (text, "")
    if name not in _TYPES:
        raise ConfigurationError(
            f"{where} has unknown type {name!r}.", f"Spark's types are {', '.join(sorted(_TYPES))}."
        )
    after = rest
    if name in _NESTED:
        inner, after = _inside(rest, f"{where}: {name}", setting)
        _check_nested(name, inner, where, setting)
    elif name in _DECIMAL | _SIZED and (numbers := _NUMBERS.match(rest)):
        after = numbers["after"]
        precision, scale = int(numbers[1]), int(numbers[2] or 0)
        if name in _DECIMAL and not 0 <= scale <= precision <= _LARGEST_PRECISION:
            raise ConfigurationError(
                f"{where} has a decimal of {precision} digits, {scale} of them after the point.",
                f"The precision is at most {_LARGEST_PRECISION}, and the scale at most the precision.",
            )
    elif name in _SIZED:
        raise ConfigurationError(f"{where} has {name} without a length.", f"Write {name}(10), or string.")
    if not _AFTER.match(after.strip()):
        raise ConfigurationError(
            f"{where}: {after.strip()!r} isn't understood after {name}.",
            "After the type there may be NOT NULL and COMMENT 'text'; between two columns there is a comma.",
        )


def _check_nested(name: str, inner: str, where: str, setting: str) -> None:
    parts = _split(inner, setting) if inner.strip() else []
    if name == "struct":
        names: list[str] = []
        for part in parts:
            match = _FIELD.match(part)
            if not match:
                raise ConfigurationError(
                    f"{where}: {part.strip()!r} isn't a field of a struct.", "Write `name: type`, as in `a: int`."
                )
            _check_type(match["type"], f"{where}: field {part.strip()!r}", setting)
            names.append(_unique(match, names, f"{where}: field"))
        return
    expected = 1 if name == "array" else 2
    if len(parts) != expected:
        example = "array<string>" if name == "array" else "map<string, int>"
        raise ConfigurationError(f"{where}: {name} has {len(parts)} types in it.", f"Write it as {example}.")
    for part in parts:
        _check_type(part.strip(), f"{where}: {name} of {part.strip()!r}", setting)


def _inside(text: str, where: str, setting: str) -> tuple[str, str]:
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
