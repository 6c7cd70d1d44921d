"""The input of a rule evaluation, with the tables of foreign keys; and its result."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import head_of, row_count
from kafka_lake.errors import ConfigurationError
from kafka_lake.formats.rows import DELETED
from kafka_lake.quality.result import Refused, RuleResult, reason_of
from kafka_lake.quality.task.rules import BROKEN, PLACE
from kafka_lake.spec.rule import Rule

BROADCAST_ROWS = 500_000
"""A larger table is shuffled by the key instead of broadcast."""


class Source(Protocol):
    """A catalog and a Spark session."""

    @property
    def catalog(self) -> LakeCatalog:
        """Return the catalog."""

    @property
    def spark(self) -> Callable[[], Any]:
        """Return the function that opens the session."""


@dataclass(frozen=True)
class ReferencedTable:
    """A table of a foreign key, as of one snapshot.

    Args:
        rows: Lazy, without rows that are marked as deleted.
        count: The most rows that it has.
    """

    rows: DataFrame
    snapshot: int | None
    count: int

    def keys(self, columns: tuple[str, ...], aliases: Iterable[str]) -> DataFrame:
        """Return the distinct values of some columns, without nulls, by other names."""
        there = {name.lower(): name for name in self.rows.columns}
        found = [there[name.lower()] for name in columns]
        named = [F.col(f"`{name}`").alias(alias) for name, alias in zip(found, aliases, strict=True)]
        keys = self.rows.select(*named).dropna().distinct()
        return F.broadcast(keys) if self.count <= BROADCAST_ROWS else keys


def referenced_tables(source: Source, rules: Iterable[Rule], subject: str) -> Mapping[str, ReferencedTable]:
    """Return the tables of foreign keys by name."""
    found: dict[str, ReferencedTable] = {}
    for rule in rules:
        given = rule.entry.foreign_key
        if given is None or given.table in found:
            continue
        namespace, _, name = given.table.rpartition(".")
        table = source.catalog.table((namespace, name))
        if table is None:
            raise ConfigurationError(
                f"{subject}: rules: {rule.name}: there is no table {given.table}.",
                "Nothing was published. Create that table first, or correct table: of the rule.",
            )
        snapshot = head_of(table)
        full_name = source.catalog.spark_name((namespace, name))
        of = "" if snapshot is None else f" VERSION AS OF {snapshot}"
        rows = source.spark().sql(f"SELECT * FROM {full_name}{of}")
        if any(field.name == DELETED and isinstance(field.dataType, T.BooleanType) for field in rows.schema):
            rows = rows.filter(~F.coalesce(F.col(DELETED), F.lit(False)))
        found[given.table] = ReferencedTable(rows, snapshot, row_count(table) if snapshot is not None else 0)
    return found


@dataclass(frozen=True)
class Validation:
    """Rules and the rows that they are evaluated on.

    Args:
        topic: Name of the topic, or of what else ``what`` says.
        column: The metadata column; without it no row can be refused.
        declared: Whether the settings declare all columns.
        others: The table's rows, if every `unique` includes them.
        earlier: The table's rows for a `unique` with `within`.
        untold: The column that names the columns without a value in this change; None if rows are complete.
        tables: Tables of foreign keys by name.
        samples: Whether messages of custom checks may be shown.
        mask: Regular expressions to redact in those messages.
    """

    topic: str
    rules: tuple[Rule, ...]
    rows: DataFrame
    column: str | None
    declared: bool = False
    others: DataFrame | None = None
    what: str = "Topic"
    untold: str | None = None
    earlier: DataFrame | None = None
    tables: Mapping[str, ReferencedTable] = field(default_factory=dict)
    samples: bool = False
    mask: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """Return the subject of error messages."""
        return f"{self.what} {self.topic}"


@dataclass(frozen=True)
class ValidationResult:
    """Results of rules; and the records that become dead letters, unless a rule fails the commit."""

    results: tuple[RuleResult, ...] = ()
    refused: Refused | None = None


def places(column: str | None) -> list[Column]:
    """Return the columns of a row's record; without a metadata column, numbers in some order."""
    if column is None:
        told = (F.lit(None).cast("string"), F.lit(0), F.monotonically_increasing_id())
    else:
        told = tuple(F.col(f"`{column}`")[name] for name in PLACE)
    return [each.alias(name) for each, name in zip(told, PLACE, strict=True)]


def where() -> Column:
    """Return partition and offset as one column."""
    return F.struct("partition", "offset")


def first_place(asked: Validation, place: Row | None) -> tuple[int, int] | None:
    """Return partition and offset of a place; None without a metadata column."""
    return None if place is None or asked.column is None else (place["partition"], place["offset"])


def refused_by(found: pa.Table, broken: Callable[[Any], list[Rule]]) -> Refused:
    """Return refused records from a table of places and `BROKEN`, a code that ``broken`` translates into rules."""
    codes = found.column(BROKEN).combine_chunks().dictionary_encode()
    rules = [broken(code) for code in codes.dictionary.to_pylist()]
    counts = {row["values"]: row["counts"] for row in codes.indices.value_counts().to_pylist()}
    by_rule = Counter[str]()
    for n, each in enumerate(rules):
        by_rule.update({rule.name: counts[n] for rule in each if rule.error_class})
    records = found.select(PLACE).append_column("reason", codes.indices.cast(pa.int32()))
    return Refused(records, tuple(map(reason_of, rules)), dict(by_rule))
