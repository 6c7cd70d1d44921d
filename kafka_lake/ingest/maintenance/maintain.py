"""Maintain: a topic's tables are compacted and their old snapshots expire, as the topic's settings ask."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.maintenance.tables import Tables
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.maintenance.compact import Compacted, compact
from kafka_lake.lake.maintenance.expire import expire
from kafka_lake.lake.maintenance.health import TableHealth, table_health
from kafka_lake.lake.maintenance.policy import Needs, applies_to, limits_of, needs_of


@dataclass(frozen=True)
class Due:
    """A table of a topic, and what it needs.

    Args:
        identifier: Namespace and name.
        needs: What it needs now.
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
class Maintained:
    """What was done to a table.

    Args:
        identifier: Namespace and name.
        before: How it fared before.
        after: How it fares now.
        compacted: What its compaction did; None if there was none.
        expired: How many snapshots expired.
        seconds: How long all of it took.
    """

    identifier: tuple[str, str]
    before: TableHealth
    after: TableHealth
    compacted: Compacted | None
    expired: int
    seconds: float


def sentence(done: Maintained) -> str:
    """Return what was done to a table, as people read it."""
    parts = []
    if done.compacted is not None:
        parts.append(
            f"{done.before.data_files:,} data and {done.before.delete_files:,} delete files became "
            f"{done.after.data_files:,} and {done.after.delete_files:,}"
        )
    if done.expired:
        parts.append(f"{done.expired:,} snapshots expired")
    return f"{'.'.join(done.identifier)}: {', '.join(parts) or 'nothing to do'} ({done.seconds:.0f} s)"


def due(spec: TopicTable, tables: Tables | Connections) -> list[Due]:
    """Return each table of a topic that there is, and what it needs. Spark isn't touched.

    Raises:
        CatalogError: If the catalog doesn't answer.
    """
    now = int(time.time() * 1000)
    found = ((identifier, tables.catalog.table(identifier)) for identifier in spec.identifiers)
    return [
        Due(identifier, needs_of(table, spec.maintenance, now), not applies_to(spec.maintenance, table))
        for identifier, table in found
        if table is not None
    ]


def maintain(
    spec: TopicTable,
    tables: Tables | Connections,
    everything: bool = False,
    tell: Callable[[Maintained], object] = lambda _: None,
) -> list[Maintained]:
    """Do what a topic's tables need, one table after the other.

    Args:
        spec: The topic's settings.
        tables: Spark is touched only if there is something to do.
        everything: Compact all tables and expire all that may, though none needs it yet, and those that the settings
            leave alone, too.
        tell: Is told of each table when it is done.

    Returns:
        What was done, a table each; those that need nothing are left out.

    Raises:
        TableError: If another writer came in the way. The other tables are maintained, and rows are as they were.
        Exception: Whatever else Spark or the catalog raise, after the other tables.
    """
    done, failures = [], list[Exception]()
    for each in due(spec, tables):
        if each.left_alone and not everything:
            continue
        if each.needs.reasons or everything:
            try:
                done.append(_maintain(spec, tables, each, everything))
            except Exception as error:
                failures.append(error)
            else:
                tell(done[-1])
    if failures:
        raise failures[0]
    return done


def _maintain(spec: TopicTable, tables: Tables | Connections, table: Due, everything: bool) -> Maintained:
    began, policy, catalog = time.monotonic(), spec.maintenance, tables.catalog
    compacted, expired, failure = None, 0, None
    if table.needs.compaction or everything:
        try:
            compacted = compact(tables.spark(), catalog, table.identifier)
        except Exception as error:
            # Files that can't be rewritten are no reason to keep snapshots.
            failure = error
    now = catalog.table(table.identifier)
    limits = limits_of(now, policy, int(time.time() * 1000)) if now is not None else None
    if limits is not None and (table.needs.expiry or everything):
        expired = expire(tables.spark(), catalog, table.identifier, limits)
    if failure is not None:
        raise failure
    now = catalog.table(table.identifier)
    after = table_health(now) if now is not None else table.needs.health
    return Maintained(
        table.identifier,
        before=table.needs.health,
        after=after,
        compacted=compacted,
        expired=expired,
        seconds=time.monotonic() - began,
    )
