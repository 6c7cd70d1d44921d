"""What users of other tools reported in public, one test for each kind of report, on data of its own.

The names in brackets are the threads: repository and number. PyIceberg reads the tables, DuckDB compares them.
"""

import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest, replay_dead_letters
from kafka_lake.runtime.commit import CheckFailedError
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.rule import Range, RuleEntry
from kafka_lake.spec.topic_table import Route, RouteBy, TopicTable, When
from kafka_lake_tests.conftest import NAMESPACE, Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.transactions import await_transactions

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


def by_duckdb(view: View, query: str) -> list[tuple[Any, ...]]:
    """Return what DuckDB finds in the rows that PyIceberg reads; the table is called ``rows``."""
    with duckdb.connect() as connection:
        connection.register("rows", view.table.scan().to_arrow())
        return connection.sql(query).fetchall()


def letters(view: View) -> dict[tuple[int, int], str]:
    return {(dead["partition"], dead["offset"]): dead["error_class"] for dead in view.dead_letters()}


JSON_VALUES: tuple[tuple[bytes, Any], ...] = (
    # A Snowflake id loses its last digits where numbers are doubles [kafka-connect#JsonConverter, clickhouse#ids].
    (b'{"n": 9223372036854775807}', {"n": 9223372036854775807}),
    (b'{"n": -9223372036854775808}', {"n": -9223372036854775808}),
    (b'{"n": -0}', {"n": 0}),
    (b'{"f": 0.1}', {"f": 0.1}),
    (b'{"f": 1e308}', {"f": 1e308}),
    (b'{"f": 5e-324}', {"f": 5e-324}),
    (b'{"s": ""}', {"s": ""}),
    (b'{"s": null}', {}),
    (b'{"s": "\\ud83c\\udf55 \\u0000 \\"\\\\ \\/"}', {"s": '\U0001f355 \x00 "\\ /'}),
    ('{"s": "é e\u0301 \u202e \u2028"}'.encode(), {"s": "é e\u0301 \u202e \u2028"}),
    # Text that looks like another type stays text [airbyte: numeric strings, risingwave: booleans].
    (b'{"s": "0123"}', {"s": "0123"}),
    (b'{"s": "true"}', {"s": "true"}),
    (b'{"s": "null"}', {"s": "null"}),
    (b'{"s": "2026-02-30"}', {"s": "2026-02-30"}),
    (b' \t\r\n{"b":true}\n ', {"b": True}),
    (b'{"b": false, "l": []}', {"b": False, "l": []}),
    (b'{"l": [1, null, 3]}', {"l": [1, None, 3]}),
    # Structs of nulls and nulls of structs differ [iceberg#11163 comments, pyiceberg: null lists].
    (b'{"o": {"x": null}}', {"o": {"x": None, "y": None}}),
    (b'{"o": {"x": 1, "y": "z"}}', {"o": {"x": 1, "y": "z"}}),
    (b'{"o": null}', {}),
    (b"{}", {}),
)
JSON_REFUSED = (
    b"", b" ", b"null", b"7", b'"text"', b"[]", b'[{"n": 1}]', b"{", b'{"n": 1', b'{"n": NaN}', b'{"n": 01}',
    b"{'n': 1}", b'{"n": 1} trailing', b'{"n": 1}{"n": 2}', b"\xff\xfe{\x00}\x00", b'{"s": "\xc3\x28"}',
)  # fmt: skip


@pytest.mark.parametrize("declared", [pytest.param(False, id="inferred"), exhaustive(True, id="declared")])
def test_json_values_of_all_kinds_are_equal_or_dead_letters(
    declared: bool, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """[dbx#254, iceberg#15878, memiiso#196, olake#987: rounded, re-typed or silently skipped values]."""
    topic = new_topic(2)
    expected = {topic.send(raw, number % 2).place: want for number, (raw, want) in enumerate(JSON_VALUES)}
    refused = {topic.send(raw, number % 2).place for number, raw in enumerate(JSON_REFUSED)}
    columns = "n bigint, f double, s string, b boolean, l array<bigint>, o struct<x: bigint, y: string>"
    spec = topic.spec(columns if declared else None)
    ingest(spec, connections(), "run")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    found = {(row["_kafka"]["partition"], row["_kafka"]["offset"]): row for row in see.rows()}
    assert set(found) == set(expected)
    assert set(letters(see)) == refused
    for place, want in expected.items():
        row = {name: value for name, value in found[place].items() if name != "_kafka" and value is not None}
        assert row == want, f"{place}: {row}"
        if "f" in want:
            assert math.copysign(1, row["f"]) == math.copysign(1, want["f"])


def test_headers_keys_and_tombstones_are_kept_as_bytes(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """[iceberg#15961, dbx#129: headers are lost or decoded; null values stop the sink]."""
    topic = new_topic()
    topic.send({"id": 1}, key=b"\x00\xff", headers=[("a", b"\xfe"), ("a", None), ("", b"")])
    topic.send(None, key=b"gone")
    topic.send({"id": 2}, key=b"")
    spec = topic.spec()
    report = ingest(spec, connections(), "run")
    first, second = sorted(view(spec).rows(), key=lambda row: row["id"])
    assert first["_kafka"]["key"] == b"\x00\xff"
    assert [(h["key"], h["value"]) for h in first["_kafka"]["headers"]] == [("a", b"\xfe"), ("a", None), ("", b"")]
    assert second["_kafka"]["key"] == b""
    assert report.total("tombstones") == 1


@pytest.mark.exhaustive
def test_fields_that_come_and_go_keep_their_columns(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """[iceberg#13457, olake#1189, memiiso#370: a field that disappears, comes back, or comes in the last record]."""
    topic = new_topic()
    spec = topic.spec(None)
    batches: list[list[dict[str, Any]]] = [
        [{"id": 1, "a": "x"}, {"id": 2}],
        [{"id": 3, "b": {"c": 1}}, {"id": 4, "b": {"c": 2, "d": ["t"]}}],
        [{"id": 5, "a": "y", "b": {"d": []}}, {"id": 6, "e": True}],
        [{"id": 7, "a": None, "b": None, "e": None}],
    ]
    for number, batch in enumerate(batches):
        for row in batch:
            topic.send(row)
        ingest(spec, connections(), f"run-{number}")
    assert by_duckdb(view(spec), "SELECT id, a, b.c, b.d, e FROM rows ORDER BY id") == [
        (1, "x", None, None, None), (2, None, None, None, None), (3, None, 1, None, None),
        (4, None, 2, ["t"], None), (5, "y", None, [], None), (6, None, None, None, True), (7, None, None, None, None),
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_values_of_another_type_are_dead_letters_once(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """[iceberg#16237, #16392: one bad record stops the task, or is skipped without a trace]."""
    topic = new_topic()
    rows = ({"id": 1, "at": "2026-01-02"}, {"id": "two", "at": "2026-01-02"}, {"id": 3, "at": "never"}, {"id": 4})
    for row in rows:
        topic.send(row)
    spec = topic.spec("id bigint, at date")
    ingest(spec, connections(), "run")
    assert by_duckdb(view(spec), 'SELECT id, "at" FROM rows ORDER BY id') == [(1, date(2026, 1, 2)), (4, None)]
    assert letters(view(spec)) == {(0, 1): "wrong_type", (0, 2): "wrong_type"}
    replay_dead_letters(spec, connections(), "again")
    assert letters(view(spec)) == {(0, 1): "wrong_type", (0, 2): "wrong_type"}
    assert view(spec).ids() == [1, 4]


def test_names_of_fields_of_all_kinds_are_columns(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """[iceberg#14530, dbx#181, risingwave#22852: dots, dashes, keywords, two names that differ in case]."""
    names = ("order", "a.b", "a-b", "ünï", "1st", "select", "with space", "it's", 'quo"te', "ba`ck", "$x", "#", "a/b")
    topic = new_topic()
    sent = {name: number for number, name in enumerate(names)}
    topic.send(sent)
    topic.send({"id": 1, "Id": 2})
    spec = topic.spec(None)
    ingest(spec, connections(), "run")
    rows = view(spec).rows()
    assert sorted(value for row in rows for name, value in row.items() if name != "_kafka" and value is not None) == (
        sorted([*sent.values(), 1, 2])
    )
    assert view(spec).dead_letters() == []


def test_table_of_another_tool_is_filled_in_its_layout(
    new_topic: NewTopic, connections: NewConnections, view: NewView, catalog_resource: Any
) -> None:
    """[iceberg#11163, #18012, dbx#306: lower-case columns, other column order, narrower types, rows that are there]."""
    topic = new_topic()
    catalog = catalog_resource.open().pyiceberg
    catalog.create_namespace_if_not_exists(NAMESPACE)
    schema = Schema(NestedField(1, "vbeln", StringType()), NestedField(2, "kept", IntegerType()),
                    NestedField(3, "n", LongType()))  # fmt: skip
    table = catalog.create_table((NAMESPACE, topic.table), schema)
    table.append(pa.table({"vbeln": ["old"], "kept": pa.array([1], pa.int32()), "n": pa.array([7], pa.int64())}))
    topic.send({"VBELN": "new", "n": 8})
    spec = topic.spec(None)
    ingest(spec, connections(), "run")
    assert by_duckdb(view(spec), "SELECT vbeln, kept, n FROM rows ORDER BY n") == [("old", 1, 7), ("new", None, 8)]


@pytest.mark.exhaustive
def test_aborted_and_open_transactions_are_never_rows(
    new_topic: NewTopic, connections: NewConnections, view: NewView, broker: Any
) -> None:
    """[iceberg#17542, kafka-connect: records of aborted transactions, or a run that waits for an open one]."""
    topic = new_topic()
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic.name}
    producer = Producer(settings)
    producer.init_transactions(20)
    for number, end in enumerate(("commit", "abort", "commit")):
        producer.begin_transaction()
        producer.produce(topic.name, json.dumps({"id": number}).encode(), partition=0)
        producer.flush(20)
        (producer.commit_transaction if end == "commit" else producer.abort_transaction)(20)
    await_transactions(broker.bootstrap_servers, {topic.name: 1})
    spec = topic.spec()
    ingest(spec, connections(), "run")
    assert view(spec).ids() == [0, 2]
    assert ingest(spec, connections(), "again").commits == []


@pytest.mark.exhaustive
def test_changes_of_one_key_in_one_batch_end_as_the_source(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """[memiiso#661, #546, hudi#19660, feldera#6747: insert, delete and insert again; equal order values]."""
    topic = new_topic()
    spec = topic.spec("id bigint, at bigint, v string", write="upsert", key=("id",), order_by=("at",))
    changes = [(1, 5, "a"), (1, 5, "b"), (2, 9, "new"), (2, 3, "late"), (3, 1, "x"), (3, 2, "y"), (3, 2, "z")]
    for key, at, value in changes:
        topic.send({"id": key, "at": at, "v": value})
    ingest(spec, connections(), "run-1")
    for key, at, value in [(1, 4, "late"), (2, 9, "tie"), (4, 1, "in")]:
        topic.send({"id": key, "at": at, "v": value})
    ingest(spec, connections(), "run-2")
    assert by_duckdb(view(spec), "SELECT id, v FROM rows ORDER BY id") == [(1, "b"), (2, "tie"), (3, "z"), (4, "in")]


def debezium(op: str, before: Any, after: Any, lsn: int, **source: Any) -> dict[str, Any]:
    place = {"connector": "postgresql", "db": "d", "schema": "s", "table": "t", "lsn": lsn, "ts_ms": lsn,
             "sequence": json.dumps([str(lsn), str(lsn)]), "snapshot": "false", **source}  # fmt: skip
    return {"op": op, "before": before, "after": after, "source": place, "ts_ms": lsn}


@pytest.mark.exhaustive
def test_debezium_changes_end_as_the_database(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    """[flink-cdc#4536, risingwave#22852, memiiso#544: key changes, values not sent, deletes with the key alone]."""
    unavailable = "__debezium_unavailable_value"
    topic = new_topic()
    spec = topic.spec(None, write="upsert", envelope="debezium", partition_by=("bucket(4, id)",))
    for key, change in (
        (1, debezium("c", None, {"id": 1, "doc": "long", "v": 1}, 10)),
        (2, debezium("c", None, {"id": 2, "doc": "other", "v": 1}, 11)),
        (1, debezium("u", None, {"id": 1, "doc": unavailable, "v": 2}, 12)),
        # A change of the key is a delete, a tombstone and an insert.
        (2, debezium("d", {"id": 2}, None, 13)),
        (2, None),
        (3, debezium("c", None, {"id": 3, "doc": "other", "v": 2}, 14)),
    ):
        topic.send(change, key=json.dumps({"id": key}).encode())
    ingest(spec, connections(), "run-1")
    expected = [(1, "long", 2), (3, "other", 2)]
    assert by_duckdb(view(spec), "SELECT id, doc, v FROM rows ORDER BY id") == expected
    topic.send(debezium("u", None, {"id": 3, "doc": unavailable, "v": 3}, 15), key=b'{"id": 3}')
    # A snapshot that is read late has the row as it was: it never wins against a later change.
    topic.send(debezium("r", None, {"id": 1, "doc": "long", "v": 1}, 10, snapshot="true"), key=b'{"id": 1}')
    ingest(spec, connections(), "run-2")
    assert by_duckdb(view(spec), "SELECT id, doc, v FROM rows ORDER BY id") == [(1, "long", 2), (3, "other", 3)]


@pytest.mark.exhaustive
def test_values_never_choose_a_table_outside_their_namespace(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """[iceberg#14530, dinky#3341, paimon#1564: a payload names any table; too many tables]."""
    topic = new_topic()
    values = ("a", "../b", "other.ns", "'; drop table x", "", "c")
    for value in values:
        topic.send({"type": value})
    by = RouteBy(to=TopicTable(topic.name, schema="type string"), kind="field", name="type", max_tables=3,
                 table=f"{topic.table}_{{value}}", namespace=NAMESPACE)  # fmt: skip
    spec = topic.spec("type string", route_by=by)
    ingest(spec, connections(), "run")
    catalog = view(spec).catalog.pyiceberg
    made = [name for name in catalog.list_tables(NAMESPACE) if name[1].startswith(topic.table)]
    own = [name for name in made if not name[1].endswith("__dead_letters")]
    assert len(own) <= 4
    rows = [row["type"] for name in own for row in catalog.load_table(name).scan().to_arrow().to_pylist()]
    assert sorted(rows) == sorted(values)
    assert all("." not in name[1] and "/" not in name[1] for name in own)


@pytest.mark.exhaustive
def test_dropped_table_of_one_kind_is_filled_and_nothing_doubles(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """[iceberg#18012, #13752, #16237: one table is missing, its rows are skipped and the other's come twice]."""
    topic = new_topic()
    columns = "type string, id bigint"
    route = Route(When(field="type", values=("b",)), TopicTable(topic.name, NAMESPACE, f"{topic.table}_b",
                                                                schema=columns))  # fmt: skip
    spec = topic.spec(columns, routes=(route,))
    for number, kind in enumerate("abab"):
        topic.send({"type": kind, "id": number})
    ingest(spec, connections(), "run-1")
    own, other = view(spec), view(route.to)
    own.catalog.pyiceberg.drop_table(route.to.identifier)
    topic.send({"type": "a", "id": 4})
    ingest(spec, connections(), "run-2")
    assert own.ids() == [0, 2, 4]
    assert other.ids() == [1, 3]


@pytest.mark.exhaustive
def test_expiry_and_compaction_by_other_tools_change_nothing(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: Any
) -> None:
    """[iceberg#6579, #15046, paimon#8964: maintenance by other tools loses the offsets, or brings rows back]."""
    topic = new_topic(2)
    spec = topic.spec()
    for number in range(3):
        topic.send_ids([2 * number, 2 * number + 1], partitions=2)
        ingest(spec, connections(), f"run-{number}")
    see, spark = view(spec), spark_resource.spark_session
    spark.sql(see.call("rewrite_data_files", options="map('rewrite-all','true')"))
    snapshots = [s.snapshot_id for s in see.table.metadata.snapshots[:-1]]
    see.table.maintenance.expire_snapshots().by_ids(snapshots).commit()
    topic.send_ids([6, 7], partitions=2)
    ingest(spec, connections(), "last")
    see.assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_null_passes_a_rule_and_a_broken_rule_is_listed_once(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """[rocky#113, dqx#1485, cloud-data-quality#117: null is refused, or one row is refused twice]."""
    entries = (
        RuleEntry(name="positive", range=Range(column="n", min=1), on_failure="dead_letter"),
        RuleEntry(name="small", range=Range(column="n", min=-5), on_failure="dead_letter"),
    )
    topic = new_topic()
    for number in (1, None, 0, -9):
        topic.send({"n": number})
    spec = topic.spec("n bigint", rules=entries, rules_fail_above=None)
    ingest(spec, connections(), "run")
    assert by_duckdb(view(spec), "SELECT n FROM rows ORDER BY n NULLS LAST") == [(1,), (None,)]
    dead = {row["offset"]: row["error_message"] for row in view(spec).dead_letters()}
    assert set(dead) == {2, 3}
    assert "positive" in dead[3]
    assert "small" in dead[3]


@pytest.mark.exhaustive
def test_retention_that_took_unread_records_stops_the_run(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """[iceberg#15878, materialize#14211: `auto.offset.reset` skips what retention removed, in silence]."""
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0, 1])
    ingest(spec, connections(), "run-1")
    topic.send_ids([2, 3, 4])
    topic.admin.delete_records([TopicPartition(topic.name, 0, 4)])[TopicPartition(topic.name, 0)].result(20)
    with pytest.raises((KafkaLakeError, CheckFailedError), match=r"offsets? 2 to 3|2\D+3|2 to 4"):
        ingest(spec, connections(), "run-2")
    assert view(spec).ids() == [0, 1]


def test_times_decimals_and_bytes_are_equal(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    """[risingwave#22852, dlt#4305, sparks of time zones: a time is moved, a decimal is rounded, bytes are re-coded]."""
    topic = new_topic()
    topic.send({"at": "2026-03-29T02:30:00+02:00", "d": "1", "m": 12345678901234567.89, "y": "AP8="})
    topic.send(b'{"at": "0001-01-01T00:00:00Z", "d": "9999-12-31", "m": 0.10, "y": ""}')
    topic.send(b'{"at": "9999-12-31T23:59:59.999999Z", "d": "1582-10-10", "m": -0.05, "y": null}')
    spec = topic.spec("at timestamp, d date, m decimal(20,2), y binary")
    ingest(spec, connections(), "run")
    rows = {row["_kafka"]["offset"]: row for row in view(spec).rows()}
    assert set(rows) | {offset for _, offset in letters(view(spec))} == {0, 1, 2}
    assert rows[1]["at"] == datetime(1, 1, 1, tzinfo=UTC)
    assert (rows[1]["d"], rows[1]["m"], rows[1]["y"]) == (date(9999, 12, 31), Decimal("0.10"), b"")
    assert rows[2]["at"] == datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert (rows[2]["d"], rows[2]["m"], rows[2]["y"]) == (date(1582, 10, 10), Decimal("-0.05"), None)
