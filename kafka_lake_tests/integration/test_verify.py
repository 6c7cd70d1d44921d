"""`kafka-lake verify` on real servers: healthy tables of every kind are proven, and each kind of damage is found."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Producer
from typer.testing import Result

from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.ingest.run import ingest, replay, reset
from kafka_lake.maintenance.maintain import maintain
from kafka_lake.orchestration.assets import Presentation, build_topic_assets
from kafka_lake.orchestration.checks import VERIFIED
from kafka_lake.orchestration.keys import table_key
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake.routing.by_value import knowing
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.topic_table import Route, RouteBy, TopicTable, When
from kafka_lake.verify.report import Report
from kafka_lake.verify.run import verify
from kafka_lake_tests.conftest import NAMESPACE, Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_row_expiry import days_ago
from kafka_lake_tests.transactions import await_transactions

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


def verified(spec: TopicTable, connections: Connections) -> Report:
    return verify(spec, spec, connections, sample=1.0)


def problems(report: Report) -> list[tuple[str, int | None, list[int]]]:
    return [(problem.kind, problem.partition, problem.offsets) for problem in report.problems]


def test_damaged_append_table_shows_each_damage(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec("id bigint, name string, at timestamp")
    for number in range(20):
        topic.send({"id": number, "name": f"n{number}", "at": "2026-01-01T00:00:00Z"}, number % 2, key=b"k%d" % number,
                   headers=[("h", b"v"), ("h", None)])  # fmt: skip
    topic.send(b"junk", 0)
    topic.send(None, 1)
    ingest(spec, connections(), "run")
    healthy = verified(spec, connections())
    assert problems(healthy) == []
    assert healthy.notes == []
    assert +healthy.counts == {
        "records": 22, "rows": 20, "dead_letters": 1, "records_without_value": 1, "compared_rows": 20,
        "compared_dead_letters": 1,
    }  # fmt: skip

    spark, table = connections().spark(), view(spec).sql_name()
    where = "WHERE _kafka.partition = {} AND _kafka.offset = {}"
    fields = ("topic", "topic_id", "partition", "offset", "timestamp", "timestamp_type", "key", "headers")

    def origin(**replaced: str) -> str:
        parts = (f"'{name}', {replaced.get(name, f'_kafka.{name}')}" for name in fields)
        return f"named_struct({', '.join(parts)})"

    for statement in (
        f"DELETE FROM {table} {where.format(0, 1)}",
        f"INSERT INTO {table} SELECT * FROM {table} {where.format(1, 2)}",
        f"UPDATE {table} SET name = 'another' {where.format(0, 3)}",
        f"UPDATE {table} SET _kafka = {origin(key='unhex(00)')} {where.format(1, 4)}",
        f"UPDATE {table} SET _kafka = {origin(headers='null')} {where.format(1, 6)}",
        f"INSERT INTO {table} SELECT id, name, at, {origin(offset='77')} FROM {table} {where.format(0, 5)}",
        f"DELETE FROM {view(spec).catalog.spark_name(spec.dead_letter_table)}",
    ):
        spark.sql(statement).collect()
    report = verified(spec, connections())
    assert sorted(problems(report)) == [
        ("dead_letter_missing", 0, [10]),
        ("doubled", 1, [2]),
        ("foreign_row", 0, [77]),
        ("key_differs", 1, [4]),
        ("missing", 0, [1]),
        ("value_differs", 0, [3]),
        ("value_differs", 1, [6]),
    ]
    columns = {p.partition: p.columns for p in report.problems if p.kind == "value_differs"}
    assert columns == {0: ["name"], 1: ["headers"]}


@pytest.mark.exhaustive
@pytest.mark.parametrize("write", ["append", "upsert"])
def test_rows_of_skipped_offsets_are_compared_when_read_later(
    new_topic: NewTopic, connections: NewConnections, view: NewView, write: Any
) -> None:
    topic = new_topic(1)
    spec = topic.spec("id bigint, v string", write=write, key=("id",) if write == "upsert" else ())
    topic.send({"id": 0, "v": "a"})
    ingest(spec, connections(), "run-1")
    for number in range(1, 4):
        topic.send({"id": number, "v": "b"})
    reset(spec, connections(), "skip", to="latest")
    report = verified(spec, connections())
    assert problems(report) == []
    assert report.notes == [
        f"whether records are missing where topic {topic.name} partition 0 skipped offsets 1 to 3 by a reset"
    ]
    replay(spec, connections(), "again", ReplayRange("0:1", "0:3"))
    assert problems(verified(spec, connections())) == []
    connections().spark().sql(f"UPDATE {view(spec).sql_name()} SET v = 'c' WHERE id = 2").collect()
    assert problems(verified(spec, connections())) == [("value_differs", 0, [2])]


def test_tables_of_values_are_verified(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic(1)
    by = RouteBy("field", "type", TopicTable(topic.name, schema="id bigint"), f"{topic.table}_{{value}}", NAMESPACE)
    spec = topic.spec("id bigint", route_by=by)
    for number, kind in enumerate(["a", "b", "a", None]):
        topic.send({"type": kind, "id": number})
    ingest(spec, connections(), "run")
    own = connections().catalog.table(spec.identifier)
    assert own is not None
    reports = [verify(spec, table, connections(), sample=1.0) for table in knowing(spec, own.properties).tables]
    assert [(problems(report), report.counts["rows"]) for report in reports] == [([], 1), ([], 2), ([], 1)]


def test_healthy_table_verifies_after_all_that_may_happen(
    new_topic: NewTopic, connections: NewConnections, broker: EmbeddedBroker
) -> None:
    topic = new_topic(2)
    old_rows = Maintenance.model_validate({"row_retention": "90d", "compact_every": 2, "expire_after": None})
    spec = topic.spec("id bigint", maintenance=old_rows, table_properties={"format-version": "3"})
    for number in range(4):
        topic.send({"id": number}, number % 2, timestamp_ms=days_ago(100))
    topic.send(b"old junk", 0, timestamp_ms=days_ago(100))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic.name})
    producer.init_transactions(20)
    for ends in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(topic.name, b'{"id": 10}', partition=0)
        producer.produce(topic.name, b"junk", partition=1)
        producer.flush(20)
        ends(20)
    await_transactions(broker.bootstrap_servers, {topic.name: 2})
    ingest(spec, connections(), "run-1")
    topic.send({"id": 20}, 1)
    topic.send({"id": 21}, 0)
    topic.send(None, 0)
    ingest(spec, connections(), "run-2")
    replay(spec, connections(), "again", ReplayRange("0:6,1:3", "latest"))
    maintain(spec, connections(), everything=True)
    topic.send({"id": 30}, 1)
    reset(spec, connections(), "skip", to="latest")
    topic.send({"id": 31}, 1)
    ingest(spec, connections(), "run-3")
    report = verified(spec, connections())
    assert problems(report) == []
    counts = report.counts
    assert (counts["records"], counts["rows"], counts["dead_letters"]) == (14, 5, 2)
    assert (counts["expired_rows"], counts["records_without_value"]) == (5, 1)
    # Two aborted records, six markers; and the record that the reset skipped.
    assert (counts["invisible_offsets"], counts["offsets_lost_or_expired"]) == (8, 1)


def test_records_of_other_tables_are_no_problem(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    orders = TopicTable(topic.name, "it", f"{topic.table}_orders", schema="id bigint")
    spec = topic.spec(
        where=When(field="type", values=("click",)), routes=(Route(When(field="type", values=("order",)), orders),)
    )
    for number, kind in enumerate(("order", "click", "view", "order")):
        topic.send({"type": kind, "id": number})
    ingest(spec, connections(), "run")
    reports = [verify(spec, table, connections(), sample=1.0) for table in spec.tables]
    assert [problems(report) for report in reports] == [[], []]
    counts = ("records", "rows", "dead_letters", "records_of_other_tables")
    assert [[report.counts[name] for name in counts] for report in reports] == [[4, 1, 1, 2], [4, 2, 0, 2]]

    connections().spark().sql(f"DELETE FROM {view(orders).sql_name()} WHERE id = 3").collect()
    assert problems(verify(spec, orders, connections())) == [("missing", 0, [3])]


@pytest.mark.parametrize("settings", [{}, exhaustive({"key": ("id",), "order_by": ("at",)})], ids=["kafka", "source"])
def test_upsert_row_that_is_not_the_newest_is_a_problem(
    settings: dict[str, Any], new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec("id bigint, v string, at bigint", write="upsert", **settings)
    for number in range(24):
        key = number % 4
        topic.send({"id": key, "v": f"v{number}", "at": number}, key % 2, key=b'{"id": %d}' % key)
    topic.send(None, 1, key=b'{"id": 3}')
    topic.send(b"junk", 0, key=b"1")
    ingest(spec, connections(), "run-1")
    topic.send({"id": 0, "v": "newest", "at": 99}, 0, key=b'{"id": 0}')
    ingest(spec, connections(), "run-2")
    healthy = verified(spec, connections())
    assert problems(healthy) == []
    assert (healthy.counts["records"], healthy.counts["rows"], healthy.counts["compared_rows"]) == (27, 3, 3)

    spark, table = connections().spark(), view(spec).sql_name()
    before = spark.sql(f"SELECT * FROM {table}.snapshots ORDER BY committed_at").collect()
    old = next(row["snapshot_id"] for row in before if row["summary"].get("total-records") not in (None, "0"))
    row = f"SELECT * FROM {table} VERSION AS OF {old} WHERE id = 0"
    spark.sql(f"DELETE FROM {table} WHERE id IN (0, 2)").collect()
    spark.sql(f"INSERT INTO {table} {row}").collect()
    report = verified(spec, connections())
    assert sorted(problems(report)) == [("missing", 0, [11]), ("not_newest", 0, [13])]


@pytest.mark.exhaustive
def test_row_that_is_wrongly_marked_as_deleted_is_a_problem(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec("id bigint", write="upsert", key=("id",), deletes="soft")
    for number in range(3):
        topic.send({"id": number}, key=b'{"id": %d}' % number)
    ingest(spec, connections(), "run-1")
    topic.send(None, key=b'{"id": 1}')
    ingest(spec, connections(), "run-2")
    assert problems(verified(spec, connections())) == []
    connections().spark().sql(f"UPDATE {view(spec).sql_name()} SET _is_deleted = true WHERE id = 2").collect()
    assert problems(verified(spec, connections())) == [("not_newest", 0, [2])]
    connections().spark().sql(f"DELETE FROM {view(spec).sql_name()} WHERE id = 1").collect()
    assert problems(verified(spec, connections())) == [("missing", 0, [3]), ("not_newest", 0, [2])]


@pytest.mark.exhaustive
def test_history_has_a_row_for_each_change(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic(2)
    spec = topic.spec("id bigint, at bigint, v string", write="history", key=("id",), order_by=("at",))
    for number in range(8):
        topic.send({"id": number % 2, "at": number, "v": f"v{number}"}, number % 2)
    topic.send(None, 0, key=b'{"id": 0}')
    topic.send(b"junk", 1)
    ingest(spec, connections(), "run")
    healthy = verified(spec, connections())
    assert problems(healthy) == []
    assert healthy.counts["records"] == 10

    spark, table = connections().spark(), view(spec).sql_name()
    spark.sql(f"UPDATE {table} SET valid_to = 7 WHERE at = 3").collect()
    spark.sql(f"DELETE FROM {table} WHERE at = 4").collect()
    assert sorted(problems(verified(spec, connections()))) == [("missing", 0, [2]), ("versions", 1, [1])]


def test_offsets_are_compared_one_range_after_the_other(
    new_topic: NewTopic, connections: NewConnections, view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_lake.verify.run.OFFSETS_AT_ONCE", 4)
    monkeypatch.setattr("kafka_lake.verify.values.MOST_AT_ONCE", 2)
    topic = new_topic(1)
    spec = topic.spec()
    topic.send_ids(range(12))
    ingest(spec, connections(), "run")
    connections().spark().sql(f"DELETE FROM {view(spec).sql_name()} WHERE id IN (1, 11)").collect()
    done: list[str] = []
    report = verify(spec, spec, connections(), sample=1.0, progress=lambda *_: done.append("range"))
    assert problems(report) == [("missing", 0, [1, 11])]
    assert (report.counts["records"], report.counts["rows"], len(done)) == (12, 10, 4)
    assert report.notes == ["values of more than 2 records of each 4 offsets"]


def test_scheduled_check_fails_for_a_damaged_table(
    new_topic: NewTopic,
    connections: NewConnections,
    kafka_resource: KafkaResource,
    catalog_resource: CatalogResource,
    spark_resource: SparkResource,
    view: NewView,
) -> None:
    topic = new_topic(1)
    spec = topic.spec(maintenance=Maintenance.model_validate({"verify": {"schedule": "0 3 * * *", "since": "1d"}}))
    topic.send_ids(range(3))
    ingest(spec, connections(), "run")
    resources = {
        "kafka": kafka_resource, "catalog": catalog_resource, "registry": RegistryResource(), "spark": spark_resource,
    }  # fmt: skip
    assets, instance = build_topic_assets(spec, Presentation("g")), dg.DagsterInstance.ephemeral()
    check = dg.AssetCheckKey(table_key(spec), VERIFIED)

    def checked() -> Any:
        alone = dg.AssetSelection.checks(check)
        run = dg.materialize(assets, instance=instance, resources=resources, selection=alone)
        return run.get_asset_check_evaluations()[0]

    assert checked().passed
    connections().spark().sql(f"DELETE FROM {view(spec).sql_name()} WHERE id = 1").collect()
    failed = checked()
    assert not failed.passed
    assert "partition 0, offsets 1" in failed.description

    definitions, cursor, requested = dg.Definitions(assets=assets, resources=resources), None, []
    for minute in (58, 59, 61, 62):
        at = datetime(2026, 11, 28, 2, tzinfo=UTC) + timedelta(minutes=minute)
        found = dg.evaluate_automation_conditions(definitions, instance, cursor=cursor, evaluation_time=at)
        cursor, requested = found.cursor, [*requested, found.total_requested]
    assert requested == [0, 0, 1, 0]
    instance.dispose()


def test_exit_code_says_whether_the_table_is_proven(
    new_topic: NewTopic, connections: NewConnections, command_line: Callable[..., Result], view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec()
    assert command_line([spec], "verify", spec.table).exit_code == 2
    topic.send_ids(range(4))
    ingest(spec, connections(), "run")
    proven = command_line([spec], "verify", f"it.{spec.table}", "--json")
    assert (proven.exit_code, json.loads(proven.output)["verified"]) == (0, True)

    connections().spark().sql(f"DELETE FROM {view(spec).sql_name()} WHERE id = 2").collect()
    damaged = command_line([spec], "verify", spec.table, "--since", "0:1")
    assert damaged.exit_code == 1
    assert f"kafka-lake replay {topic.name} --from 0:2 --to 0:3" in damaged.output.replace("\n", " ")
    assert command_line([spec], "verify", spec.table, "--since", "3").exit_code == 0
    assert command_line([spec], "verify", spec.table, "--since", "4").exit_code == 2
    keyed = replace(spec, write="upsert", key=("id",))
    assert command_line([keyed], "verify", spec.table, "--since", "3").exit_code == 2
    table = view(spec).table
    for task in table.scan().plan_files():
        table.io.delete(task.file.file_path)
    assert command_line([spec], "verify", spec.table).exit_code == 2
