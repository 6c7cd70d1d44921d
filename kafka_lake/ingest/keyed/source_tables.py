"""Which of the source's tables a topic's changes are about: what one of them lacks may be rows of another.

Debezium and Canal have a topic for each table, unless a transform brings several of them together, as the parts of one
that is sharded. A truncate, or the end of a snapshot, is about one of them.
"""

import json
from collections.abc import Collection

from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import TableState, ancestors, summary_of

SOURCES = "kafka-lake.source-tables"
"""In a snapshot's summary: the source's tables that changes were about, two at most, since rows may go by them."""


def tells_sources(spec: TopicTable) -> bool:
    """Return whether rows may go since one of the source's tables lacks them."""
    return spec.snapshot == "replace" or spec.on_truncate == "apply"


def sources_of(spec: TopicTable, state: TableState, told: Collection[str]) -> list[str]:
    """Return which of the source's tables changes have been about, two at most; none if that is of no interest.

    Args:
        spec: The settings. Where no rows go by them, what was known is forgotten.
        state: The table as the plan saw it.
    """
    return sorted({*_remembered(state), *told})[:2] if tells_sources(spec) else []


def _remembered(state: TableState) -> list[str]:
    known = (found[SOURCES] for each in ancestors(state.table, state.head) if SOURCES in (found := summary_of(each)))
    return list(json.loads(next(known, "[]")))
