"""Several topics in one table: positions that are carried on, what is refused, and what Dagster is told."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.catalog.history import snapshot_log
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import (
    POSITION,
    TOPIC,
    TableState,
    position_in,
    positions_in,
    positions_summary,
    read_state,
)
from kafka_lake.common.offsets import Loss, Position, TopicIdentity, Watermarks, losses_from_json, losses_to_json
from kafka_lake.config.project import Place, check_documents
from kafka_lake.errors import ConfigurationError, KafkaError, TableError, UnknownTopicError
from kafka_lake.ingest.report import Reached, RunReport
from kafka_lake.ingest.run import each_topic
from kafka_lake.ingest.table_state import with_position
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.ingest.topic_runner import LeftBehindError
from kafka_lake.orchestration.assets import Presentation, build_topic_assets
from kafka_lake.orchestration.check_results import Freshness, _by_table
from kafka_lake.orchestration.keys import TOPIC_TAG, partition_key, partitions_in
from kafka_lake.orchestration.metadata import topics_of
from kafka_lake.orchestration.reporting import Reporter
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake.orchestration.sensors import topics as sensor
from kafka_lake.orchestration.sensors.requests import Pace, Sharing
from kafka_lake.runtime.commit import CheckFailedError, Finding
from kafka_lake.runtime.plan import Plan
from kafka_lake.spec.topic_table import TopicTable, once_each
from kafka_lake_tests.unit.orchestration.test_component import load, refusal

NAMES = ("a", "b", "c")
SHARED = TopicTable("a", "pizza", "both", topics=("a", "b"))


def at(topic: str, offset: int, cluster: str = "c") -> Position:
    return Position(TopicIdentity(cluster, f"id of {topic}", topic), {0: offset})


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.booleans(), st.integers(1, 9))))
def test_no_commit_of_a_topic_loses_or_moves_the_position_of_another(
    commits: list[tuple[str, bool, int]],
) -> None:
    summary: Mapping[str, str] = {}
    expected: dict[str, int] = {}
    for topic, is_alone, count in commits:
        found = positions_in(summary)
        own = position_in(found, topic, () if is_alone else NAMES)
        if own is not None and own.identity.topic != topic:
            # The plan refuses it: the table isn't meant for another topic, and has those of others alone.
            assert is_alone
            assert topic not in expected
            continue
        offset = (own.offsets[0] if own else 0) + count
        assert offset == expected.get(topic, 0) + count
        expected[topic] = offset
        summary = positions_summary(at(topic, offset), found)
        assert {name: position.offsets[0] for name, position in positions_in(summary).items()} == expected
        assert summary[TOPIC] == topic


@pytest.fixture
def append(catalog: LakeCatalog) -> Callable[..., Any]:
    rows = pa.table({"id": [1]})
    catalog.ensure_namespace("pizza")
    table = catalog.pyiceberg.create_table_if_not_exists(SHARED.identifier, rows.schema)

    def appended(own: Position | None, *others: Position) -> Any:
        carried = {other.identity.topic: other for other in others}
        table.append(rows, snapshot_properties=positions_summary(own, carried) if own else {})
        return table.refresh()

    return appended


def test_a_table_is_read_for_a_topic(append: Callable[..., Any]) -> None:
    append(at("b", 3), at("a", 5))
    table = append(None)
    a, b = at("a", 5), at("b", 3)
    assert read_state(table).position is None, "which of them nobody has said"
    assert read_state(table).positions == {"a": a, "b": b}
    for topics in (("a", "b"), ()):
        assert read_state(table, "a", topics).position == a
        assert read_state(table, "a", topics).others == {"b": b}
    begins = read_state(table, "c", ("a", "b", "c"))
    assert (begins.position, begins.others) == (None, {"a": a, "b": b})
    assert read_state(table, "c").position == a, "who isn't meant to share is to be refused"
    table.append(pa.table({"id": [1]}), snapshot_properties={POSITION: "{}"})
    with pytest.raises(TableError, match="has an invalid kafka-lake"):
        read_state(table.refresh())


def test_the_log_of_a_table_tells_whose_commit_it_was(append: Callable[..., Any]) -> None:
    append(at("a", 2))
    append(at("b", 3), at("a", 2))
    table = append(at("a", 5), at("b", 3))
    newest, second, _ = snapshot_log(table)
    assert [(offset.partition, offset.start, offset.end) for offset in newest.offsets] == [(0, 2, 5)]
    assert (newest.note, second.note) == ("Topic a.", "Topic b.")


def test_losses_say_whose_they_are() -> None:
    todo = Plan((), at("a", 5), 0, losses=(Loss(0, 1, 5, "retention"),))
    losses = losses_from_json(losses_to_json(todo.named_losses))
    assert losses == [Loss(0, 1, 5, "retention", topic="a")]
    assert str(losses[0]).startswith("topic a partition 0 lost")


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ("topic: a\ntopics: [a, b]\ntable: both", "a can't be combined with topics:"),
        ("topics: [a, b]", "is missing. Name the table that the topics fill"),
        ("topics: [a, b, a]\ntable: both", "has a twice. Remove one of them"),
        ("topics: ['shop\\..*']\ntable: both", "can't be the name of a topic"),
        ("topics: [a, b]\ntable: {name: both, write: upsert}", "upsert can't be combined with topics:"),
        (
            "topics: [a, b]\ntable: both\nread: {continuous: {trigger: 2s}}",
            "can't be combined with topics: yet. Remove it",
        ),
        (
            "topics: [a, b]\ntables: [{name: xs, where: {field: type, equals: x}}, {name: both}]",
            "can't be combined with topics: yet. Name one table",
        ),
        (
            "topics: [a, b]\ntable: both\ntables_by: {field: type, name: 'x_{value}'}",
            "can't be combined with topics: yet. Name one table",
        ),
        ("topics: [a, b]\ntable: kafka.b", "would be the same asset, kafka/b"),
    ],
)
def test_what_cannot_go_with_several_topics_is_refused_by_name(attributes: str, says: str) -> None:
    assert says in refusal(attributes)


def test_a_document_of_several_topics_is_one_table_below_all_of_them() -> None:
    component, defs = load("topics: [a, b...c]\ntable: shop.both")
    assert component.topic_table() == TopicTable("a", "shop", "both", topics=("a", "b...c"))
    assert component.every_topic == ("a", "b...c")
    resources = {
        "kafka": KafkaResource(),
        "registry": RegistryResource(),
        "catalog": CatalogResource(),
        "spark": SparkResource(spark_config={}, catalog=CatalogResource()),
    }
    whole = dg.Definitions.merge(defs, dg.Definitions(resources=resources))
    graph, topics = whole.resolve_asset_graph(), {dg.AssetKey(["kafka", "a"]), dg.AssetKey(["kafka", "b...c"])}
    table = dg.AssetKey(["shop", "both"])
    assert graph.get(table).parent_keys == topics
    partitions = graph.get(table).partitions_def
    assert isinstance(partitions, dg.DynamicPartitionsDefinition)
    assert partitions.name == "kafka/shop/both/topics"
    specs = topics_of(whole.get_repository_def())
    assert [(spec.topic, spec.identifier, spec.topics) for spec in specs] == [
        (topic, ("shop", "both"), ("a", "b...c")) for topic in ("a", "b...c")
    ]
    assert [spec.topic for spec in once_each(specs)] == ["b...c"]


def test_two_documents_with_a_topic_in_common_are_refused() -> None:
    clusters = [Place(None, Path())]
    first, _ = load("topics: [a, b]\ntable: both")
    second, _ = load("topic: b\ntable: other")
    third, _ = load("topic: c\ntable: both")
    with pytest.raises(ConfigurationError, match="Topic b is in two documents"):
        check_documents(clusters, [first.place, second.place])
    with pytest.raises(ConfigurationError, match=r"one document with topics: \[a, c\]"):
        check_documents(clusters, [first.place, third.place])


@given(st.sampled_from(["a", "a.b", "a...b", "a....b", "a..", "...", "A-1_x"]), st.integers(0, 10_000))
def test_keys_of_partitions_name_one_topic_and_are_taken_by_dagster(topic: str, number: int) -> None:
    spec = TopicTable(topic, table="both", topics=(topic, "a/"))
    key = partition_key(spec, number)
    assert "..." not in key
    assert partitions_in(spec, [key, "other/3", f"x{key}"]) == {number}
    assert partitions_in(TopicTable(topic), [str(number)]) == {number}


def test_the_sensor_asks_for_one_run_of_all_topics(catalog: LakeCatalog, append: Callable[..., Any]) -> None:
    specs = SHARED.each_topic
    now = {name: Watermarks(at(name, 0).identity, {0: 0, 1: 0}, {0: 5, 1: 0}) for name in ("a", "b")}
    append(at("b", 5), at("a", 5))

    with dg.DagsterInstance.ephemeral() as instance:

        def tick() -> Any:
            result = sensor.evaluate(
                dg.build_sensor_context(instance=instance), specs, now, catalog, Pace(5.0), Sharing(3)
            )
            for request in getattr(result, "dynamic_partitions_requests", None) or ():
                instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
            return result

        assert not tick().run_requests
        assert list(instance.get_dynamic_partitions("kafka/pizza/both/topics")) == ["a/0", "a/1", "b/0", "b/1"]
        now["b"] = replace(now["b"], end={0: 7, 1: 0, 2: 1}, low={0: 0, 1: 0, 2: 0})
        (request,) = tick().run_requests
        assert list(request.asset_selection) == [dg.AssetKey(["pizza", "both"])]
        assert request.tags["dagster/asset_partition_range_start"] == "a/0"
        assert request.tags["dagster/asset_partition_range_end"] == "b/2"
        assert request.tags[TOPIC_TAG] == "pizza/both/topics"
        now["a"] = replace(now["a"], end={0: 6, 1: 0})
        (both,) = tick().run_requests
        assert both.run_key != request.run_key
        # One that can't be asked doesn't keep the other waiting; a run in flight is of both.
        unknown: Any = UnknownTopicError("Topic a: no such topic.")
        now["a"] = unknown
        (only,) = tick().run_requests
        assert only.tags["dagster/asset_partition_range_start"] == "b/0"
        instance.add_run(dg.DagsterRun("job", tags=dict(only.tags), status=dg.DagsterRunStatus.STARTED))
        assert isinstance(tick(), dg.SkipReason)


def test_how_fresh_a_table_is_tells_its_slowest_topic() -> None:
    a, b = (replace(topic, max_age="1m") for topic in SHARED.each_topic)
    other = TopicTable("d", max_age="1m")
    (found, alone) = _by_table([Freshness(a, 3, 90.0), Freshness(b, 2, 0.0), Freshness(other, 1, 5.0)])
    assert (found.offsets, found.age, found.is_fresh) == (5, 90.0, False)
    assert alone.offsets == 1


def test_check_that_refuses_two_topics_has_one_result() -> None:
    run: Any = SimpleNamespace(has_partition_key=False, has_partition_key_range=False)
    nothing: Any = None
    errors: dict[str, Exception] = {
        topic: CheckFailedError("Refused.", [Finding("row_count", (f"{topic} lacks a record",), {"rows": 1})])
        for topic in ("a", "b")
    }
    left = LeftBehindError("Table pizza.both: some topics were not read", errors, RunReport("pizza.both", "run"))
    (result,) = Reporter(run, SHARED, nothing).refused(left)
    assert (result.check_name, result.passed) == ("row_count", False)
    assert result.description == "a lacks a record; b lacks a record"


class _Frames:
    """Rows, of which some tell their topic."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics

    def furthest(self, _rows: Any) -> list[dict[str, Any]]:
        return [{"topic": topic, "topic_id": f"id of {topic}", "partition": 0, "last": 6} for topic in self.topics]


def _context(now: Watermarks, *rows: str, **settings: Any) -> Any:
    cluster = SimpleNamespace(watermarks_of=lambda _: now)
    spark = SimpleNamespace(sql=lambda _: None)
    catalog = SimpleNamespace(spark_name=lambda _: "pizza.both")
    return SimpleNamespace(
        spec=replace(SHARED.each_topic[1], **settings),
        connections=SimpleNamespace(cluster=cluster, frames=_Frames(*rows), spark=lambda: spark, catalog=catalog),
        with_retries=lambda function: function(),
        table_name="pizza.both",
        observer=SimpleNamespace(warn=lambda _: None),
    )


def test_brokers_without_topic_ids_are_refused() -> None:
    now = Watermarks(TopicIdentity("c", "", "b"), {0: 0}, {0: 1})
    with pytest.raises(ConfigurationError, match="have no topic ids"):
        TopicEnds(_context(now)).poll()
    assert TopicEnds(_context(now, topics=())).poll() == now


def test_topics_of_two_clusters_are_refused() -> None:
    table: Any = SimpleNamespace()
    state = TableState(table, 1, None, others={"a": at("a", 3, cluster="other")})
    now = Watermarks(at("b", 0).identity, {0: 0}, {0: 1})
    with pytest.raises(TableError, match="topics of a table must be in one cluster"):
        with_position(_context(now), TopicEnds(_context(now)), state)


ORIGIN = pa.struct(
    [("topic", pa.string()), ("topic_id", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
)


def test_topic_begins_once_in_a_table_of_other_topics(catalog: LakeCatalog) -> None:
    catalog.ensure_namespace("pizza")
    table = catalog.pyiceberg.create_table(SHARED.identifier, pa.schema([("_kafka", ORIGIN)]))
    row = pa.table({"_kafka": pa.array([{"topic": "a", "partition": 0, "offset": 4}], ORIGIN)})

    def append(own: Position, *others: Position) -> int:
        table.append(row, snapshot_properties=positions_summary(own, {other.identity.topic: other for other in others}))
        return table.refresh().current_snapshot().snapshot_id  # type: ignore[union-attr]

    def position(*rows: str, **settings: Any) -> Position | None:
        context = _context(Watermarks(at("b", 0).identity, {0: 0}, {0: 9}), *rows, **settings)
        return with_position(context, TopicEnds(context), read_state(table.refresh(), "b", SHARED.topics)).position

    before = append(at("a", 5))
    assert position("a", start="latest") is None
    assert position("a", "b") == at("b", 7), "rows prove it"
    append(at("b", 7), at("a", 5))
    assert position("a") == at("b", 7)
    with table.manage_snapshots() as refs:
        refs.set_current_snapshot(snapshot_id=before)
    with pytest.raises(TableError, match="no snapshot has the position of topic b any more"):
        position("a", start="latest")
    assert position("a", start="earliest") is None


def test_topic_that_fails_does_not_keep_others_from_being_read() -> None:
    chosen = [(replace(SHARED, topic=topic), None) for topic in ("a", "b", "c")]
    errors: dict[str, Exception] = {"a": TableError("Not so."), "b": UnknownTopicError("No such topic.")}
    warned: list[str] = []

    def run(spec: TopicTable, _: object) -> RunReport:
        if spec.topic in errors:
            raise errors[spec.topic]
        now = Watermarks(at(spec.topic, 0).identity, {0: 0}, {0: 1})
        return RunReport("pizza.both", "run", {spec.topic: Reached(now, None)})

    with pytest.raises(LeftBehindError, match=r"Table pizza.both: some topics were not read: a: ") as left:
        each_topic(chosen, "run", run, warned.append)
    assert list(left.value.errors) == ["a"], "nothing is to be read of a topic that isn't there"
    assert list(left.value.report.reached) == ["c"]
    assert [message.partition(":")[0] for message in warned] == ["Topic a was skipped", "Topic b was skipped"]
    errors["a"] = KafkaError("No answer.")
    with pytest.raises(LeftBehindError) as left:
        each_topic(chosen, "run", run, warned.append)
    assert not left.value.report.reached, "the others would wait for the same brokers"
    del errors["a"]
    assert list(each_topic(chosen, "run", run, warned.append).reached) == ["a", "c"]
    with pytest.raises(UnknownTopicError):
        each_topic(chosen[1:2], "run", run, warned.append)


def test_what_is_true_of_a_table_is_told_once() -> None:
    assets = build_topic_assets(SHARED, Presentation("g"))
    keys = [asset.key for asset in assets if isinstance(asset, dg.AssetSpec)]
    assert len(set(keys)) == len(keys)
