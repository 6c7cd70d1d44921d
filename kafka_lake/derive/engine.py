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
    """An upstream table as a run read it: the snapshot, its rows, and how many of these are new."""

    snapshot: int
    rows: int
    new: int


@dataclass(frozen=True)
class DeriveReport:
    """What a run did.

    Args:
        snapshot: The one that was published; None if there was nothing to do.
        full: Why everything was computed; empty if only what is new was.
        keys: Keys that were computed again; None if rows aren't written by key.
        verified: Keys or records that were also computed from all upstream rows, and compared.
        rederived: Offsets whose rows were derived again.
        findings: Results of the table's rules.
        partitions: Keys of the asset's partitions of which rows came, a thousand at most of each commit.
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


@dataclass(frozen=True)
class Engine:
    """A catalog, a Spark session, and the callbacks of a run.

    Args:
        spark: Returns the session; called only when there is work.
        run_id: Goes into branch names and snapshot summaries.
        commit_slots: Limit commits at a time; None for no limit.
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
