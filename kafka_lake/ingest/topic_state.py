"""A table as a topic's run sees it: with this topic's position."""

from pyiceberg.table import Table

from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import TableState, read_state


def state_of(spec: TopicTable, table: Table) -> TableState:
    """Return head and position of a table, by what one load of its metadata says.

    Raises:
        TableError: If a position is there but can't be read.
    """
    return read_state(table, spec.topic, spec.topics)
