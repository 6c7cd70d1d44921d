"""Validates declared columns without an engine, so that a typo is reported when definitions load."""

import re

from kafka_lake.errors import ConfigurationError

_PLAIN = {
    "boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real", "double",
    "date", "timestamp", "timestamp_ltz", "timestamp_ntz", "string", "binary",
}  # fmt: skip
_DECIMAL = {"decimal", "dec", "numeric"}
_SIZED = {"varchar", "char", "character"}
_NESTED = {"array", "map", "struct"}
_TYPES = _PLAIN | _DECIMAL | _SIZED | _NESTED
_LARGEST_PRECISION = 38

_FIELD = re.compile(r"^\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))\s*(?::|\s)\s*(?P<type>\w.*?)\s*$", re.DOTALL)
_TYPE = re.compile(r"^(?P<name>\w+)\s*(?P<rest>.*)$", re.DOTALL)
_NUMBERS = re.compile(r"^\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)\s*(?P<after>.*)$", re.DOTALL)
_AFTER = re.compile(
    r"^(?:with(?:out|\s+local)?\s+time\s+zone)?\s*(?:not\s+null)?\s*(?:comment\s+(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"))?$",
    re.IGNORECASE | re.DOTALL,
)


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


def _unique(match: re.Match[str], names: list[str], what: str) -> str:
    name = match["quoted"].replace("``", "`") if match["quoted"] else match["plain"]
    if name.lower() in (n.lower() for n in names):
        raise ConfigurationError(f"{what} {name!r} is there twice.", "Names that differ in case only clash.")
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
                f"There may be {_LARGEST_PRECISION} digits, and not more after the point than in all.",
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
                    f"{where}: {part.strip()!r} is no field of a struct.", "Write `name: type`, as in `a: int`."
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
