"""Bounds: between which values the keys of a batch lie, by which files of the table are skipped."""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.keyed.keys import Keys

_SOURCE = "s"
_PRUNABLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DateType, T.TimestampNTZType, T.DecimalType)


@dataclass(frozen=True)
class Bounds:
    """Between which values the keys of a batch lie, by which files of the table are skipped.

    Args:
        found: Expressions of key columns of the changes, with the least and the greatest value as SQL literals.
    """

    found: tuple[tuple[str, str, str], ...]

    def hold_for(self, alias: str) -> list[str]:
        """Return the conditions that all keys of the batch meet, for a table or a frame of an alias."""
        here = f"{_SOURCE}."
        return [
            f"{alias}.{each.removeprefix(here)} BETWEEN {least} AND {greatest}" for each, least, greatest in self.found
        ]


def bounds(changes: DataFrame, keys: Keys, *others: Column) -> tuple[Bounds, Row]:
    """Look at changes once: at the least and the greatest of their keys, and at what else is asked.

    Args:
        changes: One for each key.
        keys: Tell rows apart.
        others: Aggregates, by their aliases.

    Returns:
        The bounds of keys that have any, and the aggregates.
    """
    expressions = keys.key(_SOURCE)
    named = changes.alias(_SOURCE)
    types = named.select(*[F.expr(each) for each in expressions]).schema
    usable = {each: field.dataType for each, field in zip(expressions, types, strict=True) if _as_text(field.dataType)}
    looked = [
        F.expr(f"{(_as_text(kind) or '').format(f'{f}({each})')}").alias(f"{f}_{number}")
        for number, (each, kind) in enumerate(usable.items())
        for f in ("min", "max")
    ]
    row = named.agg(*others, *looked).collect()[0]
    found = [
        (each, _literal(row[f"min_{number}"], kind), _literal(row[f"max_{number}"], kind))
        for number, (each, kind) in enumerate(usable.items())
        if row[f"min_{number}"] is not None
    ]
    return Bounds(tuple(found)), row


def _as_text(kind: T.DataType) -> str | None:
    """Return how Spark writes a value as text without loss, which Python has no value for in every case."""
    if isinstance(kind, T.StringType | T.BinaryType):
        return "hex({})"
    if isinstance(kind, T.TimestampType):
        return "CAST(unix_micros({}) AS STRING)"
    return "CAST({} AS STRING)" if isinstance(kind, _PRUNABLE) else None


def _literal(text: str, kind: T.DataType) -> str:
    if isinstance(kind, T.BinaryType):
        return f"X'{text}'"
    if isinstance(kind, T.StringType):
        return f"CAST(X'{text}' AS STRING)"
    if isinstance(kind, T.TimestampType):
        return f"timestamp_micros({text})"
    return f"CAST('{text}' AS {kind.simpleString()})"
