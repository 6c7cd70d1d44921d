"""Fresh reads: a table, and the records that Kafka has behind its position, as one relation.

>>> from kafka_lake import fresh
>>> fresh.read("shop.orders").sql("SELECT count(*) FROM this")  # doctest: +SKIP
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kafka_lake.errors import ConfigurationError
from kafka_lake.fresh.table import Fresh, FreshTable
from kafka_lake.fresh.tail import MaxTail
from kafka_lake.routing.by_value import knowing, may_name
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable

__all__ = ["Fresh", "FreshTable", "MaxTail", "find_topic", "open_table", "read", "table_of"]


def read(table: str, max_tail: MaxTail | None = None) -> Fresh:
    """Read a table of the current project with its unread records, once; `open_table` is for more reads.

    Args:
        table: Namespace and name, or the topic's name for its own table.

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


def find_topic(topics: Sequence[TopicTable], name: str) -> TopicTable:
    """Return the settings of the topic that has a table, or whose values may have it.

    Raises:
        ConfigurationError: If there is none.
    """
    namespace, _, table = name.partition(".")
    for topic in topics:
        by = topic.route_by
        if _named(topic, name) or (by is not None and table and may_name(by, (namespace, table))):
            return topic
    known = ", ".join(sorted({".".join(table.identifier) for topic in topics for table in topic.tables})) or "none"
    raise ConfigurationError(f"No topic has a table {name} here; the tables are: {known}.", "Name one of them.")


def table_of(topic: TopicTable, name: str, connections: Connections, max_tail: MaxTail | None = None) -> FreshTable:
    """Return a table of a topic; raises as `FreshTable`, and `ConfigurationError` if no value has such a table."""
    if topic.route_by is not None and (own := connections.catalog.table(topic.identifier)) is not None:
        topic = knowing(topic, own.properties)
    table = _named(topic, name)
    if table is None:
        raise ConfigurationError(
            f"Topic {topic.full_topic}: no value has a table {name} yet.", "`kafka-lake topics` lists the tables."
        )
    return FreshTable(table, connections, topic, max_tail)


def _named(topic: TopicTable, name: str) -> TopicTable | None:
    """Return the table of a topic that a name means; None if there is none."""
    by_name = {".".join(table.identifier): table for table in topic.tables}
    return by_name.get(name) or (topic if name in (topic.topic, topic.full_topic) else None)
