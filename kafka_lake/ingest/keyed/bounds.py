"""Bounds: between which values the keys of a batch lie, and which they are, by which files and rows are skipped."""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.keyed.keys import Keys

_SOURCE = "s"
_FEW = 1_000
"""Iceberg and Spark take longer lists too, but planning a query of them costs more than they save."""
_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType)


@dataclass(frozen=True)
class Bounds:
    """Between which values the keys of a batch lie, by which files of the table are skipped.

    Args:
        found: Expressions of key columns of the changes, with the least and the greatest value as SQL literals.
        listed: All values of each of them, if there are few: rows of other keys are neither sorted nor sent to another
            task then.
    """

    found: tuple[tuple[str, str, str], ...]
    listed: tuple[tuple[str, ...], ...] = ()

    def hold_for(self, alias: str) -> list[str]:
        """Return the conditions that all keys of the batch meet, for a table or a frame of an alias."""
        columns = [f"{alias}.{each.removeprefix(f'{_SOURCE}.')}" for each, _, _ in self.found]
        between = [
            f"{column} BETWEEN {least} AND {greatest}"
            for column, (_, least, greatest) in zip(columns, self.found, strict=True)
        ]
        listed = zip(columns, self.listed, strict=False)
        return [*between, *(f"{column} IN ({', '.join(values)})" for column, values in listed)]


def are_few(changes: int) -> bool:
    """Return whether the keys of so many changes are listed."""
    return changes <= _FEW


def bounds(changes: DataFrame, keys: Keys, *others: Column, few: bool = False) -> tuple[Bounds, Row]:
    """Look at changes once: at the least and the greatest of their keys, and at what else is asked.

    Args:
        few: Whether the keys are listed, as `are_few` says.

    Returns:
        The bounds of keys that have any, and the aggregates.
    """
    expressions = keys.key(_SOURCE)
    named = changes.alias(_SOURCE)
    types = named.select(*[F.expr(each) for each in expressions]).schema
    usable = {each: field.dataType for each, field in zip(expressions, types, strict=True) if _as_text(field.dataType)}
    looked = []
    for number, (each, kind) in enumerate(usable.items()):
        text = _as_text(kind) or ""
        looked += [F.expr(text.format(f"{f}({each})")).alias(f"{f}_{number}") for f in ("min", "max")]
        looked += [F.expr(f"collect_set({text.format(each)})").alias(f"all_{number}")] if few else []
    row = named.agg(*others, *looked).collect()[0]
    found, listed = [], []
    for number, (each, kind) in enumerate(usable.items()):
        if row[f"min_{number}"] is not None:
            found.append((each, _literal(row[f"min_{number}"], kind), _literal(row[f"max_{number}"], kind)))
            listed += [tuple(_literal(value, kind) for value in sorted(row[f"all_{number}"]))] if few else []
    # A plan doesn't always say how many records it reads.
    return Bounds(tuple(found), tuple(listed) if all(map(are_few, map(len, listed))) else ()), row


def _as_text(kind: T.DataType) -> str | None:
    """Return how Spark writes a value as digits: what is read back is that very value, of whatever type it is.

    Sessions are in UTC, so that a time without a zone is that of the same instant.
    """
    if isinstance(kind, T.StringType | T.BinaryType):
        return "hex({})"
    if isinstance(kind, T.DateType):
        return "CAST(unix_date({}) AS STRING)"
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return "CAST(unix_micros(CAST({} AS TIMESTAMP)) AS STRING)"
    return "CAST({} AS STRING)" if isinstance(kind, _NUMBERS) else None


def _literal(text: str, kind: T.DataType) -> str:
    if isinstance(kind, T.BinaryType):
        return f"X'{text}'"
    if isinstance(kind, T.StringType):
        return f"CAST(X'{text}' AS STRING)"
    if isinstance(kind, T.DateType):
        return f"date_from_unix_date({text})"
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return f"CAST(timestamp_micros({text}) AS {kind.simpleString()})"
    return f"CAST('{text}' AS {kind.simpleString()})"
