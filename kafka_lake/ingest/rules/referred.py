"""Tables that foreign keys refer to, each as of one snapshot."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.decode.rows import DELETED
from kafka_lake.ingest.rule import Rule
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import head_of, row_count

BROADCAST_ROWS = 500_000
"""A table of so many rows goes to each task as a whole; a larger one is shuffled by the key."""


class Source(Protocol):
    """Where tables are, and what reads them."""

    @property
    def catalog(self) -> LakeCatalog:
        """Return the catalog."""

    @property
    def spark(self) -> Callable[[], Any]:
        """Return what gives the session."""


@dataclass(frozen=True)
class Referred:
    """A table that a foreign key refers to.

    Args:
        rows: Its rows in that snapshot, lazy; those that are only marked as deleted are left out.
        snapshot: The snapshot; None for a table without any.
        count: How many rows it has, at most.
    """

    rows: DataFrame
    snapshot: int | None
    count: int

    def keys(self, columns: tuple[str, ...], aliases: Iterable[str]) -> DataFrame:
        """Return what some of its columns have, each once and without nulls, by other names.

        Raises:
            KeyError: If it lacks one of the columns.
        """
        there = {name.lower(): name for name in self.rows.columns}
        found = [there[name.lower()] for name in columns]
        named = [F.col(f"`{name}`").alias(alias) for name, alias in zip(found, aliases, strict=True)]
        # A join by what is unique has no row twice.
        keys = self.rows.select(*named).dropna().distinct()
        return F.broadcast(keys) if self.count <= BROADCAST_ROWS else keys


def referred(source: Source, rules: Iterable[Rule], subject: str) -> Mapping[str, Referred]:
    """Return the tables that rules refer to, by their names.

    Args:
        rules: Some of them foreign keys.
        subject: Whose rules they are, for errors.

    Raises:
        ConfigurationError: If a table isn't there.
    """
    found: dict[str, Referred] = {}
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
        found[given.table] = Referred(rows, snapshot, row_count(table) if snapshot is not None else 0)
    return found
