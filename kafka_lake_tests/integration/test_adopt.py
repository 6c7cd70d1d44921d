"""Tables that a real Structured Streaming query wrote are taken over: each record of the topic is there once.

A producer keeps on writing meanwhile. What is in the table is read by PyIceberg. The Iceberg sink of Kafka Connect is
in ``nightly/test_adopt_sink.py``.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tenacity
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition

from kafka_lake.catalog.positions import ADOPTED, ADOPTED_AT, ADOPTED_FROM, POSITION, head_of, summary_of
from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.errors import AdoptionRefusedError, ConfigurationError, TableError
from kafka_lake.ingest.jobs.adopt import Adoption, FromKafkaConnect, FromOffsets, Source, plan_adoption
from kafka_lake.ingest.published import examine
from kafka_lake.ingest.run import adopt, ingest, replay, reset
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.integration.test_maintenance import compact_and_expire, sql  # noqa: F401
from kafka_lake_tests.steady_producer import SteadyProducer, rows_of
from kafka_lake_tests.transactions import await_transactions

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

DDL = "id bigint, name string"
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def made(spec: TopicTable, connections: Connections) -> Any:
    """Make the table as its other writer would."""
    connections.catalog.ensure_namespace(spec.namespace)
    return connections.catalog.pyiceberg.create_table(spec.identifier, COLUMNS)


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def run_adoption(spec: TopicTable, connections: Connections, source: Source) -> Adoption:
    found = plan_adoption(spec, connections, source)
    report = adopt(spec, connections, "adopting", found, source)
    assert [(commit.rows, commit.kind) for commit in report.commits] == [(0, "adopt")]
    return found


def start(spark: Any, options: dict[str, str], topic: str, table: str, checkpoint: Path) -> Any:
    """Start a query as Iceberg's documentation has it, with small batches one after the other."""
    reader = spark.readStream.format("kafka").options(**options).option("subscribe", topic)
    records = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "50").load()
    rows = records.selectExpr(f"from_json(cast(value AS string), '{DDL}') AS row").select("row.*")
    writer = rows.writeStream.outputMode("append").option("checkpointLocation", str(checkpoint))
    return writer.format("iceberg").toTable(table)


def end_of_query(table: Any, checkpoint: Path, topic: str) -> str:
    """Return where the newest batch in the table ends, found as docs/migrate.md says."""
    marks = [summary_of(snapshot).get("spark.sql.streaming.epochId") for snapshot in table.refresh().metadata.snapshots]
    epoch = max(int(mark) for mark in marks if mark is not None)
    ends = json.loads((checkpoint / "offsets" / str(epoch)).read_text().splitlines()[-1])[topic]
    return ",".join(f"{partition}:{offset}" for partition, offset in ends.items())


@pytest.mark.exhaustive
def test_stopped_streaming_query_is_adopted_with_pending_batch(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    spark_resource: Any,
    broker: Any,
    tmp_path: Path,
) -> None:
    topic, checkpoint = new_topic(3), tmp_path / "checkpoint"
    spec = topic.spec(DDL)
    table, options = made(spec, connections()), connections().kafka_options
    with SteadyProducer(broker.bootstrap_servers, topic.name, 2) as producer:
        producer.await_count(50)
        query = start(spark_resource.spark_session, dict(options), topic.name, view(spec).sql_name(), checkpoint)
        try:
            wait_for(lambda: len(table.refresh().metadata.snapshots) >= 3)
        finally:
            query.stop()
        written = rows_of(table)
        assert sum(written.values()) > 0

        with pytest.raises(TableError, match=f"filled by the Structured Streaming query {query.id}"):
            ingest(spec, connections(), "too early")
        assert rows_of(table) == written

        found = run_adoption(spec, connections(), FromOffsets(end_of_query(table, checkpoint, topic.name)))
        assert rows_of(table) == written
        assert sum(partition.offset for partition in found.partitions) == sum(written.values())
        assert view(spec).position() == {partition.partition: partition.offset for partition in found.partitions}
        ingest(spec, connections(), "run-1")
        producer.await_count(len(producer.acknowledged) + 20)
    ingest(spec, connections(), "run-2")
    assert rows_of(table) == Counter(producer.acknowledged)
    assert not [f for f in examine(spec, connections().catalog, connections().cluster) if f.problems]


def filled(spec: TopicTable, topic: Topic, connections: Connections, marks: Mapping[str, str] = {}) -> Any:
    """Make a table with the four records of the topic, which has two partitions."""
    table = made(spec, connections)
    for number in range(4):
        topic.send({"id": number, "name": "n"}, number % 2)
    rows = pa.Table.from_pylist([{"id": number, "name": "n"} for number in range(4)], schema=COLUMNS)
    table.append(rows, snapshot_properties=dict(marks))
    return table


@pytest.mark.exhaustive
def test_records_of_the_other_writer_are_never_read_again(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    sql: Any,  # noqa: F811
) -> None:
    """Their rows don't name them, so they would be there twice: by a replay, a reset, or a rebuilt position."""
    topic = new_topic(2)
    spec = topic.spec(DDL)
    table = filled(spec, topic, connections())
    run_adoption(spec, connections(), FromOffsets("0:2,1:2"))
    topic.send({"id": 4, "name": "n"})
    ingest(spec, connections(), "run-1")
    assert not [f for f in examine(spec, connections().catalog, connections().cluster) if f.problems]
    for refused in (
        lambda: replay(spec, connections(), "replay", ReplayRange()),
        lambda: replay(spec, connections(), "replay", ReplayRange("1", partitions=frozenset([0]))),
        lambda: reset(spec, connections(), "reset", "earliest"),
        lambda: reset(spec, connections(), "reset", "0:1"),
    ):
        with pytest.raises(ConfigurationError, match=r"partition 0 offset [01], taken over at 2"):
            refused()
    replay(spec, connections(), "replay", ReplayRange("0:2,1:2"))
    reset(spec, connections(), "reset", "0:2,1:2")
    ingest(spec, connections(), "run-2")
    everything = Counter((number, "n") for number in range(5))
    assert rows_of(table) == everything

    # Partition 1 has no row of ours, and no snapshot has a position any more.
    compact_and_expire(sql, view(spec), spec.identifier)
    assert view(spec).position() == {}
    ingest(spec, connections(), "run-3")
    assert rows_of(table) == everything
    assert view(spec).position() == {0: 3, 1: 2}


@tenacity.retry(stop=tenacity.stop_after_delay(60), wait=tenacity.wait_fixed(0.2), reraise=True)
def commit_group(topic: Topic, group: str, offsets: dict[int, int]) -> None:
    """The first one on a broker may come before its coordinator; that is told for each partition, not as a failure."""
    reported = [TopicPartition(topic.name, p, o) for p, o in offsets.items()]
    done = topic.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, reported)])[group].result(20)
    assert [partition.error for partition in done.topic_partitions] == [None] * len(reported)


@pytest.mark.exhaustive
def test_adoption_is_one_empty_commit_that_names_its_source(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(DDL)
    table = filled(spec, topic, connections())
    head = head_of(table)
    run_adoption(spec, connections(), FromOffsets("0:2,1:2"))
    snapshot = view(spec).table.current_snapshot()
    assert snapshot is not None
    assert snapshot.parent_snapshot_id == head
    summary = summary_of(snapshot)
    assert (summary[ADOPTED], summary[ADOPTED_FROM]) == ("4", "--from-offsets")
    position = Position.from_json(summary[POSITION])
    described = connections().cluster.watermarks_of(topic.name).identity
    assert position.identity == described
    assert described.topic_id
    assert dict(position.offsets) == {0: 2, 1: 2}
    # The property needs no last records: a log is compared with those of a snapshot.
    assert Position.from_json(view(spec).table.properties[ADOPTED_AT]) == replace(position, last={})
    view(spec).assert_no_branches()
    with pytest.raises(TableError, match="already has a position"):
        plan_adoption(spec, connections(), FromOffsets("0:2,1:2"))
    empty = replace(spec, table=f"{topic.table}_empty")
    made(empty, connections())
    with pytest.raises(TableError, match="has no snapshot, so there is nothing to take over"):
        plan_adoption(empty, connections(), FromOffsets("0:2,1:2"))


@pytest.mark.exhaustive
def test_sink_is_taken_over_after_its_last_commit_only(
    new_topic: NewTopic, connections: NewConnections, view: NewView, broker: Any
) -> None:
    """Events as the sink writes them: their bytes have the payload's name in them, and the table's name or id."""
    topic, control = new_topic(2), new_topic(1)
    spec, group = topic.spec(DDL), f"connect-{topic.name}"
    for payload in ("StartCommit", f"DataWritten {topic.table}", "DataComplete"):
        control.send(payload.encode())
    # The snapshot has what was announced before offset 3 of the control topic.
    filled(spec, topic, connections(), {f"kafka.connect.offsets.{control.name}.{group}": '{"0":3}'})
    source = FromKafkaConnect(topic.name)
    with pytest.raises(TableError, match="was filled by the Iceberg sink of Kafka Connect"):
        ingest(spec, connections(), "not yet adopted")
    with pytest.raises(AdoptionRefusedError, match="has no offset for partition 0, 1"):
        plan_adoption(spec, connections(), source)
    commit_group(topic, group, {0: 2, 1: 2})

    control.send(b"CommitToTable")
    control.send(b"CommitComplete")
    announcing = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": group, "log_level": 0})
    announcing.init_transactions()
    announcing.begin_transaction()
    announcing.produce(control.name, f"DataWritten {topic.table}".encode())
    announcing.flush()
    with pytest.raises(AdoptionRefusedError, match="has an open transaction in partition 0"):
        plan_adoption(spec, connections(), source)
    announcing.commit_transaction()
    await_transactions(broker.bootstrap_servers, {control.name: 1})
    with pytest.raises(AdoptionRefusedError, match=r"has not finished\. The event at offset 5 of partition 0"):
        plan_adoption(spec, connections(), source)

    # The sink's next commit has these files, and its note says so.
    marks = {f"kafka.connect.offsets.{control.name}.{group}": '{"0":7}'}
    view(spec).table.append(COLUMNS.empty_table(), snapshot_properties=marks)
    run_adoption(spec, connections(), source)
    topic.send({"id": 4, "name": "n"})
    ingest(spec, connections(), "run-1")
    assert view(spec).ids() == [0, 1, 2, 3, 4]
    view(spec).assert_no_branches()


@pytest.mark.parametrize(
    ("offsets", "problem"),
    [
        ("0:2", "no offset for partition 1"),
        ("0:2,1:3", "partition 1 resumes at offset 3, and Kafka's end is 2"),
        ("0:2,1:2,7:0", "names partition 7"),
    ],
)
def test_offsets_that_would_lose_or_double_records_are_refused(
    offsets: str, problem: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(DDL)
    filled(spec, topic, connections())
    before = view(spec).fingerprint()
    with pytest.raises(AdoptionRefusedError, match=problem):
        plan_adoption(spec, connections(), FromOffsets(offsets))
    assert view(spec).fingerprint() == before


def test_offsets_that_kafka_has_deleted_are_refused(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(DDL)
    filled(spec, topic, connections())
    for number in range(3):
        topic.send({"id": 10 + number, "name": "n"})
    topic.admin.delete_records([TopicPartition(topic.name, 0, 4)])[TopicPartition(topic.name, 0)].result(20)
    with pytest.raises(
        AdoptionRefusedError, match="partition 0 resumes at offset 2, and the oldest that Kafka has is 4"
    ):
        plan_adoption(spec, connections(), FromOffsets("0:2,1:2"))


def test_connector_that_still_runs_is_refused(new_topic: NewTopic, connections: NewConnections) -> None:
    from confluent_kafka import Consumer

    topic = new_topic(2)
    spec = topic.spec(DDL)
    group = f"connect-{topic.name}"
    filled(spec, topic, connections(), {f"kafka.connect.offsets.{topic.name}.{group}": '{"0":0}'})
    consumer = Consumer(
        {**connections().cluster.properties, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    )
    try:
        consumer.subscribe([topic.name])
        wait_for(lambda: consumer.poll(0.2) is not None, 20)
        with pytest.raises(AdoptionRefusedError, match=f"connector {topic.name} still runs"):
            plan_adoption(spec, connections(), FromKafkaConnect(topic.name))
    finally:
        consumer.close()


@pytest.mark.exhaustive
def test_a_table_that_moves_before_the_commit_is_not_taken_over(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(DDL)
    filled(spec, topic, connections())
    source = FromOffsets("0:2,1:2")
    found = plan_adoption(spec, connections(), source)
    row = {"id": 9, "name": "n"}

    def append(step: str) -> None:
        if step == "audited":
            view(spec).table.append(pa.Table.from_pylist([row], schema=COLUMNS))

    with pytest.raises(AdoptionRefusedError, match="has committed since the preview: main was at snapshot"):
        adopt(spec, connections(), "run-1", found, source, observer=Observer(step_done=append))
    assert view(spec).position() == {}
    view(spec).assert_no_branches()

    # What the first attempt has added, the metadata column, is no obstacle to the second.
    run_adoption(spec, connections(), source)
    ingest(spec, connections(), "run-2")
    assert len(view(spec).rows()) == 5


@pytest.mark.exhaustive
def test_adopted_frozen_table_gains_only_the_metadata_column(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(None, evolution="freeze")
    filled(spec, topic, connections())
    run_adoption(spec, connections(), FromOffsets("0:2,1:2"))
    names = ["id", "name", "_kafka"]
    assert [field.name for field in view(spec).table.schema().fields] == names
    topic.send({"id": 4, "name": "n"})
    ingest(spec, connections(), "run-1")
    assert view(spec).ids() == [0, 1, 2, 3, 4]
    assert [row["_kafka"] is None or row["_kafka"]["offset"] is None for row in view(spec).rows()].count(True) == 4


@pytest.mark.exhaustive
def test_the_command_changes_nothing_without_yes(
    new_topic: NewTopic, connections: NewConnections, view: NewView, command_line: Any
) -> None:
    topic = new_topic(2)
    spec = topic.spec(DDL)
    filled(spec, topic, connections())
    topic.send({"id": 4, "name": "n"})
    name, before = ".".join(spec.identifier), view(spec).fingerprint()
    asked = ["adopt", name, "--topic", topic.name, "--from-offsets", "0:2,1:2"]
    done = command_line([spec], *asked)
    assert done.exit_code == 0
    assert "Nothing was changed. The same command with --yes" in done.output
    assert view(spec).fingerprint() == before

    reported = json.loads(command_line([spec], *asked, "--json").stdout)
    assert [(p["partition"], p["offset"], p["end"]) for p in reported["partitions"]] == [(0, 2, 3), (1, 2, 2)]
    assert (reported["rows"], reported["adopted"]) == (4, False)

    done = command_line([spec], *asked, "--yes")
    assert done.exit_code == 0
    assert "taken over; continues at {0: 2, 1: 2}" in done.output
    ingest(spec, connections(), "run-1")
    assert view(spec).ids() == [0, 1, 2, 3, 4]


def test_adopt_command_refuses_conflicting_options(
    new_topic: NewTopic, connections: NewConnections, view: NewView, command_line: Any
) -> None:
    topic = new_topic(2)
    spec = topic.spec("id bigint, name string not null")
    table = filled(spec, topic, connections())
    name = ".".join(spec.identifier)
    both = command_line(
        [spec], "adopt", name, "--topic", topic.name, "--from-offsets", "0:2", "--from-kafka-connect", "c"
    )
    assert (both.exit_code, "Set exactly one" in both.output) == (1, True)
    other = command_line([spec], "adopt", "it.other", "--topic", topic.name, "--from-offsets", "0:2,1:2")
    assert (other.exit_code, f"names table {name}, not it.other" in " ".join(other.output.split())) == (1, True)
    del table
    assert view(spec).position() == {}


def test_identities_of_other_topics_are_no_obstacle() -> None:
    """Where a topic was recreated, its offsets say nothing about the rows of the old one."""
    from kafka_lake.common.offsets import Watermarks
    from kafka_lake.ingest.plan import refuse_adopted

    old = Position(TopicIdentity("c", "old", "t"), {0: 5})
    now = Watermarks(TopicIdentity("c", "new", "t"), {0: 0}, {0: 9})
    refuse_adopted(old, now, {0: 0})
    with pytest.raises(ConfigurationError, match="partition 0 offset 0, taken over at 5"):
        refuse_adopted(Position(now.identity, {0: 5}), now, {0: 0})
