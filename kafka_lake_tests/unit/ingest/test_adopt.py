"""Where an adopted table resumes is decided without asking anyone; what is uncertain is refused."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from kafka_lake.cli.commands.adopt import source_of, spec_of
from kafka_lake.common.offsets import TopicIdentity, Watermarks
from kafka_lake.errors import AdoptionRefusedError, ConfigurationError, TableError
from kafka_lake.ingest.jobs.adopt import (
    Evidence,
    FromOffsets,
    control_offsets,
    first_uncommitted,
    plan_adoption,
    position_of,
    sinks_of,
    starts,
)
from kafka_lake.ingest.table_state import filled_by
from kafka_lake.kafka.records import Record
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable

NOW = Watermarks(TopicIdentity("c", "i", "orders"), {0: 5, 1: 0}, {0: 20, 1: 10}, {0: 3, 1: 4})


def test_each_partition_resumes_at_its_offset_and_the_topic_is_recorded() -> None:
    found = starts("lake.orders", Evidence("a sink", {0: 7, 1: 10}, "by hand"), NOW)
    assert [(start.partition, start.offset, start.why, start.low, start.end) for start in found] == [
        (0, 7, "by hand", 5, 20),
        (1, 10, "by hand", 0, 10),
    ]
    position = position_of(found, NOW)
    assert (position.identity, dict(position.offsets), dict(position.epochs)) == (
        NOW.identity,
        {0: 7, 1: 10},
        {0: 3, 1: 4},
    )


@pytest.mark.parametrize(
    ("offsets", "problem"),
    [
        ({0: 4, 1: 0}, "partition 0 resumes at offset 4, and the oldest that Kafka has is 5"),
        ({0: 5, 1: 11}, "partition 1 resumes at offset 11, and Kafka's end is 10"),
        ({0: 5}, "has no offset for partition 1"),
        ({0: 5, 1: 0, 2: 0}, "names partition 2 of topic orders, which has the partitions 0, 1"),
    ],
)
def test_an_offset_that_kafka_has_not_is_refused(offsets: dict[int, int], problem: str) -> None:
    with pytest.raises(AdoptionRefusedError, match=problem) as caught:
        starts("lake.orders", Evidence("a sink", offsets, "by hand"), NOW)
    assert "lake.orders" in str(caught.value)
    assert "Nothing was changed" in str(caught.value)


def test_a_partition_of_which_nothing_can_be_in_the_table_begins_at_its_oldest_record() -> None:
    assert [start.offset for start in starts("t", Evidence("c", {1: 3}, "by hand", complete=True), NOW)] == [5, 3]


NAMED = UUID("d010a5e8-021f-4d62-af5b-d049487d4261")


def event(value: bytes | None) -> Record:
    return Record(0, 7, 0, b"task", value, len(value or b""))


@pytest.mark.parametrize(
    ("value", "waits"),
    [
        (b'{"name":"DataWritten"} lake orders', True),
        (b'{"name":"DataWritten"} renamed since ' + NAMED.bytes, True),
        (b'{"name":"DataWritten"} lake customers ' + UUID(int=7).bytes, False),
        (b'{"name":"StartCommit"}', False),
        (b'{"name":"DataComplete"} orders', False),
        (b'{"name":"CommitToTable"} lake orders', False),
        (b'{"name":"CommitComplete"}', False),
        (b'{"name":"CommitTablePayload"}', True),
        (b"", True),
        (None, True),
    ],
)
def test_sink_waits_for_files_and_events_not_understood(value: bytes | None, waits: bool) -> None:
    found = first_uncommitted([event(b'{"name":"StartCommit"}'), event(value)], "orders", NAMED)
    assert (found is not None) is waits


def table(*summaries: Mapping[str, str]) -> Table:
    """Return a table with a snapshot for each summary, the oldest first, each on the one before."""
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=number - 1 or None,
            sequence_number=number,
            timestamp_ms=number,
            manifest_list="m",
            summary=Summary(Operation.APPEND, **summary),
            schema_id=0,
        )
        for number, summary in enumerate(summaries, 1)
    ]
    head = {"main": SimpleNamespace(snapshot_id=len(snapshots))}
    metadata = SimpleNamespace(snapshots=snapshots, refs=head)
    return cast(Table, SimpleNamespace(metadata=metadata, name=lambda: ("lake", "orders")))


def test_a_restarted_coordinator_notes_only_what_it_has_seen_so_all_of_the_history_counts() -> None:
    found = table(
        {"kafka.connect.offsets.my.control.connect-a": '{"0":4,"1":9}'},
        {"kafka.connect.offsets.my.control.connect-a": '{"0":7}'},
        {"total-records": "1"},
    )
    assert control_offsets(found, ["connect-a", "a"]) == ("my.control", "connect-a", {0: 7, 1: 9})
    assert control_offsets(found, ["connect-b", "b"]) is None
    assert sinks_of(found) == ["my.control.connect-a"]


def test_offsets_of_a_sink_that_cannot_be_read_are_an_error() -> None:
    with pytest.raises(TableError, match=r"kafka.connect.offsets.c.connect-a has no offsets"):
        control_offsets(table({"kafka.connect.offsets.c.connect-a": "?"}), ["connect-a"])


def test_who_has_filled_a_table_is_known_from_its_snapshots() -> None:
    query_id = {"spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "1"}
    assert filled_by(table(query_id, {"x": "y"})) == "the Structured Streaming query q"
    assert "the Iceberg sink" in (filled_by(table({"kafka.connect.offsets.c.g": "{}"})) or "")
    assert filled_by(table({"x": "y"})) is None


def connected(found: Table) -> Connections:
    """Return what gives this table, whatever is asked for, and the topic as it is `NOW`."""
    cluster = SimpleNamespace(watermarks_of=lambda _topic: NOW)
    return cast(Connections, SimpleNamespace(cluster=cluster, catalog=SimpleNamespace(table=lambda _name: found)))


def test_a_table_whose_rows_are_replaced_by_key_is_refused() -> None:
    found = table({"total-equality-deletes": "3"})
    cast(Any, found).current_snapshot = lambda: found.metadata.snapshots[-1]
    with pytest.raises(AdoptionRefusedError, match="has equality deletes: its writer replaces rows by key"):
        plan_adoption(TopicTable("orders"), connected(found), FromOffsets("0:7,1:0"))


@pytest.mark.parametrize("given_", [(None, None), ("c", "0:1")])
def test_exactly_one_source_must_be_given(given_: tuple[str | None, ...]) -> None:
    with pytest.raises(ConfigurationError, match="Set exactly one"):
        source_of(*given_)


def test_the_table_must_be_the_topic_s() -> None:
    spec = TopicTable("orders", "shop", "orders")
    assert spec_of([spec], "shop.orders") is spec
    with pytest.raises(ConfigurationError, match=r"names table shop.orders, not lake.orders"):
        spec_of([spec], "lake.orders")
