"""What a materialization of a topic's table is asked to do."""

from enum import Enum
from zlib import crc32

import dagster as dg
from pydantic import Field

from kafka_lake.ingest.continuous.schedule import Continuous

_REPORT_SECONDS = 20.0


class Mode(Enum):
    """What a materialization does."""

    incremental = "incremental"
    replace = "replace"


class IngestConfig(dg.Config):
    """Run config of a table: how to materialize the chosen partitions."""

    mode: Mode = Field(
        default=Mode.incremental,
        description="incremental: continue where the table ends. replace: read records again that the table has, and "
        "replace their rows by what today's schema and transform give.",
    )
    start: str = Field(
        default="earliest",
        description="For replace: from here on. earliest, an offset, an ISO 8601 time, or by partition as 0:17,1:4.",
    )
    end: str = Field(
        default="latest", description="For replace: up to here, exclusive, and never beyond the table's position."
    )
    keep_missing: bool = Field(
        default=False, description="For replace: keep rows whose records Kafka no longer has, instead of failing."
    )
    catch_up_for: float = Field(
        default=0.0,
        ge=0,
        description="For incremental: continue for at most this many seconds, while records come and no other run "
        "waits in Dagster's queue. With 0 the run ends where the topic ended when it began.",
    )
    poll_every: float = Field(
        default=10.0,
        gt=0,
        description="For catch_up_for: the shortest time between the beginnings of two commits, in seconds.",
    )
    topics: int = Field(
        default=1,
        ge=1,
        description="For catch_up_for: how many topics the run has. They go on together once each has had its turn.",
    )

    def catch_up(self, run_id: str) -> Continuous | None:
        """Return how a run continues after it has done what it was asked for; None if it doesn't."""
        seconds = self.catch_up_for
        if not seconds or self.mode is not Mode.incremental:
            return None
        # Up to a quarter less: else runs that began together would end together, and start together again.
        time_limit = seconds * (1 - crc32(run_id.encode()) / 2**34)
        trigger = min(self.poll_every, time_limit)
        return Continuous(
            trigger=trigger,
            time_limit=time_limit,
            idle=0.0,
            compact_every=None,
            report_every=max(_REPORT_SECONDS, trigger),
        )
