"""Fresh reads: a table and its unread records in Kafka, as one relation.

>>> from kafka_lake import fresh
>>> fresh.read("shop.orders").sql("SELECT count(*) FROM this")  # doctest: +SKIP
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kafka_lake.fresh.table import Fresh, FreshTable
from kafka_lake.fresh.tail import MaxTail
from kafka_lake.routing.by_value import find_table, find_topic
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable

__all__ = ["Fresh", "FreshTable", "MaxTail", "open_table", "read", "table_of"]


def read(table: str, max_tail: MaxTail | None = None) -> Fresh:
    """Read a table of the current project with its unread records, once; `open_table` is for more reads.

    Args:
        table: Its name, with or without the namespace, or the topic's name for its own table.

    Raises:
        ConfigurationError: If the project has no such table.
        FreshReadError: If the table has a setting that fresh reads don't support, or is too far behind.
    """
    with open_table(table, max_tail) as fresh_table:
        return fresh_table.read()


@contextmanager
def open_table(table: str, max_tail: MaxTail | None = None) -> Iterator[FreshTable]:
    """Open a table of the current project, to read it again and again; arguments and errors as `read`."""
    from kafka_lake.cli.project import open_connections, topic_tables

    topic = find_topic(topic_tables(), table)
    with (
        open_connections(cluster=topic.cluster) as connections,
        table_of(topic, table, connections, max_tail) as fresh_table,
    ):
        yield fresh_table


def table_of(topic: TopicTable, name: str, connections: Connections, max_tail: MaxTail | None = None) -> FreshTable:
    """Return a table of a topic; raises as `FreshTable` and `find_table`."""
    return FreshTable(find_table(topic, name, connections.catalog), connections, topic, max_tail)
