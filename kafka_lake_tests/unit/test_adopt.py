"""Where an adopted table resumes is decided without asking anyone; what is uncertain is refused."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from kafka_lake.cli.adopt import source_of, spec_of
from kafka_lake.common.errors import ConfigurationError, TableError
from kafka_lake.common.offsets import TopicIdentity, Watermarks
from kafka_lake.ingest.adopt.checkpoint import Batch, Checkpoint, checkpoint_evidence
from kafka_lake.ingest.adopt.decide import position_of, starts
from kafka_lake.ingest.adopt.marks import control_offsets, filled_by, sinks_of
from kafka_lake.ingest.adopt.model import AdoptionRefusedError, Evidence
from kafka_lake.ingest.adopt.plan import plan_adoption
from kafka_lake.ingest.adopt.sink import SinkTable, sink_evidence
from kafka_lake.ingest.adopt.sink_events import DataComplete, DataWritten, NotAnEventError, Place, parse_event
from kafka_lake.ingest.adopt.sources import FromCheckpoint, FromOffsets
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.cluster import KafkaCluster

NOW = Watermarks(TopicIdentity("c", "i", "orders"), {0: 5, 1: 0}, {0: 20, 1: 10}, {0: 3, 1: 4})


def test_each_partition_resumes_at_its_offset_and_the_topic_is_recorded() -> None:
    found = starts("lake.orders", Evidence("group g", {0: 7, 1: 10}, {0: "told so"}), NOW)
    assert [(each.partition, each.offset, each.why, each.low, each.end) for each in found] == [
        (0, 7, "told so", 5, 20),
        (1, 10, "group g", 0, 10),
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
        starts("lake.orders", Evidence("group g", offsets), NOW)
    assert "lake.orders" in str(caught.value)
    assert "Nothing was changed" in str(caught.value)


def test_a_partition_of_which_nothing_can_be_in_the_table_begins_at_its_oldest_record() -> None:
    assert [each.offset for each in starts("t", Evidence("c", {1: 3}, complete=True), NOW)] == [5, 3]


UUID_OF_TABLE = "d010a5e8-021f-4d62-af5b-d049487d4261"


def sink(committed: Mapping[int, int]) -> SinkTable:
    return SinkTable(("lake", "orders"), UUID_OF_TABLE, "orders", "connect-orders", committed)


def files(offset: int, table: str = "orders", records: int = 1, task: bytes = b"a", partition: int = 0) -> DataWritten:
    uuid = UUID_OF_TABLE if table == "orders" else None
    return DataWritten(Place(partition, offset, task), ("lake", table), uuid, records)


def reached(offset: int, offsets: Mapping[int, int], task: bytes = b"a", partition: int = 0) -> DataComplete:
    return DataComplete(Place(partition, offset, task), {("orders", p): o for p, o in offsets.items()})


def resumed(
    committed: Mapping[int, int],
    events: Sequence[DataWritten | DataComplete],
    group: Mapping[int, int],
    control_is_whole: bool = True,
) -> dict[int, int]:
    return dict(sink_evidence(sink(committed), "orders", events, group, control_is_whole).offsets)


TWO = [files(1), reached(2, {0: 10, 1: 5}), files(6), reached(7, {0: 20})]


def test_files_that_wait_for_their_commit_are_read_again() -> None:
    assert resumed({0: 8}, TWO, {0: 20, 1: 5}) == {0: 20, 1: 5}
    assert resumed({0: 3}, TWO, {0: 20, 1: 5}) == {0: 10, 1: 5}
    # Nothing of either partition is in the table.
    assert resumed({0: 0}, TWO, {0: 20, 1: 5}) == {}
    assert resumed({}, TWO, {0: 20, 1: 5}) == {}


def test_what_the_control_topic_no_longer_tells_is_refused_where_it_matters() -> None:
    assert resumed({0: 8}, TWO[2:], {0: 20, 1: 5}, control_is_whole=False) == {0: 20, 1: 5}
    with pytest.raises(AdoptionRefusedError, match="partition 0 up to offset 20 are announced and not in the table"):
        resumed({0: 3}, TWO[2:], {0: 20, 1: 5}, control_is_whole=False)


def test_files_of_other_tables_and_without_rows_wait_for_nothing() -> None:
    assert resumed({0: 0}, [files(1, "customers"), reached(2, {0: 10})], {0: 10}) == {0: 10}
    assert resumed({0: 0}, [files(1, records=0), reached(2, {0: 10})], {0: 10}) == {0: 10}


def test_a_table_by_the_same_name_with_another_id_is_another_one() -> None:
    other = DataWritten(Place(0, 1, b"a"), ("lake", "orders"), str(UUID(int=7)), 1)
    assert resumed({0: 0}, [other, reached(2, {0: 10})], {0: 10}) == {0: 10}
    unnamed = DataWritten(Place(0, 1, b"a"), ("lake", "orders"), None, 1)
    assert resumed({0: 0}, [unnamed, reached(2, {0: 10})], {0: 10}) == {}


def test_tasks_are_told_apart_by_their_keys() -> None:
    events = [
        files(1, task=b"a"),
        files(2, task=b"b"),
        reached(3, {0: 10}, task=b"a"),
        reached(4, {1: 5}, task=b"b"),
    ]
    assert resumed({0: 2}, events, {0: 10, 1: 5}) == {0: 10}
    assert resumed({0: 3}, events, {0: 10, 1: 5}) == {0: 10, 1: 5}


def test_a_transaction_that_is_in_the_table_in_part_is_refused() -> None:
    with pytest.raises(AdoptionRefusedError, match="committed a part of the files"):
        resumed({0: 2}, [files(1), files(2), reached(3, {0: 10})], {0: 10})


def test_other_topics_of_the_connector_are_told() -> None:
    events = [files(1), DataComplete(Place(0, 2, b"a"), {("orders", 0): 10, ("customers", 0): 3})]
    found = sink_evidence(sink({0: 3}), "orders", events, {0: 10}, True)
    assert (found.offsets, found.notes) == ({0: 10}, ("The connector also reads customers; this program won't.",))


def test_later_files_in_the_table_than_those_that_wait_are_refused() -> None:
    events = [files(1, partition=1), reached(2, {0: 10}, partition=1), files(1), reached(2, {0: 20})]
    with pytest.raises(AdoptionRefusedError, match="though later ones, up to 20, are in it"):
        resumed({0: 3, 1: 0}, events, {0: 20})


@pytest.mark.parametrize("group", [{0: 19, 1: 5}, {0: 21, 1: 5}])
def test_a_group_that_somebody_has_moved_is_refused(group: dict[int, int]) -> None:
    with pytest.raises(
        AdoptionRefusedError, match="partition 0 up to offset 20, and its consumer group connect-orders"
    ):
        resumed({0: 8}, TWO, group)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=8),
    st.integers(0, 8),
)
def test_no_record_is_lost_and_none_doubled(steps: list[tuple[int, bool]], commits: int) -> None:
    """Of one task: the coordinator has committed a beginning of what was announced."""
    events: list[DataWritten | DataComplete] = []
    at, source, in_table, committed = 0, 0, 0, 0
    for number, (records, has_rows) in enumerate(steps):
        source += records
        if has_rows:
            events.append(files(at))
            at += 1
        events.append(reached(at, {0: source}))
        at += 1
        if number < commits:
            in_table, committed = source, at
    # What follows without rows for this table is no gap.
    for (_, has_rows), end in zip(steps[commits:], _ends(steps)[commits:], strict=False):
        if has_rows:
            break
        in_table = end
    assert resumed({0: committed}, events, {0: source}).get(0, 0) == in_table


def _ends(steps: list[tuple[int, bool]]) -> list[int]:
    return [sum(records for records, _ in steps[: number + 1]) for number in range(len(steps))]


SPEC_OF_EVENT: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "namespace": "org.apache.iceberg.connect.events",
    "fields": [
        {"name": "id", "type": {"type": "fixed", "name": "uuid_fixed", "namespace": "", "size": 16}},
        {"name": "group_id", "type": "string"},
        {
            "name": "payload",
            "type": {
                "type": "record",
                "name": "StartCommit",
                "fields": [{"name": "commit_id", "type": "uuid_fixed"}],
            },
        },
    ],
}


def test_an_event_is_read_by_the_schema_that_it_brings_along() -> None:
    target = io.BytesIO()
    parsable = json.loads(json.dumps(SPEC_OF_EVENT).replace('"namespace": "", ', ""))
    event = {"id": b"i" * 16, "group_id": "connect-orders", "payload": {"commit_id": b"c" * 16}}
    fastavro.schemaless_writer(target, parsable, event)
    schema = json.dumps(SPEC_OF_EVENT).encode()
    value = b"\xc2\x01" + len(schema).to_bytes(2, "big") + schema + target.getvalue()
    assert parse_event(Place(0, 0, b""), value, "connect-orders") is None
    for broken in (None, b"", b"{}", value[:50], value[:-10], b"\xc2\x01\x00\x02{}"):
        with pytest.raises(NotAnEventError):
            parse_event(Place(0, 0, b""), broken, "connect-orders")


def checkpoint(offsets: Mapping[int, Mapping[str, Mapping[int, int]]], commits: Sequence[int]) -> Checkpoint:
    texts = {number: f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(each)}' for number, each in offsets.items()}
    return Checkpoint("/cp", "q", texts, frozenset(commits))


def query(offsets: Mapping[int, Mapping[str, Mapping[int, int]]], commits: Sequence[int], *batches: Batch) -> Evidence:
    return checkpoint_evidence("lake.orders", "orders", checkpoint(offsets, commits), batches)


THREE = {number: {"orders": {0: 10 * number, 1: 5 * number}} for number in (1, 2, 3)}


def batch(epoch: int, query_id: str = "q", operation: str = "append") -> Batch:
    return Batch(query_id, epoch, operation)


def test_the_batch_that_the_table_names_counts_whatever_the_checkpoint_has_finished() -> None:
    assert query(THREE, [1, 2], batch(2), batch(1)).offsets == {0: 20, 1: 10}
    assert query(THREE, [1, 2], batch(3), batch(2)).offsets == {0: 30, 1: 15}
    assert query(THREE, [1, 2, 3], batch(3)).offsets == {0: 30, 1: 15}


def test_without_a_batch_in_the_table_the_last_one_must_be_finished() -> None:
    found = query(THREE, [1, 2, 3])
    assert found.offsets == {0: 30, 1: 15}
    assert "foreachBatch" in found.notes[0]
    with pytest.raises(AdoptionRefusedError, match="batch 3 of the checkpoint /cp has begun and is not finished"):
        query(THREE, [1, 2])


@pytest.mark.parametrize(
    ("offsets", "commits", "batches", "problem"),
    [
        ({}, [], [], "has no batch"),
        (THREE, [1, 2, 3], [batch(9)], "main has batch 9 of the query, and the checkpoint /cp has no offsets of it"),
        (THREE, [1, 2, 3], [batch(2)], "the query has finished batch 3: main was rolled back"),
        (THREE, [1, 2, 3], [batch(3, "other")], "is of query other, and the checkpoint /cp is of query q"),
        (THREE, [1, 2, 3], [batch(3, operation="overwrite")], "of the kind overwrite: the query replaces rows"),
        ({1: {"customers": {0: 1}}}, [1], [], "reads customers"),
    ],
)
def test_a_checkpoint_that_does_not_go_with_the_table_is_refused(
    offsets: Any, commits: list[int], batches: list[Batch], problem: str
) -> None:
    with pytest.raises(AdoptionRefusedError, match=problem):
        query(offsets, commits, *batches)


def test_other_sources_of_a_query_are_told() -> None:
    both = {1: {"orders": {0: 1}, "customers": {0: 2}}}
    assert query(both, [1]).notes[0] == "The query also reads customers; this program won't."
    rate = Checkpoint("/cp", "q", {1: 'v1\n{}\n7\n-\n{"logOffset":3}\n{"orders":{"0":4}}'}, frozenset([1]))
    assert checkpoint_evidence("t", "orders", rate, []).offsets == {0: 4}


@pytest.mark.parametrize(
    ("text", "problem"),
    [("v2\n{}\n{}", "is of version 'v2'"), ('v1\n{}\n{"orders":{"x":1}}', "a source that isn't understood")],
)
def test_a_checkpoint_that_is_not_understood_is_refused(text: str, problem: str) -> None:
    with pytest.raises(AdoptionRefusedError, match=problem):
        checkpoint_evidence("t", "orders", Checkpoint("/cp", "q", {1: text}, frozenset([1])), [])


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
    with pytest.raises(TableError, match=r"kafka.connect.offsets.c.connect-a holds no offsets"):
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


def folder(path: Path) -> FromCheckpoint:
    for name, text in {
        "metadata": '{"id":"q"}',
        "offsets/1": 'v1\n{}\n{"orders":{"0":7,"1":3}}',
        "offsets/.1.crc": "?",
        "offsets/.2.a1b2.tmp": "v1",
        "commits/1": "v1\n{}",
    }.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return FromCheckpoint(f"{path}/")


def filed(*summaries: Mapping[str, str]) -> Table:
    found = table(*summaries)
    cast(Any, found).io = SimpleNamespace(properties={})
    return found


def test_a_checkpoint_is_read_from_its_folder_without_what_spark_has_not_finished(tmp_path: Path) -> None:
    source = folder(tmp_path)
    cluster = cast(KafkaCluster, None)
    assert source.evidence(filed({"x": "y"}), cluster, NOW).offsets == {0: 7, 1: 3}
    (tmp_path / "commits" / "1").unlink()
    with pytest.raises(AdoptionRefusedError, match=r"batch 1 .* is not finished"):
        source.evidence(filed({"x": "y"}), cluster, NOW)
    named = {"spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "1"}
    assert source.evidence(filed(named, {"x": "y"}), cluster, NOW).offsets == {0: 7, 1: 3}


@pytest.mark.parametrize("missing", ["metadata", "offsets"])
def test_a_folder_that_is_no_checkpoint_is_named(missing: str, tmp_path: Path) -> None:
    source = folder(tmp_path)
    (tmp_path / missing).rename(tmp_path / "elsewhere")
    with pytest.raises((ConfigurationError, AdoptionRefusedError), match=str(tmp_path)):
        source.evidence(filed({"x": "y"}), cast(KafkaCluster, None), NOW)


@pytest.mark.parametrize("given_", [(None, None, None, None), ("c", None, "g", None)])
def test_exactly_one_source_must_be_given(given_: tuple[str | None, ...]) -> None:
    with pytest.raises(ConfigurationError, match="Give exactly one"):
        source_of(*given_)


def test_the_table_must_be_the_topic_s() -> None:
    spec = TopicTable("orders", "shop", "orders")
    assert spec_of([spec], "shop.orders") is spec
    with pytest.raises(ConfigurationError, match=r"names table shop.orders, not lake.orders"):
        spec_of([spec], "lake.orders")
