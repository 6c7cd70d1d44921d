"""`except`: fields of records that the table has no column for, whatever becomes of them; on a real broker."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_keyed import debezium, rows
from kafka_lake_tests.written_by import by

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]


def columns(view: View) -> list[str]:
    return [field.name for field in view.table.schema().fields]


@pytest.mark.exhaustive
def test_a_field_that_is_left_out_never_becomes_a_column(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, untold = new_topic(1), "__debezium_unavailable_value"
    spec = topic.spec(None, write="upsert", envelope="debezium", except_columns=("vector", "later"))
    for position, op, row in (
        (10, "c", {"id": 1, "name": "ada", "vector": [1.5]}),
        (11, "c", {"id": 2, "name": "bob", "vector": {"of": "another type"}}),
    ):
        topic.send(debezium(op, position, row, position - 1), key=b'{"id": %d}' % row["id"])
    ingest(spec, connections(), "run-1")
    assert columns(view(spec)) == ["id", "name", "_kafka", "_change"]
    # Changes of nothing else, one of a placeholder that nothing has the value for; and a new field beside.
    for position, row in (
        (20, {"id": 1, "name": "ada", "vector": 7, "later": {}}),
        (21, {"id": 2, "name": "bob", "vector": untold, "later": untold, "age": 7}),
    ):
        topic.send(debezium("u", position, row, position - 1), key=b'{"id": %d}' % row["id"])
    report = ingest(spec, connections(), "run-2")
    assert columns(view(spec)) == ["id", "name", "_kafka", "_change", "age"]
    assert rows(view(spec), "id", "name", "age") == [(1, "ada", None), (2, "bob", 7)]
    assert [row["_kafka"]["offset"] for row in sorted(view(spec).rows(), key=lambda row: row["id"])] == [2, 3]
    assert view(spec).dead_letters() == []
    assert not any("vector" in str(finding.facts) + str(finding.changes) for finding in report.commits[-1].findings)


@pytest.mark.exhaustive
def test_table_with_excluded_column_is_refused_until_dropped(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, write="upsert", key=("id",))
    topic.send({"id": 1, "v": "a", "note": "x"})
    ingest(spec, connections(), "run-1")
    today = replace(spec, except_columns=("note",))
    topic.send({"id": 2, "v": "b", "note": "y"})
    with pytest.raises(KafkaLakeError, match=r"has the columns note, .*DROP COLUMN note"):
        ingest(today, connections(), "run-2")
    assert rows(view(spec), "id", "note") == [(1, "x")]
    connections().spark().sql(f"ALTER TABLE {view(spec).sql_name()} DROP COLUMN note")
    ingest(today, connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(1, "a"), (2, "b")]
    assert "note" not in columns(view(spec))


def test_key_inferred_from_records_cannot_be_excluded(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, write="upsert", envelope="debezium", except_columns=("id",))
    topic.send(debezium("c", 10, {"id": 1, "v": "a"}, 9), key=b'{"id": 1}')
    with pytest.raises(KafkaLakeError, match=r"exclude_fields: topic .* has id in its records' keys"):
        ingest(spec, connections(), "run-1")
    assert connections().catalog.table(spec.identifier) is None


@pytest.mark.exhaustive
def test_excluded_column_can_mark_deletes(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic(1)
    spec = topic.spec(
        "id bigint, a string, b string, op string",
        write="upsert",
        key=("id",),
        delete_when="op = 'gone'",
        except_columns=("op",),
    )
    topic.send({"id": 1, "a": "a1", "b": "b1", "op": "new"})
    topic.send({"id": 2, "a": "a2", "b": "b2", "op": "new"})
    topic.send({"id": 3, "a": "a3", "b": "b3"})
    ingest(spec, connections(), "run-1")
    topic.send({"id": 1, "a": "a11", "b": "b11"})
    topic.send({"id": 2, "op": "gone"})
    ingest(spec, connections(), "run-2")
    assert columns(view(spec)) == ["id", "a", "b", "_kafka"]
    assert rows(view(spec), "id", "a", "b") == [(1, "a11", "b11"), (3, "a3", "b3")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("arrow", [True, exhaustive(False)])
def test_rows_that_are_appended_lack_it_too(
    arrow: bool, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, except_columns=("secret",), **by(arrow))
    topic.send({"id": 1, "secret": "x"})
    ingest(spec, connections(), "run-1")
    topic.send({"id": 2, "secret": {"now": ["another type"]}})
    topic.send({"id": 3, "more": 1.5})
    ingest(spec, connections(), "run-2")
    assert columns(view(spec)) == ["id", "_kafka", "more"]
    assert rows(view(spec), "id", "more") == [(1, None), (2, None), (3, 1.5)]
    assert view(spec).dead_letters() == []
