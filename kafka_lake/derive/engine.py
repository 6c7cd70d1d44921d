"""What a run over derived tables works with. It needs no broker."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafka_lake.derive.report import DeriveReport
from kafka_lake.ingest.observer import Observer, ignore
from kafka_lake.ingest.retry import RetryPolicy
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.spark.commit_slots import CommitSlots


@dataclass(frozen=True)
class Engine:
    """A catalog, a Spark, and who looks on.

    Args:
        catalog: Where the tables are.
        spark: Gives the session; it isn't called before there is work.
        run_id: Goes into branch names and snapshot summaries.
        observer: Is told what happens.
        retry: How often and how patiently errors that may pass are met with another attempt.
        commit_slots: Whose commits wait for each other; None if they needn't.
        clock: Seconds since 1970: how long rows have waited.
        sleep: Pauses between attempts, for that many seconds.
        published: Called after each commit with what it was.
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
