"""What can't be left out of a table by `except`, and where it has no effect."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from kafka_lake.lake.tables.layout import parse_partition_field, parse_sort_field


def except_problems(settings: Any, declared: Sequence[str] | None) -> Iterator[str]:
    """Give what is wrong with the setting.

    Args:
        settings: A topic's, as its document has them.
        declared: Names of the columns of `schema`; None without it.
    """
    named = tuple(settings.except_columns)
    if not named:
        return
    for setting, columns in _needed(settings).items():
        if found := [name for name in named if name.lower() in {each.lower() for each in columns}]:
            yield f"except: {', '.join(found)} is in {setting}:, which the table needs. Take it out of one of them."
    if settings.transform is not None:
        yield "except: has no effect with transform:, which gives the columns. Leave one of them out."
    if settings.format in ("string", "bytes", "variant"):
        yield f"except: has no effect with format {settings.format}, whose values are one column. Leave it out."
    if declared is not None:
        yield from _declared_problems(settings, named, declared)


def _needed(settings: Any) -> dict[str, Sequence[str]]:
    nulls = settings.ignore_null_updates
    return {
        "key": settings.key,
        "order_by": settings.order_by,
        "key_column": [settings.key_column] if settings.key_format is not None else [],
        "metadata_column": [settings.metadata_column] if settings.metadata_column is not None else [],
        "ignore_null_updates": nulls if isinstance(nulls, list | tuple) else [],
        "partition_by": [parse_partition_field(each)[0] for each in settings.partition_by],
        "sort_by": [parse_sort_field(each)[0] for each in settings.sort_by],
    }


def _declared_problems(settings: Any, named: Sequence[str], declared: Sequence[str]) -> Iterator[str]:
    """Declared columns are the table's; but a change may tell by another one that it deletes."""
    if missing := [name for name in named if name not in declared]:
        yield f"except: {', '.join(missing)} isn't in schema:, so the table has no column for it. Leave it out."
    said = settings.delete_when or ""
    is_used = {name: bool(re.search(rf"\b{re.escape(name)}\b", said, re.IGNORECASE)) for name in named}
    if unused := [name for name in named if name in declared and not is_used[name]]:
        yield f"except: {', '.join(unused)} is in schema:, and delete_when: doesn't need it. Leave it out of both."
