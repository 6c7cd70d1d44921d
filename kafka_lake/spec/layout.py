"""The entries of ``partition_by`` and ``sort_by``, as text. Pure."""

import re
from typing import Literal

from kafka_lake.errors import ConfigurationError

_QUOTED = r"`(?:[^`]|``)+`"
_NAME = rf"(?P<column>{_QUOTED}(?:\.{_QUOTED})*|[^(),`\s](?:[^(),]*?[^(),\s])??)"
_CALL = re.compile(rf"^\s*(?P<transform>[A-Za-z]+)\s*\(\s*(?:(?P<width>\d+)\s*,\s*)?{_NAME}\s*\)\s*$")
_COLUMN = re.compile(rf"^\s*{_NAME}\s*$")
_SORT = re.compile(rf"^\s*{_NAME}(?:\s+(?P<direction>asc|desc))?\s*$", re.IGNORECASE)
_PLAIN = re.compile(r"^\w[\w.]*$")
_SPELLINGS = {"days": "day", "hours": "hour", "months": "month", "years": "year", "date": "day"}
_WITH_WIDTH = {"bucket", "truncate"}
_KNOWN = {"identity", "year", "month", "day", "hour", "bucket", "truncate"}


def parse_partition_field(text: str) -> tuple[str, str]:
    """Return column and Iceberg transform of one ``partition_by`` entry.

    >>> parse_partition_field("bucket(16, store_id)")
    ('store_id', 'bucket[16]')

    >>> parse_partition_field("day(`sold (UTC)`)")
    ('sold (UTC)', 'day')
    """
    if plain := _COLUMN.match(text):
        return _unquoted(plain["column"]), "identity"
    call = _CALL.match(text)
    written = call["transform"].lower() if call else ""
    name = _SPELLINGS.get(written, written)
    if not call or name not in _KNOWN or (name in _WITH_WIDTH) != bool(call["width"]):
        raise ConfigurationError(
            f"partition_by: {text!r} is not an Iceberg transform.",
            "Write a column, or year(c), month(c), day(c), hour(c), bucket(16, c), truncate(4, c). Write a name with "
            "brackets or commas in backticks.",
        )
    return _unquoted(call["column"]), f"{name}[{call['width']}]" if call["width"] else name


def parse_sort_field(text: str) -> tuple[str, Literal["asc", "desc"]]:
    """Return column and direction of one ``sort_by`` entry.

    >>> parse_sort_field("sold at desc"), parse_sort_field("`sold desc`")
    (('sold at', 'desc'), ('sold desc', 'asc'))
    """
    match = _SORT.match(text)
    if not match:
        raise ConfigurationError(f"sort_by: {text!r} isn't understood.", "Write `column` or `column desc`.")
    descends = (match["direction"] or "").lower() == "desc"
    return _unquoted(match["column"]), "desc" if descends else "asc"


def _unquoted(name: str) -> str:
    parts = re.findall(_QUOTED, name) if name.startswith("`") else []
    return ".".join(part[1:-1].replace("``", "`") for part in parts) or name


def written_name(name: str) -> str:
    """Return a column's name as ``partition_by`` and ``sort_by`` have it: in backticks, unless it is plain.

    >>> written_name("who.id"), written_name("a key"), written_name("tick`ed")
    ('who.id', '`a key`', '`tick``ed`')
    """
    return name if _PLAIN.match(name) else f"`{name.replace('`', '``')}`"
