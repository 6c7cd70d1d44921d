"""What a run works with: its topic, what it is connected to, who looks on. Frozen, and handed down as one."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decoding import Decoding
from kafka_lake.ingest.observer import Observer
from kafka_lake.ingest.topic_table import TopicTable


@dataclass(frozen=True)
class Context:
    """What a run works with.

    Args:
        spec: The topic and its table.
        connections: Cluster, catalog and Spark; Spark isn't touched if there is nothing to do.
        run_id: Goes into branch names, snapshot summaries and dead letters.
        observer: Is told what happens.
        sleep: Pauses between attempts, for that many seconds; what it raises ends the run.
        decoding: Makes columns, rows and dead letters of the records.
    """

    spec: TopicTable
    connections: Connections
    run_id: str
    observer: Observer = field(default_factory=Observer)
    sleep: Callable[[float], None] = time.sleep
    decoding: Decoding = field(kw_only=True)

    @property
    def table_name(self) -> str:
        """Return the table's name as messages have it."""
        return ".".join(self.spec.identifier)
