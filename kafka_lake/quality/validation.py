"""Input and result of evaluating rules; and the tables that foreign keys refer to."""

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


class _Connections(Protocol):
    @property
    def catalog(self) -> LakeCatalog: ...

    @property
    def spark(self) -> Callable[[], Any]: ...


@dataclass(frozen=True)
class ReferencedTable:
    """A table of a foreign key, as of one snapshot.

    Args:
        rows: Lazy, without rows that are marked as deleted.
        count: Upper bound of the number of rows.
    """

    rows: DataFrame
    snapshot: int | None
    count: int

    def keys(self, columns: tuple[str, ...], aliases: Iterable[str]) -> DataFrame:
        """Return the distinct values of some columns, without nulls."""
        exact = {name.lower(): name for name in self.rows.columns}
        aliased = zip(columns, aliases, strict=True)
        keys = self.rows.select(*[F.col(f"`{exact[name.lower()]}`").alias(alias) for name, alias in aliased])
        keys = keys.dropna().distinct()
        return F.broadcast(keys) if self.count <= BROADCAST_ROWS else keys


def referenced_tables(connections: _Connections, rules: Iterable[Rule], subject: str) -> Mapping[str, ReferencedTable]:
    """Return the tables of foreign keys by name; ``subject`` begins error messages."""
    tables: dict[str, ReferencedTable] = {}
    for rule in rules:
        foreign_key = rule.entry.foreign_key
        if foreign_key is None or foreign_key.table in tables:
            continue
        namespace, _, name = foreign_key.table.rpartition(".")
        table = connections.catalog.table((namespace, name))
        if table is None:
            raise ConfigurationError(
                f"{subject}: rules: {rule.name}: there is no table {foreign_key.table}.",
                "Nothing was published. Create that table first, or correct table: of the rule.",
            )
        snapshot = head_of(table)
        version = "" if snapshot is None else f" VERSION AS OF {snapshot}"
        full_name = connections.catalog.spark_name((namespace, name))
        rows = connections.spark().sql(f"SELECT * FROM {full_name}{version}")
        if any(column.name == DELETED and isinstance(column.dataType, T.BooleanType) for column in rows.schema):
            rows = rows.filter(~F.coalesce(F.col(DELETED), F.lit(False)))
        tables[foreign_key.table] = ReferencedTable(rows, snapshot, row_count(table) if snapshot is not None else 0)
    return tables


@dataclass(frozen=True)
class Validation:
    """Rules and the rows that they are evaluated on.

    Args:
        column: The metadata column; without it no row can be refused.
        declared: Whether the settings declare all columns.
        existing: The table's rows, if each `unique` includes them.
        earlier: The table's rows for a `unique` with `within`.
        unchanged: Name of the column that lists the columns without a value; None if all rows are complete.
        samples: Whether messages of custom checks may be shown.
        mask: Regular expressions to redact in these messages.
    """

    topic: str
    rules: tuple[Rule, ...]
    rows: DataFrame
    column: str | None
    declared: bool = False
    existing: DataFrame | None = None
    what: str = "Topic"
    unchanged: str | None = None
    earlier: DataFrame | None = None
    tables: Mapping[str, ReferencedTable] = field(default_factory=dict)
    samples: bool = False
    mask: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """Return the subject of error messages."""
        return f"{self.what} {self.topic}"

    def places(self) -> list[Column]:
        """Return topic id, partition and offset of a row's record; generated ones without a metadata column."""
        if self.column is None:
            place = (F.lit(None).cast("string"), F.lit(0), F.monotonically_increasing_id())
        else:
            place = tuple(F.col(f"`{self.column}`")[name] for name in PLACE)
        return [value.alias(name) for value, name in zip(place, PLACE, strict=True)]

    def first_place(self, place: Row | None) -> tuple[int, int] | None:
        """Return partition and offset of a row; None without a metadata column."""
        return None if place is None or self.column is None else (place["partition"], place["offset"])


@dataclass(frozen=True)
class ValidationResult:
    """Results of rules; and the records that become dead letters, unless a rule fails the commit."""

    results: tuple[RuleResult, ...] = ()
    refused: Refused | None = None

    @property
    def fails(self) -> bool:
        """Return whether a rule fails the commit."""
        return any(result.fails for result in self.results)

    @property
    def refuses_rows(self) -> bool:
        """Return whether rows become dead letters."""
        return not self.fails and any(result.refuses_rows for result in self.results)


def partition_and_offset() -> Column:
    """Return partition and offset as one column."""
    return F.struct("partition", "offset")


def refused_by(places: pa.Table, broken_rules: Callable[[Any], list[Rule]]) -> Refused:
    """Return refused records; ``broken_rules`` translates the codes in the column `BROKEN`."""
    codes = places.column(BROKEN).combine_chunks().dictionary_encode()
    rules = [broken_rules(code) for code in codes.dictionary.to_pylist()]
    counts = {row["values"]: row["counts"] for row in codes.indices.value_counts().to_pylist()}
    by_rule = Counter[str]()
    for number, broken in enumerate(rules):
        by_rule.update({rule.name: counts[number] for rule in broken if rule.error_class})
    records = places.select(PLACE).append_column("reason", codes.indices.cast(pa.int32()))
    return Refused(records, tuple(map(reason_of, rules)), dict(by_rule))
