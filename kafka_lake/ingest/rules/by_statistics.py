"""Rules that the statistics of data files answer: where no row breaks one, none of them has to be read. Pure."""

from collections.abc import Sequence
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, IntegerType, LongType, NestedField, PrimitiveType

from kafka_lake.ingest.rule import Rule
from kafka_lake.ingest.rules.result import RuleResult

BY_STATISTICS = ("not_null", "range")
"""Kinds of rules that statistics may answer."""

_WHOLE, _FLOATS = (IntegerType, LongType), (FloatType, DoubleType)


def kept_by_statistics(rule: Rule, schema: Schema, files: Sequence[DataFile]) -> RuleResult | None:
    """Return what a rule finds of the rows of some files, if their statistics show that no row breaks it.

    Args:
        rule: The rule; `not_null`, and a `range` of numbers, may be answered.
        schema: Of the files.
        files: With their statistics, as far as they have any.

    Returns:
        None if only the rows can tell.
    """
    if rule.kind not in BY_STATISTICS:
        return None
    fields = [field for field in schema.fields if field.name == rule.columns[0]]
    if len(fields) != 1 or not isinstance(fields[0].field_type, PrimitiveType):
        return None
    nulls = 0
    for file in files:
        found = (file.null_value_counts or {}).get(fields[0].field_id)
        if found is None:
            return None
        if rule.kind == "not_null" and found:
            return None
        if rule.kind == "range" and not _within(rule, fields[0], file, found):
            return None
        nulls += found
    rows = sum(file.record_count for file in files)
    return RuleResult(rule, rows, 0, 0 if rule.kind == "not_null" else nulls)


def _within(rule: Rule, field: NestedField, file: DataFile, nulls: int) -> bool:
    """Return whether all of a file's values are certainly in the rule's range."""
    kind, given = field.field_type, rule.entry.range
    assert given is not None, "it is a range"
    assert isinstance(kind, PrimitiveType), "the caller has looked"
    if not isinstance(kind, (*_WHOLE, *_FLOATS)) or isinstance(given.min, str) or isinstance(given.max, str):
        return False
    if nulls == file.record_count:
        return True
    # NaN, which is greater than all numbers to Spark, is in no bound.
    if isinstance(kind, _FLOATS) and (file.nan_value_counts or {}).get(field.field_id) != 0:
        return False
    low, high = ((each or {}).get(field.field_id) for each in (file.lower_bounds, file.upper_bounds))
    if low is None or high is None:
        return False
    # As they are: a float that is made of a long above 2**53 is another number.
    least: Any = from_bytes(kind, low)
    greatest: Any = from_bytes(kind, high)
    return (given.min is None or given.min <= least) and (given.max is None or greatest <= given.max)
