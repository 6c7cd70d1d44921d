"""What a run of a derived table needs and reports. It needs no broker."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.runtime.commit import Finding
from kafka_lake.runtime.context import Observer, RetryPolicy


@dataclass(frozen=True)
class UpstreamRead:
    """An upstream table as a run read it; ``new`` of its rows were new."""

    snapshot: int
    rows: int
    new: int


@dataclass(frozen=True)
class DeriveReport:
    """What a run did.

    Args:
        snapshot: The published snapshot; None if there was nothing to do.
        full: The reason for a full computation; empty if only new rows were read.
        keys: Number of recomputed keys; None if rows aren't written by key.
        verified: Number of keys or records that the audit recomputed.
        rederived: Number of offsets before the position whose rows were recomputed.
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


@dataclass(frozen=True)
class Engine:
    """A catalog, a Spark session and the callbacks of a run.

    Args:
        spark: Called only when there is work.
        run_id: Part of branch names and snapshot summaries.
    """

    catalog: LakeCatalog
    spark: Callable[[], Any]
    run_id: str
    observer: Observer = field(default_factory=Observer)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    sleep: Callable[[float], None] = time.sleep
