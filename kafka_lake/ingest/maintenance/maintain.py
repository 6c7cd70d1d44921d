"""Maintain: old rows of a topic's tables expire, files are compacted, old snapshots expire, as the settings ask."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

from kafka_lake.common.printable import counted
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.maintenance.needed import Due, HasTables, Tables, due, old_rows
from kafka_lake.lake.maintenance.compact import Compacted, compact
from kafka_lake.lake.maintenance.expire import expire
from kafka_lake.lake.maintenance.expire_rows import expire_rows
from kafka_lake.lake.maintenance.health import TableHealth, table_health
from kafka_lake.lake.maintenance.manifests import Planning, planning_of, rewrite_manifests
from kafka_lake.lake.maintenance.old_files import ExpiredRows
from kafka_lake.lake.maintenance.policy import limits_of

T = TypeVar("T")


@dataclass(frozen=True)
class Maintained:
    """What was done to a table.

    Args:
        compacted: What its compaction did; None if there was none.
        seconds: How long all of it took.
        rows: The rows that expired; None if none were asked to.
        planning_before: What it took to plan a query before.
    """

    identifier: tuple[str, str]
    before: TableHealth
    after: TableHealth
    compacted: Compacted | None
    expired: int
    seconds: float
    rows: ExpiredRows | None = None
    planning_before: Planning | None = None
    planning_after: Planning | None = None


def sentence(done: Maintained) -> str:
    """Return what was done to a table, as people read it."""
    parts = []
    if done.rows is not None:
        parts.append(f"{counted(done.rows.rows, 'row')} expired")
    if done.compacted is not None:
        parts.append(
            f"{done.before.data_files:,} data and {done.before.delete_files:,} delete files became "
            f"{done.after.data_files:,} and {done.after.delete_files:,}"
        )
    if done.expired:
        parts.append(f"{counted(done.expired, 'snapshot')} expired")
    before, after = done.planning_before, done.planning_after
    if parts and before is not None and after is not None:
        parts.append(f"{before.manifests:,} manifests became {after.manifests:,}")
        if before.seconds is not None and after.seconds is not None:
            parts.append(f"planning a query took {before.seconds:.2f} s and takes {after.seconds:.2f} s")
    return f"{'.'.join(done.identifier)}: {', '.join(parts) or 'nothing to do'} ({done.seconds:.0f} s)"


def maintain(
    spec: HasTables,
    tables: Tables | Connections,
    everything: bool = False,
    tell: Callable[[Maintained], object] = lambda _: None,
) -> list[Maintained]:
    """Do what a topic's tables, or a derived table, need, one table after the other.

    Args:
        spec: The settings of the topic, or of the derived table: of those no rows expire.
        tables: Spark is touched only if there is something to do.
        everything: Compact all tables and expire all that may, though none needs it yet, and those that the settings
            leave alone, too. Of those, no row expires.
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
                done.append(_Work(spec, tables, each, everything).done())
            except Exception as error:
                failures.append(error)
            else:
                tell(done[-1])
    if failures:
        raise failures[0]
    return done


@dataclass(frozen=True)
class _Work:
    """What is to be done to a table; its fields are those of `maintain`."""

    spec: HasTables
    tables: Tables | Connections
    table: Due
    everything: bool

    def done(self) -> Maintained:
        began, failures = time.monotonic(), list[Exception]()
        before = self._planning()

        def tried(do: Callable[[], T], otherwise: T) -> T:
            # What can't be done is no reason to leave the rest undone.
            try:
                return do()
            except Exception as error:
                failures.append(error)
                return otherwise

        # Rows that go needn't be written again.
        rows = tried(self._rows, None)
        compacted = tried(self._compacted, None)
        tried(self._manifests, None)
        expired = tried(self._expired, 0)
        if failures:
            raise failures[0]
        now = self.tables.catalog.table(self.table.identifier)
        return Maintained(
            self.table.identifier,
            before=self.table.needs.health,
            after=table_health(now) if now is not None else self.table.needs.health,
            compacted=compacted,
            expired=expired,
            seconds=time.monotonic() - began,
            rows=rows,
            planning_before=before,
            planning_after=self._planning(),
        )

    @property
    def _run_id(self) -> str:
        return (self.tables.run_id if isinstance(self.tables, Tables) else "") or f"maintenance-{uuid4().hex[:8]}"

    def _planning(self) -> Planning | None:
        table = self.tables.catalog.table(self.table.identifier)
        return planning_of(table) if table is not None else None

    def _rows(self) -> ExpiredRows | None:
        identifier = self.table.identifier
        asked = None if self.table.left_alone else old_rows(self.spec, identifier, int(time.time() * 1000))
        if asked is None or not (self.table.needs.rows or self.everything):
            return None
        return expire_rows(self.tables.spark, self.tables.catalog, identifier, asked, run_id=self._run_id)

    def _compacted(self) -> Compacted | None:
        if not (self.table.needs.compaction or self.everything):
            return None
        own = self.spec.maintenance if self.table.identifier == self.spec.identifier else None
        return compact(self.tables.spark(), self.tables.catalog, self.table.identifier, own)

    def _manifests(self) -> None:
        # Where compaction is switched off, so is this: files stay as they are.
        if self.spec.maintenance.compact_every is not None:
            rewrite_manifests(self.tables.spark, self.tables.catalog, self.table.identifier)

    def _expired(self) -> int:
        table = self.tables.catalog.table(self.table.identifier)
        limits = limits_of(table, self.spec.maintenance, int(time.time() * 1000)) if table is not None else None
        if limits is None or not (self.table.needs.expiry or self.everything):
            return 0
        return expire(self.tables.spark(), self.tables.catalog, self.table.identifier, limits)
