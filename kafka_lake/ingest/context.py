"""What a run works with: its topic, what it is connected to, who looks on. Frozen, and handed down as one."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kafka_lake.ingest.causes import is_transient
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decoding import Decoding
from kafka_lake.ingest.effort import Effort
from kafka_lake.ingest.observer import Observer
from kafka_lake.ingest.retry import call
from kafka_lake.ingest.topic_table import TopicTable

T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """What a run works with.

    Args:
        spec: The topic and its table.
        connections: Cluster, catalog and Spark; Spark isn't touched if there is nothing to do.
        run_id: Goes into branch names, snapshot summaries and dead letters.
        sleep: Pauses between attempts, for that many seconds; what it raises ends the run.
        decoding: Makes columns, rows and dead letters of the records.
        effort: What the next commit has taken so far.
        begins: Where the table begins if it has no position, by partition; what it lacks is where the settings say.
    """

    spec: TopicTable
    connections: Connections
    run_id: str
    observer: Observer = field(default_factory=Observer)
    sleep: Callable[[float], None] = time.sleep
    decoding: Decoding = field(kw_only=True)
    effort: Effort = field(default_factory=Effort)
    begins: Mapping[int, int] = field(default_factory=dict)

    def with_retries(self, function: Callable[[], T], passes: Callable[[BaseException], bool] = is_transient) -> T:
        """Call a function, and again after errors that may be gone by then; `retry.call` says more.

        Args:
            function: Must be safe to call again after any error that passes.
            passes: Tells of an error whether it may be gone by then.
        """
        connections, what = self.connections, f"Topic {self.spec.topic}"
        return call(connections.retry, self.observer.warn, what, function, sleep=self.sleep, passes=passes)

    @property
    def table_name(self) -> str:
        """Return the table's name as messages have it."""
        return ".".join(self.spec.identifier)
