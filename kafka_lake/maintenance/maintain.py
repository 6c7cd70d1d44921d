"""Maintain tables of a topic, or a derived table: rows expire, files are compacted, snapshots expire."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from pyiceberg.table import Table

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.text import counted
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.maintenance.policy import Needs, TableHealth, applies_to, limits_of, needs_of, table_health
from kafka_lake.maintenance.procedures import Compacted, compact, expire
from kafka_lake.maintenance.row_retention import OldRows, cutoff_ms, expire_rows, expiry_reason
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.topic_table import TopicTable

T = TypeVar("T")
Identifier = tuple[str, str]


class HasTables(Protocol):
    """Settings of a topic or of a derived table."""

    @property
    def identifier(self) -> Identifier:
        """Return the table that has the position."""

    @property
    def identifiers(self) -> Sequence[Identifier]:
        """Return all tables, the one with the position first."""

    @property
    def maintenance(self) -> Maintenance:
        """Return the policy."""


class HasEngine(Protocol):
    """A catalog, and a Spark session that is opened only when it is needed."""

    @property
    def catalog(self) -> LakeCatalog:
        """Return the catalog."""

    @property
    def spark(self) -> Callable[[], Any]:
        """Return the function that opens the session."""


@dataclass(frozen=True)
class Tables:
    """An engine without a broker."""

    catalog: LakeCatalog
    spark: Callable[[], Any]


@dataclass(frozen=True)
class Due:
    """A table and what it needs.

    Args:
        left_alone: Whether the policy excludes the table, since kafka_lake didn't create it.
    """

    identifier: Identifier
    needs: Needs
    left_alone: bool = False

    @property
    def name(self) -> str:
        """Return the table's full name."""
        return ".".join(self.identifier)


@dataclass(frozen=True)
class Maintained:
    """What was done to a table.

    Args:
        expired: Number of snapshots.
        rows: How many rows expired; None if the settings keep all rows.
        failures: What the steps that failed have raised.
    """

    identifier: Identifier
    before: TableHealth
    after: TableHealth
    compacted: Compacted | None
    expired: int
    seconds: float
    rows: int | None = None
    failures: tuple[str, ...] = ()


def due(spec: HasTables, tables: HasEngine) -> list[Due]:
    """Return what each existing table needs. Only metadata is read."""
    now = int(time.time() * 1000)
    existing = ((name, table) for name in spec.identifiers if (table := tables.catalog.table(name)) is not None)
    return [_due(spec, name, table, now) for name, table in existing]


def _due(spec: HasTables, identifier: Identifier, table: Table, now: int) -> Due:
    policy = spec.maintenance
    needs, left_alone = needs_of(table, policy, now), not applies_to(policy, table)
    if not left_alone and _time_path(spec, identifier):
        needs = replace(needs, rows=expiry_reason(table, policy, now))
    return Due(identifier, needs, left_alone)


def old_rows(spec: HasTables, identifier: Identifier, now_ms: int) -> OldRows | None:
    """Return which rows of a table expire at a time, in milliseconds since 1970; None if none do."""
    before, path = cutoff_ms(spec.maintenance, now_ms), _time_path(spec, identifier)
    if before is None or not path:
        return None
    return OldRows(path, before, needs_position=identifier == spec.identifier)


def _time_path(spec: HasTables, identifier: Identifier) -> tuple[str, ...]:
    """Return the path of Kafka's timestamp in a table's rows; empty if its rows never expire."""
    if not isinstance(spec, TopicTable) or spec.is_keyed:
        return ()
    if identifier == spec.dead_letter_table:
        return ("timestamp",)
    return (METADATA_COLUMN, "timestamp") if identifier == spec.identifier else ()


def maintain(
    spec: HasTables,
    tables: HasEngine,
    everything: bool = False,
    notify: Callable[[Maintained], object] = lambda _: None,
    run_id: str = "",
) -> list[Maintained]:
    """Maintain the tables of a topic, or a derived table, one after the other.

    A table or a step that fails doesn't prevent the next one; the first error is raised at the end.

    Args:
        everything: Whether tables are maintained that need nothing or that the policy excludes.
    """
    done, failures = [], list[Exception]()
    run_id = run_id or f"maintenance-{uuid4().hex[:8]}"
    for table in due(spec, tables):
        if everything or (table.needs.reasons and not table.left_alone):
            done.append(_maintain_table(spec, tables, table, everything, run_id=run_id, failures=failures))
            notify(done[-1])
    if failures:
        raise failures[0]
    return done


def _maintain_table(
    spec: HasTables, tables: HasEngine, table: Due, everything: bool, *, run_id: str, failures: list[Exception]
) -> Maintained:
    started, earlier = time.monotonic(), len(failures)
    identifier, needs, catalog = table.identifier, table.needs, tables.catalog

    def rows() -> int | None:
        old = None if table.left_alone else old_rows(spec, identifier, int(time.time() * 1000))
        if old is None or not (needs.rows or everything):
            return None
        return expire_rows(tables.spark, catalog, identifier, old, run_id=run_id)

    def compacted() -> Compacted | None:
        return compact(tables.spark(), catalog, identifier) if needs.compaction or everything else None

    def snapshots() -> int:
        now = catalog.table(identifier)
        limits = limits_of(now, spec.maintenance, int(time.time() * 1000)) if now is not None else None
        if limits is None or not (needs.expiry or everything):
            return 0
        return expire(tables.spark(), catalog, identifier, limits)

    def result_of(step: Callable[[], T], if_failed: T) -> T:
        try:
            return step()
        except Exception as error:
            failures.append(error)
            return if_failed

    # Rows first: expired rows needn't be compacted.
    results = result_of(rows, None), result_of(compacted, None), result_of(snapshots, 0)
    after = result_of(lambda: catalog.table(identifier), None)
    return Maintained(
        identifier,
        before=needs.health,
        after=needs.health if after is None else table_health(after),
        compacted=results[1],
        expired=results[2],
        seconds=time.monotonic() - started,
        rows=results[0],
        failures=tuple(map(str, failures[earlier:])),
    )


def summary_line(done: Maintained) -> str:
    """Return what was done to a table as one line for users."""
    parts = []
    if done.rows is not None:
        parts.append(f"{counted(done.rows, 'row')} expired")
    if done.compacted is not None:
        parts.append(
            f"{done.before.data_files:,} data and {done.before.delete_files:,} delete files became "
            f"{done.after.data_files:,} and {done.after.delete_files:,}"
        )
    if done.expired:
        parts.append(f"{counted(done.expired, 'snapshot')} expired")
    if done.failures:
        parts.append(f"{counted(len(done.failures), 'step')} failed")
    return f"{'.'.join(done.identifier)}: {', '.join(parts) or 'nothing to do'} ({done.seconds:.0f} s)"
