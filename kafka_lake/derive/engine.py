"""What a run over derived tables works with, and what it reports. It needs no broker."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_lake.ingest.finding import Finding
from kafka_lake.ingest.observer import Observer, ignore
from kafka_lake.ingest.retry import RetryPolicy
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.spark.commit_slots import CommitSlots


@dataclass(frozen=True)
class UpstreamRead:
    """An upstream table as a run read it.

    Args:
        snapshot: The snapshot.
        rows: How many rows that has.
        new: How many came since the table was read last; all, if it was read for the first time.
    """

    snapshot: int
    rows: int
    new: int


@dataclass(frozen=True)
class DeriveReport:
    """What a run did.

    Args:
        table: The derived table.
        snapshot: The one that was published; None if there was nothing to do.
        kind: Kind of the commit; empty without one.
        full: Why everything was computed; empty if only what is new was.
        rows: Rows that came.
        keys: Keys that were computed again; None if rows aren't written by key.
        verified: Keys or records that were also computed from all upstream rows, and compared.
        rederived: Offsets whose rows were derived again.
        upstream: The upstream tables, by name.
        findings: Results of the table's rules.
        seconds: How long the run took.
        partitions: Keys of the asset's partitions of which rows came, a thousand at most of each commit.
        outside: Rows that came and are of no partition; None if the asset has none.
    """

    table: str
    snapshot: int | None = None
    kind: str = ""
    full: str = ""
    rows: int = 0
    keys: int | None = None
    verified: int = 0
    rederived: int = 0
    upstream: Mapping[str, UpstreamRead] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    partitions: tuple[str, ...] = ()
    outside: int | None = None


@dataclass(frozen=True)
class Engine:
    """A catalog, a Spark session, and the callbacks of a run.

    Args:
        catalog: Where the tables are.
        spark: Returns the session; called only when there is work.
        run_id: Goes into branch names and snapshot summaries.
        observer: Progress callbacks.
        retry: How temporary errors are retried.
        commit_slots: Limit commits at a time; None for no limit.
        clock: Seconds since 1970.
        sleep: Pauses between attempts, for that many seconds.
        published: Called after each commit with its report.
    """

    catalog: LakeCatalog
    spark: Callable[[], Any]
    run_id: str
    observer: Observer = field(default_factory=Observer)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    commit_slots: CommitSlots | None = None
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    published: Callable[[DeriveReport], None] = ignore
