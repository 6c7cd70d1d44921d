"""Asking the catalog for the tables of a topic. Metadata alone is read, no file of a table's data."""

import time
from collections.abc import Iterable

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from kafka_lake.ingest.topic_state import state_of
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.losses import recorded_losses
from kafka_lake.lake.maintenance.health import compacts
from kafka_lake.lake.maintenance.policy import needs_of
from kafka_lake.lake.positions import TOPIC, ancestors, head_of, row_count, summary_of
from kafka_lake.lake.totals import totals_of
from kafka_lake.metrics.facts import TableFacts, TopicTables


def topic_tables(spec: TopicTable, catalog: LakeCatalog) -> TopicTables:
    """Return what is known of a topic's tables.

    Args:
        spec: The topic's settings.
        catalog: Where they are.

    Raises:
        KafkaLakeError: If the catalog doesn't answer, or a table's position can't be read.
    """
    loaded = {identifier: catalog.table(identifier) for identifier in spec.identifiers}
    table, letters = loaded[spec.identifier], loaded[spec.dead_letter_table]
    history = list(ancestors(table, head_of(table))) if table else []
    return TopicTables(
        position=state_of(spec, table).position if table else None,
        committed_at=_newest(each for each in history if summary_of(each).get(TOPIC) == spec.topic),
        dead_letters=row_count(letters),
        totals=totals_of(table) if table else None,
        losses=tuple(each for each in recorded_losses(table) if each.topic == spec.topic) if table else (),
        tables=tuple(_facts(spec, ".".join(name), each) for name, each in loaded.items() if each is not None),
    )


def _facts(spec: TopicTable, name: str, table: Table) -> TableFacts:
    needs = needs_of(table, spec.maintenance, int(time.time() * 1000))
    history = ancestors(table, head_of(table))
    head = table.current_snapshot()
    return TableFacts(
        name=name,
        health=needs.health,
        overdue=bool(needs.overdue),
        committed_at=_seconds(head) if head else None,
        compacted_at=_newest(each for each in history if compacts(each)),
    )


def _newest(snapshots: Iterable[Snapshot]) -> float | None:
    """Return when the first of some snapshots was committed; None if there is none."""
    return next((_seconds(each) for each in snapshots), None)


def _seconds(snapshot: Snapshot) -> float:
    return snapshot.timestamp_ms / 1000
