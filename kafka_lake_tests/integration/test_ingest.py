"""One run on a real broker and a real Spark: what was produced is in the table, and what is not fit for it is not."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_lake.errors import AuditFailedError, ConfigurationError, UnknownTopicError
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.commit import CheckFailedError
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.transactions import await_transactions
from kafka_lake_tests.written_by import by

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


MORE_THAN_ONE = (b'{"id": 1} {"id": 2}', b'{"id": 1},{"id": 2}', b'{"id": 1}}')


def no_spark() -> Any:
    raise AssertionError("Spark was touched")


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


@pytest.mark.every_pair
def test_every_record_once_with_its_values_and_origin(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(3)
    an_hour_ago = int(time.time() * 1000) - 3_600_123
    for number in range(7):
        topic.send(
            {"id": number, "name": f"ü{number}", "at": "2026-03-29T02:30:00.125+01:00", "tags": ["a", str(number)],
             "price": 1.25, "unknown": True},
            partition=number % 3,
            key=f"k{number}".encode() if number else None,
            headers=[("h", b"\x00\xff"), ("h", f"{number}".encode()), ("empty", None)] if number else (),
            timestamp_ms=an_hour_ago + number,
        )  # fmt: skip
    spec = topic.spec("id bigint not null, name string, at timestamp, tags array<string>, price decimal(10,2)")
    report = ingest(spec, connections(), "run-1")

    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    found = {(r["_kafka"]["partition"], r["_kafka"]["offset"]): r for r in see.rows()}
    for number, sent in enumerate(topic.ledger):
        row = found[sent.place]
        origin = row.pop("_kafka")
        assert {**row, "price": str(row["price"])} == {
            "id": number,
            "name": f"ü{number}",
            "at": datetime(2026, 3, 29, 1, 30, 0, 125_000, tzinfo=UTC),
            "tags": ["a", str(number)],
            "price": "1.25",
        }
        assert origin["topic"] == topic.name
        assert origin["key"] == sent.key
        assert [(h["key"], h["value"]) for h in origin["headers"] or ()] == list(sent.headers)
        assert origin["timestamp"] == moment(sent.timestamp_ms)
        assert origin["timestamp"].utcoffset() == timedelta(0)
        assert origin["timestamp_type"] == "CreateTime"
    assert report.total("records") == report.total("rows") == 7
    assert {p.partition: (p.start, p.end, p.rows, p.lag) for p in report.partitions()} == {
        0: (0, 3, 3, 0),
        1: (0, 2, 2, 0),
        2: (0, 2, 2, 0),
    }
    assert all(f.passed for f in report.findings())
    see.assert_no_branches()


def test_a_run_without_news_changes_nothing_and_needs_no_spark(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send_ids(range(3))
    spec = topic.spec()
    ingest(spec, connections(), "run-1")
    before = view(spec).fingerprint()
    report = ingest(spec, replace(connections(), spark=no_spark), "run-2")
    assert report.commits == []
    assert {p.partition: (p.start, p.end, p.lag) for p in report.partitions()} == {0: (3, 3, 0)}
    assert view(spec).fingerprint() == before

    topic.send_ids(range(3, 5))
    report = ingest(spec, connections(), "run-3")
    assert report.total("records") == 2
    assert view(spec).ids() == [0, 1, 2, 3, 4]
    view(spec).assert_exactly_once(topic.ledger)


def test_an_empty_topic_needs_neither_table_nor_spark(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    spec = new_topic(2).spec()
    report = ingest(spec, replace(connections(), spark=no_spark), "run-1")
    assert report.commits == []
    assert connections().catalog.table(spec.identifier) is None


def test_record_that_fits_no_row_is_dead_letter_with_bytes(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    wrong: dict[str, list[bytes]] = {
        "not_json": [b"no json", b"\xff\xfe\x00", b"", b"[1]", b'{"id": 1', b"7", *MORE_THAN_ONE],
        "wrong_type": [b'{"id": "seven"}', b'{"id": {"a": 1}}', b'{"id": 1, "n": 99999999999}'],
        "null_in_required_column": [b'{"id": null}', b"{}", b'{"n": 3}'],
    }
    expected = {}
    for error_class, values in wrong.items():
        for value in values:
            sent = topic.send(value, partition=1, key=b"\x00k", headers=[("trace", b"\x01\x02")])
            expected[sent.place] = (error_class, sent)
    topic.send({"id": 5, "n": None}, partition=0)
    topic.send({"id": 6}, partition=0)
    topic.send(None, partition=0, key=b"gone")
    topic.send(None, partition=1, key=b"gone")
    spec = topic.spec("id bigint not null, n int")
    report = ingest(spec, connections(), "run-dead")

    see = view(spec)
    assert [(r["id"], r["n"]) for r in sorted(see.rows(), key=lambda r: r["id"])] == [(5, None), (6, None)]
    letters = {(r["partition"], r["offset"]): r for r in see.dead_letters()}
    assert {place: letter["error_class"] for place, letter in letters.items()} == {
        place: error_class for place, (error_class, _) in expected.items()
    }
    for place, (_, sent) in expected.items():
        letter = letters[place]
        assert (letter["topic"], letter["key"], letter["value"]) == (topic.name, sent.key, sent.value)
        assert [(h["key"], h["value"]) for h in letter["headers"]] == list(sent.headers)
        assert letter["timestamp"] == moment(sent.timestamp_ms)
        assert letter["run_id"] == "run-dead"
        assert letter["error_message"]
    see.assert_exactly_once(topic.ledger)
    assert (report.total("records"), report.total("rows")) == (19, 2)
    assert (report.total("dead_letters"), report.total("tombstones")) == (15, 2)
    see.assert_no_branches()


def test_batch_without_rows_still_moves_the_position(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send(None, key=b"k")
    topic.send(b"junk")
    spec = topic.spec()
    report = ingest(spec, connections(), "run-1")
    assert (report.total("rows"), report.total("dead_letters"), report.total("tombstones")) == (0, 1, 1)
    view(spec).assert_exactly_once(topic.ledger)
    assert ingest(spec, replace(connections(), spark=no_spark), "run-2").commits == []


def test_inferred_columns_grow_with_the_records(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: Any
) -> None:
    topic = new_topic()
    topic.send({"id": 1, "shop": {"city": "Rom"}, "lines": [{"sku": "a"}], "always_null": None})
    topic.send({"id": 2})
    spec = topic.spec(None)
    ingest(spec, connections(), "run-1")
    see = view(spec)
    assert [f.name for f in see.table.schema().fields] == ["id", "shop", "lines", "_kafka"]

    topic.send({"id": 3, "shop": {"city": "Bari", "zip": 70121}, "lines": [{"sku": "b", "n": 2}], "total": 1.5})
    report = ingest(spec, connections(), "run-2")
    # By Spark: PyIceberg 0.12 reads a null list of an older file as an empty one once its element has a new field.
    table = spark_resource.spark_session.table(f"lake.{spec.namespace}.{spec.table}").drop("_kafka")
    rows = {r["id"]: r.asDict(recursive=True) for r in table.collect()}
    assert rows == {
        1: {"id": 1, "shop": {"city": "Rom", "zip": None}, "lines": [{"sku": "a", "n": None}], "total": None},
        2: {"id": 2, "shop": None, "lines": None, "total": None},
        3: {"id": 3, "shop": {"city": "Bari", "zip": 70121}, "lines": [{"sku": "b", "n": 2}], "total": 1.5},
    }
    see.assert_exactly_once(topic.ledger)
    see.assert_no_branches()
    evolution = next(f for f in report.findings() if f.check == "schema_evolution")
    assert evolution.passed
    assert set(evolution.facts) == {"lines.element.n", "shop.zip", "total"}
    # What was staged before the new fields were known is not left lying about.
    assert len(data_files_in_metadata(see)) == 2
    assert len(see.table.metadata.snapshots) == 3


def data_files_in_metadata(see: View) -> list[str]:
    return [task.file.file_path for task in see.table.scan().plan_files()]


def test_columns_may_be_added_but_not_retyped(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic()
    topic.send({"id": 1, "n": 1})
    ingest(topic.spec("id bigint not null, n int"), connections(), "run-1")
    topic.send({"id": 2, "n": 3_000_000_000, "extra": "x"})
    spec = topic.spec("id bigint, n bigint, extra string")
    ingest(spec, connections(), "run-2")
    rows = [(r["id"], r["n"], r["extra"]) for r in sorted(view(spec).rows(), key=lambda r: r["id"])]
    assert rows == [(1, 1, None), (2, 3_000_000_000, "x")]

    topic.send({"id": 3, "n": 4})
    before = view(spec).fingerprint()
    with pytest.raises(AuditFailedError, match=r"column n: type changed \(long → string\)"):
        ingest(topic.spec("id bigint, n string, extra string"), connections(), "run-3")
    assert view(spec).fingerprint() == before


def test_nested_fields_are_matched_by_name_and_not_by_position(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: Any
) -> None:
    topic = new_topic()
    old = "id int, shop struct<city: string, zip: string>, lines array<struct<a: string, b: string>>"
    new = "lines array<struct<b: string, c: int, a: string>>, shop struct<zip: string, street: string, city: string>, "
    new += "id int"
    record = {"shop": {"city": "Rom", "zip": "00100", "street": "s"}, "lines": [{"a": "1", "b": "2", "c": 3}]}
    topic.send({"id": 1, **record})
    ingest(topic.spec(old), connections(), "run-1")
    topic.send({"id": 2, **record})
    topic.send({"id": 3})
    spec = topic.spec(new)
    ingest(spec, connections(), "run-2")
    table = spark_resource.spark_session.table(f"lake.{spec.namespace}.{spec.table}").drop("_kafka")
    rows = {r["id"]: r.asDict(recursive=True) for r in table.collect()}
    assert rows[1]["shop"] == {"city": "Rom", "zip": "00100", "street": None}
    assert rows[2] == {"id": 2, **record}
    assert rows[3] == {"id": 3, "shop": None, "lines": None}


@pytest.mark.in_contract
def test_the_table_is_laid_out_as_asked(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic()
    for number in range(4):
        topic.send({"id": number, "at": f"2026-01-0{1 + number % 2}T12:00:00Z", "store": number})
    spec = topic.spec(
        "id bigint, at timestamp, store int",
        partition_by=("day(at)", "bucket(4, store)"),
        sort_by=("id desc", "store"),
        table_properties={"write.parquet.compression-codec": "gzip", "custom": "yes"},
    )
    ingest(spec, connections(), "run-1")
    table = view(spec).table
    names = {f.field_id: f.name for f in table.schema().fields}
    assert [(names[f.source_id], str(f.transform)) for f in table.spec().fields] == [
        ("at", "day"),
        ("store", "bucket[4]"),
    ]
    assert [(names[f.source_id], f.direction.name) for f in table.sort_order().fields] == [
        ("id", "DESC"),
        ("store", "ASC"),
    ]
    assert table.properties["write.parquet.compression-codec"] == "gzip"
    assert table.properties["custom"] == "yes"
    assert "write.parquet.compression-level" not in table.properties
    days = [task.file.partition[0] for task in table.scan().plan_files()]
    assert set(days) == {20454, 20455}
    view(spec).assert_exactly_once(topic.ledger)


def test_files_are_sorted(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic()
    topic.send_ids([3, 1, 4, 1, 5, 9, 2, 6])
    spec = topic.spec(sort_by=("id desc",))
    ingest(spec, connections(), "run-1")
    assert [r["id"] for r in view(spec).rows()] == [9, 6, 5, 4, 3, 2, 1, 1]


def test_a_partition_or_sort_column_that_is_not_there_is_refused(
    new_topic: NewTopic, connections: NewConnections
) -> None:
    topic = new_topic()
    topic.send_ids([1])
    with pytest.raises(ConfigurationError, match=r"there is no column 'nope'; the columns are id, _kafka"):
        ingest(topic.spec(partition_by=("nope",)), connections(), "run-1")
    assert connections().catalog.table(topic.spec().identifier) is None


def test_small_batch_is_one_file_and_long_one_several_commits(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
) -> None:
    topic = new_topic(6)
    topic.send_ids(range(18), 6)
    spec = topic.spec(max_records_per_commit=12)
    report = ingest(spec, connections(), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert [(c.rows, c.files) for c in report.commits] == [(12, 1), (6, 1)]
    for commit in report.commits:
        assert see.carried_by(commit.snapshot) == commit.after
    assert dict(report.commits[0].after.offsets) == dict.fromkeys(range(6), 2)
    assert dict(report.commits[1].after.offsets) == dict.fromkeys(range(6), 3)
    assert {p.partition: (p.start, p.end, p.rows) for p in report.partitions()} == dict.fromkeys(range(6), (0, 3, 3))


def test_start_latest_and_start_at_a_time(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic(2)
    now = int(time.time() * 1000)
    for number, age in enumerate((3_600_000, 1_800_000, 60_000)):
        topic.send({"id": number}, timestamp_ms=now - age)
    topic.send({"id": 10}, partition=1, timestamp_ms=now - 3_600_000)
    at = topic.spec(start=moment(now - 1_800_000).isoformat())
    ingest(at, connections(), "run-1")
    assert view(at).ids() == [1, 2]
    assert view(at).position() == {0: 3, 1: 1}

    latest = replace(at, table=f"{topic.table}_latest", start="latest")
    assert ingest(latest, connections(), "run-2").total("records") == 0
    assert view(latest).position() == {0: 3, 1: 1}
    assert view(latest).rows() == []
    assert ingest(latest, replace(connections(), spark=no_spark), "run-3").commits == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("schema", ["id bigint", exhaustive(None)])
def test_start_latest_means_the_first_run_and_not_every_run(
    schema: str | None, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    topic.send_ids([0, 1], 2)
    spec = topic.spec(schema, start="latest")
    ingest(spec, connections(), "run-1")
    topic.send_ids([2, 3], 2)
    ingest(spec, connections(), "run-2")
    assert view(spec).ids() == [2, 3]
    assert view(spec).position() == {0: 2, 1: 2}


def test_run_of_some_partitions_leaves_other_positions(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(3)
    topic.send_ids(range(6), 3)
    spec = topic.spec()
    report = ingest(spec, connections(), "run-1", partitions={1})
    assert view(spec).ids() == [1, 4]
    assert view(spec).position() == {0: 0, 1: 2, 2: 0}
    assert [p.lag for p in report.partitions()] == [2, 0, 2]
    ingest(spec, connections(), "run-2")
    view(spec).assert_exactly_once(topic.ledger)


def test_a_transform_of_one_row_for_one_row_is_part_of_the_table(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send_ids(range(3))
    spec = topic.spec(transform="kafka_lake_tests.integration.transforms:with_tenfold")
    ingest(spec, connections(), "run-1")
    assert sorted((r["id"], r["tenfold"]) for r in view(spec).rows()) == [(0, 0), (1, 10), (2, 20)]
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.parametrize("name", [exhaustive("drops"), exhaustive("doubles"), exhaustive("unites"), "swaps"])
def test_transform_that_changes_row_count_publishes_nothing(
    name: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send_ids([0])
    good = topic.spec()
    ingest(good, connections(), "run-1")
    topic.send_ids([1, 2, 3])
    before = view(good).fingerprint()
    bad = replace(good, transform=f"kafka_lake_tests.integration.transforms:{name}")
    with pytest.raises(CheckFailedError) as caught:
        ingest(bad, connections(), "run-2")
    failed = {f.check for f in caught.value.findings if not f.passed}
    assert failed <= {"row_count", "offset_continuity"}
    assert failed
    assert topic.name in str(caught.value)
    assert view(good).fingerprint() == before
    ingest(good, connections(), "run-3")
    view(good).assert_exactly_once(topic.ledger)


def test_a_transform_that_loses_the_origin_is_refused(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic()
    topic.send_ids([1])
    spec = topic.spec(transform="kafka_lake_tests.integration.transforms:loses_origin")
    with pytest.raises(ConfigurationError, match="drops the column _kafka"):
        ingest(spec, connections(), "run-1")


def test_an_unknown_topic_is_named(connections: NewConnections) -> None:
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        ingest(TopicTable("no-such-topic", "it", "nothing"), replace(connections(), spark=no_spark), "run-1")


def test_aborted_records_are_skipped_and_markers_are_no_lag(
    new_topic: NewTopic, connections: NewConnections, view: NewView, broker: Any
) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic.name, "log_level": 0})
    producer.init_transactions(30)
    for number, commit in enumerate((True, False, True, False)):
        producer.begin_transaction()
        producer.produce(topic.name, b'{"id": %d}' % number)
        producer.flush(20)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
    await_transactions(broker.bootstrap_servers, {topic.name: 1})
    spec = topic.spec()
    began = time.monotonic()
    report = ingest(spec, connections(), "run-1")
    assert time.monotonic() - began < 60
    see = view(spec)
    assert see.ids() == [0, 2]
    # Two offsets for each transaction: the record and its marker.
    assert see.position() == {0: 8}
    assert report.total("records") == 2
    assert [p.lag for p in report.partitions()] == [0]
    assert ingest(spec, replace(connections(), spark=no_spark), "run-2").commits == []

    producer.begin_transaction()
    producer.produce(topic.name, b'{"id": 9}')
    producer.flush(20)
    producer.abort_transaction(30)
    await_transactions(broker.bootstrap_servers, {topic.name: 1})
    ingest(spec, connections(), "run-3")
    assert see.ids() == [0, 2]
    assert see.position() == {0: 10}


def test_records_of_an_open_transaction_wait_for_its_end(
    new_topic: NewTopic, connections: NewConnections, view: NewView, broker: Any
) -> None:
    topic = new_topic()
    topic.send_ids([1])
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic.name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.name, b'{"id": 2}')
    producer.flush(20)
    topic.send_ids([3])
    spec = topic.spec()
    ingest(spec, connections(), "run-1")
    assert view(spec).ids() == [1]
    producer.commit_transaction(30)
    await_transactions(broker.bootstrap_servers, {topic.name: 1})
    ingest(spec, connections(), "run-2")
    assert view(spec).ids() == [1, 2, 3]


FAILING = {
    "a gate": {"dead_letters": "table", "max_dead_letters": 0},
    "a transform": {"transform": "kafka_lake_tests.integration.transforms:doubles"},
}


@pytest.mark.parametrize("why", ["a gate", exhaustive("a transform")])
def test_a_first_run_that_fails_leaves_no_empty_tables(
    why: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec(**FAILING[why])
    topic.send({"id": 1})
    topic.send(b"junk")
    said: list[str] = []
    with pytest.raises(AuditFailedError):
        ingest(spec, connections(), "run-1", observer=Observer(warn=said.append))
    catalog = connections().catalog
    assert catalog.table(spec.identifier) is None
    assert catalog.table(spec.dead_letter_table) is None
    assert any("is dropped: this run created it" in line for line in said)
    assert not [name for _, name in catalog.pyiceberg.list_tables(spec.namespace) if name.startswith("unused")]
    mended = replace(spec, max_dead_letters=None, transform=None)
    ingest(mended, connections(), "run-2")
    view(mended).assert_exactly_once(topic.ledger)
    # From now on they are somebody's.
    topic.send(b"more junk")
    if why == "a gate":
        with pytest.raises(CheckFailedError):
            ingest(replace(mended, max_dead_letters=0), connections(), "run-3")
        assert view(mended).ids() == [1]
        assert len(view(mended).dead_letters()) == 1


@pytest.mark.exhaustive
def test_a_time_that_no_table_holds_is_null_and_named(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    # Brokers refuse such times by default, but for those before 3.6.
    topic = new_topic(1, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    # Microseconds where milliseconds belong: the year 57,973.
    for stamp in (1_767_323_045_000, 1_767_323_045_000_000):
        topic.send({"id": stamp}, timestamp_ms=stamp)
    for arrow in (True, False):
        spec = TopicTable(topic.name, "it", f"{topic.table}_{arrow}".lower(), "id bigint", **by(arrow))
        (commit,) = ingest(spec, connections(), "run").commits
        times = {row["id"]: row["_kafka"]["timestamp"] for row in view(spec).rows()}
        assert {stamp: time and time.year for stamp, time in times.items()} == {
            1_767_323_045_000: 2026,
            1_767_323_045_000_000: None,
        }
        (finding,) = [result for result in commit.findings if result.check == "schema_evolution"]
        assert [(note.column, note.what) for note in finding.changes] == [("_kafka.timestamp", "not kept")]


@pytest.mark.exhaustive
def test_records_fetched_beyond_a_batch_are_freed(
    new_topic: Callable[..., Topic], connections: Callable[..., Connections]
) -> None:
    """Otherwise each commit of a backlog leaves tens of megabytes behind, for each partition."""
    runtime = connections().spark()._jvm.java.lang.Runtime.getRuntime()

    def megabytes() -> int:
        runtime.gc()
        return (runtime.totalMemory() - runtime.freeMemory()) >> 20

    topic = new_topic()
    spec = topic.spec("id bigint, text string", **by(False), max_records_per_commit=60)
    topic.send({"id": -1, "text": ""})
    # Whatever is loaded and compiled once is there.
    ingest(spec, connections(), "run-1")
    before = megabytes()
    for number in range(240):
        topic.send({"id": number, "text": "x" * 200_000})
    report = ingest(spec, connections(), "run-2")
    assert len(report.commits) == 4
    deadline = time.monotonic() + 30
    while (now := megabytes()) > before + 20 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert now <= before + 20
