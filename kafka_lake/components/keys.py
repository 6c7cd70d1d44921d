"""The names that a topic's share of the graph has in Dagster."""

import hashlib
import re

import dagster as dg

from kafka_lake.ingest.topic_table import TopicTable


def topic_key(spec: TopicTable) -> dg.AssetKey:
    """Return the asset key of the topic."""
    return dg.AssetKey(["kafka", spec.topic])


def table_key(spec: TopicTable) -> dg.AssetKey:
    """Return the asset key of the table."""
    return _key_of(spec.identifier)


def dead_letter_key(spec: TopicTable) -> dg.AssetKey:
    """Return the asset key of the dead-letter table."""
    return _key_of(spec.dead_letter_table)


def op_name(spec: TopicTable) -> str:
    """Return the name of the op that fills the table, by which a run's config names it."""
    return plain_name(f"{spec.namespace}__{spec.table}")


def pool_name(spec: TopicTable) -> str:
    """Return the pool that one run at a time has for the table."""
    return plain_name(f"table_{spec.namespace}_{spec.table}")


def _key_of(table: tuple[str, str]) -> dg.AssetKey:
    # Of keys Dagster makes names of its own, in which it replaces dashes and dots and nothing else.
    return dg.AssetKey([plain_name(part, "-.") for part in table])


def plain_name(text: str, besides: str = "") -> str:
    """Return a name that Dagster takes for ops, pools and groups: the text itself, if it has letters and digits only.

    Args:
        text: What is to be named; texts that differ get names that differ.
        besides: Signs that may be in it beside ASCII letters, digits and underscores.

    >>> plain_name("pizza__orders"), plain_name("größe.1"), plain_name("a-b.c", "-.")
    ('pizza__orders', 'gr__e_1_5a9e088a', 'a-b.c')
    """
    plain = re.sub(rf"[^A-Za-z0-9_{re.escape(besides)}]", "_", text)
    return text if plain == text else f"{plain}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
