"""Fresh reads: what they show of a table and its unread records is what the table holds after the next commit."""

import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from typer.testing import Result

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.devstack.servers import EmbeddedBroker, EmbeddedRegistry
from kafka_lake.errors import FreshReadError, SnapshotExpiredError, TailTooLongError
from kafka_lake.fresh import table_of
from kafka_lake.fresh.table import Fresh, FreshTable
from kafka_lake.fresh.tail import MaxTail
from kafka_lake.ingest.run import ingest
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.maintenance.policy import Limits
from kafka_lake.maintenance.procedures import compact, expire
from kafka_lake.orchestration.fresh_table import FreshTable as FreshTableResource
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource
from kafka_lake.routing.by_value import find_topic
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.rule import RuleEntry
from kafka_lake.spec.topic_table import Route, TopicTable, When
from kafka_lake.verify.run import verify
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration import test_routes_by_value as routes_by_value
from kafka_lake_tests.integration.test_keyed import Source, debezium
from kafka_lake_tests.transactions import await_transactions

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]
Send = tuple[Any, int, bytes | None]


def assert_same(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> None:
    def counted(given: Sequence[dict[str, Any]]) -> Counter[str]:
        # PyIceberg reads a null list of structs as an empty one.
        bare = [{**row, "_kafka": {**row["_kafka"], "headers": row["_kafka"]["headers"] or None}} for row in given]
        return Counter(json.dumps(row, default=str, sort_keys=True) for row in bare)

    one, other = counted(rows), counted(others)
    assert (one - other, other - one) == (Counter(), Counter())


def assert_shows_next_commit(table: FreshTable, view: View, connections: Connections, run: str) -> Fresh:
    """Read the table, ingest its topic, and compare."""
    fresh = table.read()
    rows = fresh.arrow()
    ingest(table.topic, connections, run)
    after = view.table.scan().to_arrow()
    assert set(rows.column_names) == set(after.column_names)
    assert_same(rows.to_pylist(), after.to_pylist())
    assert_same(table.read().arrow().to_pylist(), after.to_pylist())
    return fresh


@pytest.mark.every_pair
def test_fresh_read_shows_the_rows_of_the_next_commit(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    rule = RuleEntry(name="small", range={"column": "id", "max": 100})
    spec = topic.spec(None, rules=(rule,))
    topic.send({"id": 1, "who": {"name": "a"}}, 0, headers=[("h", b"v"), ("h", None)])
    topic.send({"id": 2, "tags": ["x"]}, 1, key=b"k")
    ingest(spec, connections(), "run-1")
    with FreshTable(spec, connections()) as table:
        assert_same(table.read().arrow().to_pylist(), view(spec).rows())
        topic.send({"id": 3, "who": {"name": "b", "age": 7}, "new": 1.5}, 0)
        topic.send(b"not json", 1)
        topic.send(None, 1, key=b"k")
        topic.send({"id": 101}, 0)
        topic.send({"id": "text"}, 0)
        topic.send({"id": 4, "tags": []}, 1, headers=[("g", b"\x00")])
        fresh = assert_shows_next_commit(table, view(spec), connections(), "run-2")
        assert (fresh.records, fresh.dead_letters) == (6, 3)
        assert table.query("SELECT who.age, new FROM this WHERE id = 3").to_pylist() == [{"age": 7, "new": 1.5}]
        assert not table.read().records
    assert len(view(spec).dead_letters()) == 3


def sends(topic: Topic, records: Sequence[Send]) -> None:
    for value, partition, key in records:
        topic.send(value, partition, key=key)


def changes(chance: random.Random, count: int, *, partitions: int, ordered: bool) -> list[Send]:
    """Return random changes of few keys; without an order, each key has one partition."""
    made: list[Send] = []
    for _ in range(count):
        key = chance.randrange(6)
        partition = chance.randrange(partitions) if ordered else key % partitions
        value: dict[str, Any] | None = {
            "id": key,
            "at": chance.randrange(8),
            "v": chance.choice(["a", "b", "gone", None]),
        }
        if chance.random() < 0.3:
            value = {name: part for name, part in (value or {}).items() if name != "v"} | {"w": chance.randrange(3)}
        if chance.random() < 0.2:
            # A tombstone has no order: it goes where the row of its key came from.
            value, partition = None, key % partitions
        made.append((value, partition, json.dumps({"id": key}).encode()))
    return made


UPSERTS: dict[str, dict[str, Any]] = {
    "offsets": {"key": ("id",)},
    "order": {"key": ("id",), "order_by": ("at",)},
    "delete_when": {"key": ("id",), "order_by": ("at",), "delete_when": "v = 'gone'"},
    "soft": {"key": ("id",), "order_by": ("at",), "deletes": "soft", "delete_when": "v = 'gone'"},
    "partial": {"key": ("id",), "ignore_null_updates": True},
    "partial soft": {"key": ("id",), "ignore_null_updates": ("v",), "deletes": "soft"},
    "ignored deletes": {"key": ("id",), "deletes": "ignore"},
    "record key": {},
}


@pytest.mark.parametrize("case", [name if name == "delete_when" else exhaustive(name) for name in UPSERTS])
def test_unread_changes_win_as_in_the_next_commit(
    new_topic: NewTopic, connections: NewConnections, view: NewView, case: str
) -> None:
    settings, chance = UPSERTS[case], random.Random(case)
    # In one partition, tombstones are ordered against all changes of their key.
    partitions = 1 if "order_by" in settings else 2
    topic = new_topic(partitions)
    spec = topic.spec("id bigint, at bigint, v string, w bigint", write="upsert", **settings)
    with FreshTable(spec, connections()) as table:
        for run in range(4):
            sends(topic, changes(chance, 12, partitions=partitions, ordered="order_by" in settings))
            if run:
                assert_shows_next_commit(table, view(spec), connections(), f"run-{run}")
            else:
                ingest(spec, connections(), "run-0")


def newest(events: Sequence[tuple[str, int]]) -> str | None:
    """Return the value of the row after some changes: a tombstone follows the newest change before it."""
    placed: list[tuple[int, int, str]] = []
    for number, (does, at) in enumerate(events):
        order = max((before for before, _, _ in placed), default=0) if does == "tombstone" else at
        placed.append((order, number, does))
    does = max(placed)[2]
    return does if does.startswith("v") else None


@pytest.mark.parametrize("case", ["apply", *map(exhaustive, ("soft", "every history"))])
def test_cut_into_commits_changes_no_row(
    new_topic: NewTopic, connections: NewConnections, view: NewView, case: str
) -> None:
    """Each history of four changes comes in all eight cuts, each by a key of its own."""
    alphabet = [(does, at) for at in (1, 2, 3) for does in ("v", "gone")] + [("tombstone", 0)]
    histories = list(itertools.product(alphabet, repeat=4))
    if case != "every history":
        histories = random.Random(case).sample(histories, 60)
    topic = new_topic(1)
    spec = topic.spec("id string, at bigint, v string, w bigint", write="upsert", key=("id",), order_by=("at",),
                      delete_when="v = 'gone'", deletes="soft" if case == "soft" else "apply")  # fmt: skip
    cuts = [list(itertools.accumulate((0, *steps))) for steps in itertools.product((0, 1), repeat=3)]
    with FreshTable(spec, connections()) as table:
        for commit in range(4):
            for (number, history), cut in itertools.product(enumerate(histories), cuts):
                for change, ((does, at), due) in enumerate(zip(history, cut, strict=True)):
                    if due == commit:
                        id_ = f"{number} {cut}"
                        value = {"id": id_, "at": at, "v": f"v{change}" if does == "v" else does,
                                 "w": change if change % 2 else None}  # fmt: skip
                        raw = None if does == "tombstone" else json.dumps(value).encode()
                        topic.producer.produce(topic.name, raw, json.dumps({"id": id_}).encode(), 0)
                        topic.producer.poll(0)
            assert topic.producer.flush(20) == 0
            if commit:
                assert_shows_next_commit(table, view(spec), connections(), f"run-{commit}")
            else:
                ingest(spec, connections(), "run-0")
    rows = {row["id"]: tuple(row.get(name) for name in ("at", "v", "w", "_is_deleted")) for row in view(spec).rows()}
    for number, history in enumerate(histories):
        found = {rows.get(f"{number} {cut}") for cut in cuts}
        assert len(found) == 1, history
        if case != "soft":
            (row,) = found
            named = [(f"v{n}" if does == "v" else does, at) for n, (does, at) in enumerate(history)]
            assert (row and row[1]) == newest(named), history


HISTORIES: dict[str, dict[str, Any]] = {
    "numbers": {"order_by": ("at",)},
    "tracked": {"order_by": ("at",), "track": ("v",)},
    "offsets": {},
    "times": {"order_by": ("at",), "delete_when": "v = 'gone'"},
}


@pytest.mark.parametrize("case", [*([exhaustive(name) for name in ("numbers", "offsets", "times")]), "tracked"])
def test_unread_changes_close_versions_as_the_next_commit(
    new_topic: NewTopic, connections: NewConnections, view: NewView, case: str
) -> None:
    chance, topic = random.Random(case), new_topic()
    kind = "timestamp" if case == "times" else "bigint"
    spec = topic.spec(f"id bigint, at {kind}, v string, w bigint", write="history", key=("id",), **HISTORIES[case])
    spec = replace(spec, timestamp_unit="s" if case == "times" else None)
    with FreshTable(spec, connections()) as table:
        for run in range(4):
            sends(topic, changes(chance, 12, partitions=1, ordered=True))
            if run:
                assert_shows_next_commit(table, view(spec), connections(), f"run-{run}")
            else:
                ingest(spec, connections(), "run-0")


@pytest.mark.parametrize("write", ["upsert", exhaustive("history")])
def test_unread_changes_of_a_database_win_by_its_log(
    new_topic: NewTopic, connections: NewConnections, view: NewView, write: Any
) -> None:
    """Deletes with their tombstones, changes sent again, values that aren't sent, snapshots."""
    topic = new_topic(2)
    columns = f"id bigint not null, n bigint not null, {'big' if write == 'upsert' else 'more'} string"
    spec = topic.spec(columns, write=write, envelope="debezium")
    source = Source(3)
    with FreshTable(spec, connections()) as table:
        for run in range(4):
            source.transactions(6)
            if run:
                random.Random(run).choice((source.snapshot, source.again))()
            sends(topic, [(event, key % 2, json.dumps({"id": key}).encode()) for key, event in source.events])
            source.events.clear()
            if run:
                assert_shows_next_commit(table, view(spec), connections(), f"run-{run}")
            else:
                ingest(spec, connections(), "run-0")


def test_value_that_is_not_sent_breaks_no_rule_against_nulls(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, columns = new_topic(), "id bigint not null, n bigint, big string"
    spec = topic.spec(columns, write="upsert", envelope="debezium", rules=(RuleEntry(not_null=("big",)),))
    values = ("long", "__debezium_unavailable_value", None)
    with FreshTable(spec, connections()) as table:
        for run, big in enumerate(values):
            event = debezium("u" if run else "c", 10 * run + 10, {"id": 1, "n": run, "big": big}, 10 * run + 5)
            sends(topic, [(event, 0, b'{"id": 1}')])
            if run:
                assert assert_shows_next_commit(table, view(spec), connections(), f"run-{run}").dead_letters == run - 1
            else:
                ingest(spec, connections(), "run-0")
    assert [(row["n"], row["big"]) for row in view(spec).rows()] == [(1, "long")]


def test_each_table_of_a_topic_shows_its_own_unread_records(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    routed = {
        name: TopicTable(topic.name, "it", f"{topic.table}_{name}", schema="id bigint") for name in ("field", "header")
    }
    spec = topic.spec(None, routes=(
        Route(When(field="kind.name", values=("a", "7")), routed["field"]),
        Route(When(header="to", values=("it's",)), routed["header"]),
    ))  # fmt: skip

    def send(first: int) -> None:
        topic.send({"id": first, "kind": {"name": "a"}}, 0)
        topic.send({"id": first + 1, "kind": {"name": 7}}, 1, headers=[("to", b"no"), ("to", b"it's")])
        topic.send({"id": first + 2, "kind": "a"}, 0, headers=[("to", b"it's"), ("to", b"no")])
        topic.send(b"not json", 1, headers=[("to", b"it's")])
        topic.send({"id": first + 3}, 1)

    send(0)
    ingest(spec, connections(), "run-1")
    send(10)
    tables = [FreshTable(table, connections(), spec) for table in spec.tables]
    read = [table.read() for table in tables]
    assert [fresh.records for fresh in read] == [2, 2, 2]
    ingest(spec, connections(), "run-2")
    for table, fresh in zip(tables, read, strict=True):
        assert_same(fresh.arrow().to_pylist(), view(table.spec).rows())
        table.close()


def test_topics_of_one_table_are_read_together(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    one, other = new_topic(), new_topic(2)
    spec = replace(one.spec("id bigint"), topics=(one.name, other.name))
    for topic in (one, other):
        topic.send_ids(range(3))
    for table in spec.each_topic:
        ingest(table, connections(), "run-1")
    one.send_ids(range(10, 12))
    other.send_ids(range(20, 23), partitions=2)
    with FreshTable(spec, connections()) as fresh_table:
        fresh = fresh_table.read()
        ids = sorted(row["id"] for row in fresh.arrow().to_pylist())
        assert ids == sorted([0, 1, 2] * 2 + [10, 11, 20, 21, 22])
        assert fresh.ranges[one.name] == (OffsetRange(0, 3, 5),)


def test_unread_records_that_come_later_change_new_columns(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec(None)
    topic.send({"id": 1})
    ingest(spec, connections(), "run-1")
    with FreshTable(spec, connections()) as table:
        for new in (1, 2.5, "text"):
            topic.send({"id": 2, "new": new})
            assert table.read().dead_letters == 0
        assert_shows_next_commit(table, view(spec), connections(), "run-2")


def test_records_of_a_recreated_topic_replace_cached_ones(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic()
    spec = topic.spec(on_data_loss="continue")
    topic.send_ids(range(5))
    ingest(spec, connections(), "run-1")
    with FreshTable(spec, connections()) as table:
        topic.send_ids(range(5, 8))
        assert table.read().records == 3
        topic.delete()
        topic.create()
        topic.send_ids(range(10, 16))
        ingest(spec, connections(), "run-2")
        topic.send_ids(range(16, 18))
        assert sorted(table.read().arrow().column("id").to_pylist()) == [*range(5), *range(10, 18)]


def test_uncommitted_and_aborted_records_are_not_shown(
    new_topic: NewTopic, connections: NewConnections, broker: EmbeddedBroker
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send({"id": 0})
    ingest(spec, connections(), "run-1")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic.name})
    producer.init_transactions()
    with FreshTable(spec, connections()) as table:
        for ids, ends in (((1, 2), producer.commit_transaction), ((3, 4), producer.abort_transaction)):
            producer.begin_transaction()
            for identifier in ids:
                producer.produce(topic.name, json.dumps({"id": identifier}).encode(), partition=0)
            producer.flush(20)
            before = table.query("SELECT id FROM this ORDER BY id").column("id").to_pylist()
            assert not set(before) & set(ids)
            ends()
            await_transactions(broker.bootstrap_servers, {topic.name: 1})
        topic.send({"id": 5})
        assert table.query("SELECT id FROM this ORDER BY id").column("id").to_pylist() == [0, 1, 2, 5]


def test_table_too_far_behind_is_an_error_with_the_way_out(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic(2)
    spec = topic.spec()
    topic.send_ids([0])
    ingest(spec, connections(), "run-1")
    topic.send_ids(range(1, 7), partitions=2)
    for limit, reported in (
        (MaxTail(records=5), "more than max_tail's 5 records"),
        (MaxTail(size=10), "bytes of them"),
    ):
        with FreshTable(spec, connections(), max_tail=limit) as table, pytest.raises(TailTooLongError) as caught:
            table.read()
        assert f"{spec.namespace}.{spec.table} is 6 records of topic {topic.name} behind" in str(caught.value)
        assert reported in str(caught.value)
        assert "kafka-lake ingest" in str(caught.value)


def test_fresh_query_of_the_command_line_reads_nothing_else(
    new_topic: NewTopic, connections: NewConnections, command_line: Callable[..., Result]
) -> None:
    topic = new_topic()
    spec = topic.spec("id bigint, at timestamp, filename string")
    topic.send({"id": 1})
    ingest(spec, connections(), "run-1")
    topic.send({"id": 2, "at": "2026-01-02T03:04:05.5Z"})
    name = ".".join(spec.identifier)
    shown = command_line([spec], "query", name, "SELECT id, id FROM this ORDER BY id", "--fresh", "--explain")
    assert [line.split() for line in shown.output.splitlines() if "│" in line][-1:] == [["│", "2", "│", "2", "│"]]
    assert f"topic {topic.name} partition 0 offsets 1 to 1" in shown.output
    reported = command_line(
        [spec], "query", topic.name, f"SELECT * FROM {spec.table} WHERE id = 2", "--fresh", "--json"
    )
    (row,) = json.loads(reported.output)
    assert (row["id"], row["at"], row["_kafka"]["offset"]) == (2, "2026-01-02 03:04:05.5+00", 1)
    for sql in (
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT 1; DROP VIEW this",
        "SELECT 1); DROP VIEW this; SELECT * FROM (SELECT 1",
        "SELECT * FROM nothing",
    ):
        refused = command_line([spec], "query", topic.name, sql, "--fresh")
        assert refused.exit_code == 1
        assert "DuckDB can't run this query" in refused.output


def test_query_reads_the_new_snapshot_after_its_own_expired(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic()
    spec = topic.spec()
    for number in range(3):
        topic.send({"id": number})
        ingest(spec, connections(), f"run-{number}")
    topic.send({"id": 3})
    with FreshTable(spec, connections()) as table:
        fresh = table.read()
        # The snapshot with the table's position stays; its files are the compacted one, and that of the last commit.
        systems = connections()
        compact(systems.spark(), systems.catalog, spec.identifier)
        ingest(spec, connections(), "run-last")
        now = int(time.time() * 1000) + 1
        assert expire(systems.spark(), systems.catalog, spec.identifier, Limits(now, 1, None))
        with pytest.raises(SnapshotExpiredError, match=r"can't be read any more.* Read again"):
            fresh.sql("SELECT id FROM this")
        assert sorted(table.query("SELECT id FROM this").column("id").to_pylist()) == [0, 1, 2, 3]


@pytest.mark.exhaustive
def test_condition_that_duckdb_cannot_evaluate_is_refused(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic(1)
    spec = topic.spec("id bigint, v string", write="upsert", key=("id",), delete_when="v = 7")
    sends(topic, [({"id": 1, "v": "7"}, 0, b"1")])
    ingest(spec, connections(), "run-1")
    sends(topic, [({"id": 1, "v": "x"}, 0, b"1")])
    with (
        FreshTable(spec, connections()) as table,
        pytest.raises(FreshReadError, match=r"delete_when: of topic .* can't be evaluated by DuckDB: Conversion"),
    ):
        table.read()


@pytest.mark.exhaustive
def test_columns_may_have_the_names_of_duckdbs_own(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, names = new_topic(1), ("id", "file_row_number", "filename", "file_index", "rowid")
    spec = topic.spec(", ".join(f"{name} bigint" for name in names), write="upsert", key=("id",))
    sends(topic, [(dict.fromkeys(names, number), 0, b"%d" % number) for number in range(3)])
    ingest(spec, connections(), "run-1")
    sends(topic, [({**dict.fromkeys(names, 9), "id": 1}, 0, b"1")])
    with FreshTable(spec, connections()) as table:
        assert_shows_next_commit(table, view(spec), connections(), "run-2")
        sends(topic, [({"id": 2}, 0, b"2")])
        assert_shows_next_commit(table, view(spec), connections(), "run-3")


def test_fields_within_others_may_have_any_name(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    # Spark writes the files, and Iceberg encodes names in them that aren't letters, digits and underscores.
    spec = topic.spec(None, write="upsert", key=("id",), evolution="evolve")
    metrics = {"p50": 0.5, "p99.9": 1.5, "2xx": 5, "größe": 7, "x-y z": [{"a/b": "c"}]}
    topic.send({"id": 1, "metrics": metrics})
    ingest(spec, connections(), "run")
    row = {"p50": 0.5, "p99_9": 1.5, "_2xx": 5, "größe": 7, "x_y_z": [{"a_b": "c"}]}
    assert [shown["metrics"] for shown in view(spec).rows()] == [row]
    topic.send({"id": 2, "metrics": metrics})
    with FreshTable(spec, connections()) as table:
        assert table.read().arrow().column("metrics").to_pylist() == [row, row]
    report = verify(spec, spec, connections(), sample=1.0)
    assert (report.problems, report.counts["compared_rows"]) == ([], 1)


def test_floats_in_delete_when_compare_as_in_spark(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(
        "id bigint, at bigint, f float", write="upsert", key=("id",), order_by=("at",), delete_when="f = 0.1"
    )
    sends(topic, [({"id": 1, "at": 1, "f": 1.0}, 0, b"1")])
    ingest(spec, connections(), "run-1")
    sends(topic, [({"id": 1, "at": 2, "f": 0.1}, 0, b"1")])
    with FreshTable(spec, connections()) as table:
        assert_shows_next_commit(table, view(spec), connections(), "run-2")


@pytest.mark.exhaustive
def test_values_with_tables_have_fresh_reads_of_their_own(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = routes_by_value.spec_of(topic)
    routes_by_value.send(topic, "order a b a")
    ingest(spec, connections(), "run-1")
    routes_by_value.send(topic, "order a b! new a a!")
    name = f"it.{topic.table}_a"
    with table_of(find_topic([spec], name), name, connections()) as table:
        fresh = table.read()
        ingest(spec, connections(), "run-2")
        assert_same(fresh.arrow().to_pylist(), view(table.spec).rows())
        assert (fresh.records, fresh.dead_letters, len(view(table.spec).rows())) == (3, 1, 4)
    with pytest.raises(FreshReadError, match="takes the records whose value has no table"):
        FreshTable(spec, connections()).read()


def test_schemas_of_a_registry_first_seen_in_the_tail_are_fetched(
    new_topic: NewTopic, connections: Callable[..., Connections], view: NewView, registry: EmbeddedRegistry
) -> None:
    topic, client = new_topic(), SchemaRegistryClient({"url": registry.url})
    spec = topic.spec(None, format="avro")
    systems = connections(SchemaRegistry({"url": registry.url}))

    def send(fields: Mapping[str, str], value: dict[str, Any]) -> None:
        columns = [{"name": name, "type": kind, "default": 0} for name, kind in fields.items()]
        text = json.dumps({"type": "record", "name": "Order", "fields": columns})
        context = SerializationContext(topic.name, MessageField.VALUE)
        topic.send(AvroSerializer(client, text)(value, context))

    send({"id": "long"}, {"id": 1})
    ingest(spec, systems, "run-1")
    with FreshTable(spec, systems) as table:
        send({"id": "long", "n": "int"}, {"id": 2, "n": 7})
        topic.send(b"\0\0\0\xff\xffnone")
        fresh = assert_shows_next_commit(table, view(spec), systems, "run-2")
        assert (fresh.records, fresh.dead_letters) == (2, 1)


def test_asset_reads_a_fresh_table_by_its_resource(
    new_topic: NewTopic,
    connections: NewConnections,
    kafka_resource: KafkaResource,
    catalog_resource: CatalogResource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send({"id": 1})
    ingest(spec, connections(), "run-1")
    topic.send({"id": 2})
    # In process a run has no code location to ask.
    monkeypatch.setattr("kafka_lake.orchestration.fresh_table.topics_of_location", lambda context: [spec])

    @dg.asset
    def total(context: dg.AssetExecutionContext, rows: FreshTableResource) -> dg.MaterializeResult:
        counts = [rows.read(context).sql("SELECT sum(id) AS total FROM this").to_pylist()[0]["total"] for _ in range(2)]
        return dg.MaterializeResult(metadata={"total": int(counts[1])})

    systems = {"kafka": kafka_resource, "registry": RegistryResource(), "catalog": catalog_resource}
    rows = FreshTableResource(table=".".join(spec.identifier), **systems)
    result = dg.materialize([total], resources={"rows": rows})
    assert result.asset_materializations_for_node("total")[0].metadata["total"].value == 3
