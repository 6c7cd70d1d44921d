"""Which files of an upstream table a run has to read, as PyIceberg tells by their statistics: for people to see."""

from collections.abc import Sequence
from typing import Any

from pyiceberg import expressions

from kafka_lake.derive.bounds import Bound, texts
from kafka_lake.derive.plan import Pinned

# Its classes are pydantic models, whose arguments by place mypy doesn't know.
_make: Any = expressions


def of_news(each: Pinned) -> expressions.BooleanExpression:
    """Return the condition of rows that are new.

    Args:
        each: The upstream table, as it was read.
    """
    found: Any = _make.AlwaysTrue()
    if each.origin and each.changes and (since := each.changes.new_since):
        partition, offset = f"{each.origin}.partition", f"{each.origin}.offset"
        found = _make.GreaterThan(partition, max(since))
        for number, start in since.items():
            is_new = _make.And(_make.EqualTo(partition, number), _make.GreaterThanOrEqual(offset, start))
            found = _make.Or(found, is_new)
    result: expressions.BooleanExpression = found
    return result


def of_keys(bounds: Sequence[Bound]) -> expressions.BooleanExpression:
    """Return the condition of rows that may have one of the keys that are computed.

    Args:
        bounds: Where those rows lie.
    """
    found: Any = _make.AlwaysTrue()
    for column, low, high in texts(bounds):
        found = _make.And(found, _make.GreaterThanOrEqual(column, low), _make.LessThanOrEqual(column, high))
    result: expressions.BooleanExpression = found
    return result
