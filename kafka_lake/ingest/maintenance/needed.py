"""What the tables of a topic, or a derived one, need, by their metadata: nothing is changed, Spark isn't touched."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pyiceberg.table import Table

from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.maintenance.expired import limit_ms, why_expire
from kafka_lake.lake.maintenance.health import dangling_deletes
from kafka_lake.lake.maintenance.old_files import ExpiredRows, OldRows, count_old_rows
from kafka_lake.lake.maintenance.policy import Needs, applies_to, needs_of
from kafka_lake.lake.maintenance.settings import Maintenance

Identifier = tuple[str, str]


class HasTables(Protocol):
    """Settings of tables that are kept fast together: of a topic, or of a derived table."""

    @property
    def identifier(self) -> Identifier:
        """Return namespace and name of the table that has the position."""

    @property
    def identifiers(self) -> Sequence[Identifier]:
        """Return all of the tables."""

    @property
    def maintenance(self) -> Maintenance:
        """Return how they are kept fast."""


@dataclass(frozen=True)
class Tables:
    """A catalog, and a Spark for what must be rewritten.

    Args:
        spark: Returns the session; called only if something is rewritten.
        run_id: Of the run, for what it commits; empty if it has none.
    """

    catalog: LakeCatalog
    spark: Callable[[], Any]
    run_id: str = ""


# Of a dead letter.
_TIMESTAMP = "timestamp"


@dataclass(frozen=True)
class Due:
    """A table of a topic, and what it needs.

    Args:
        left_alone: Whether the settings leave it alone, since kafka_lake has not created it.
    """

    identifier: tuple[str, str]
    needs: Needs
    left_alone: bool = False

    @property
    def name(self) -> str:
        """Return the table's name."""
        return ".".join(self.identifier)


@dataclass(frozen=True)
class Preview:
    """What maintenance would do to a table now, without being asked for more than is needed.

    Args:
        due: The table, and what it needs.
        rows: The rows that would expire; None if none are asked to.
        dangling: Delete files that no data file is left for; None if that can't be told.
    """

    due: Due
    rows: ExpiredRows | None = None
    dangling: int | None = None


def due(spec: HasTables, tables: Tables | Connections) -> list[Due]:
    """Return each table of a topic that there is, and what it needs.

    Raises:
        CatalogError: If the catalog doesn't answer.
    """
    now = int(time.time() * 1000)
    found = ((identifier, tables.catalog.table(identifier)) for identifier in spec.identifiers)
    return [_due(spec, identifier, table, now) for identifier, table in found if table is not None]


def preview(spec: HasTables, tables: Tables | Connections) -> list[Preview]:
    """Return what maintenance would do to each table of a topic. Files of their data are read where it takes that.

    Raises:
        CatalogError: If the catalog doesn't answer.
        TableError: If rows can't be told apart by their age.
    """
    previews, now = [], int(time.time() * 1000)
    for identifier in spec.identifiers:
        table = tables.catalog.table(identifier)
        if table is None:
            continue
        found = _due(spec, identifier, table, now)
        old = None if found.left_alone else old_rows(spec, identifier, now)
        previews.append(
            Preview(
                found,
                rows=count_old_rows(table, old) if old is not None else None,
                dangling=dangling_deletes(table),
            )
        )
    return previews


def old_rows(spec: HasTables, identifier: tuple[str, str], now_ms: int) -> OldRows | None:
    """Return which rows of a topic's table expire; None if none do.

    Args:
        identifier: Namespace and name of one of its tables.
        now_ms: The time, in milliseconds since 1970.
    """
    before, by = limit_ms(spec.maintenance, now_ms), _by(spec, identifier)
    if before is None or by is None:
        return None
    return OldRows(by, before, needs_position=identifier == spec.identifier)


def _by(spec: HasTables, identifier: tuple[str, str]) -> str | None:
    """Return which column tells how old a row of a topic's table is; None if none of its rows expires."""
    if not isinstance(spec, TopicTable):
        return None
    if spec.write != "append" or identifier not in (spec.identifier, spec.dead_letter_table):
        return None
    if identifier == spec.dead_letter_table:
        return _TIMESTAMP
    policy = spec.maintenance
    if policy.by is None and spec.metadata_column is None and policy.keep_rows:
        raise ConfigurationError(
            f"Topic {spec.topic}: row_retention needs to know how old a row is, and without metadata_column: "
            f"table {'.'.join(identifier)} doesn't have Kafka's timestamp.",
            "Name a column that tells a time with row_retention: by, or set metadata_column:.",
        )
    return policy.by or f"{spec.metadata_column}.timestamp"


def _due(spec: HasTables, identifier: tuple[str, str], table: Table, now: int) -> Due:
    policy, by = spec.maintenance, _by(spec, identifier)
    needs = needs_of(table, policy, now)
    left_alone = not applies_to(policy, table)
    if not left_alone:
        rows = why_expire(table, policy, now, by) if by is not None else ""
        needs = replace(needs, rows=rows)
    return Due(identifier, needs, left_alone)
