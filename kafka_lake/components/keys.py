"""The asset keys of a topic's share of the graph."""

import dagster as dg

from kafka_lake.ingest.topic_table import TopicTable


def topic_key(spec: TopicTable) -> dg.AssetKey:
    """Return the asset key of the topic."""
    return dg.AssetKey(["kafka", spec.topic])


def table_key(spec: TopicTable) -> dg.AssetKey:
    """Return the asset key of the table."""
    return dg.AssetKey(list(spec.identifier))


def dead_letter_key(spec: TopicTable) -> dg.AssetKey:
    """Return the asset key of the dead-letter table."""
    return dg.AssetKey(list(spec.dead_letter_table))


def op_name(spec: TopicTable) -> str:
    """Return the name of the op that fills the table, by which a run's config names it."""
    return f"{spec.namespace}__{spec.table}"
