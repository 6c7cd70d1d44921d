"""Another type for a column by `kafka-lake schema change`: on real tables, beside commits of the topic."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.types import DecimalType, DoubleType
from typer.testing import Result

from kafka_lake.common.errors import TableError
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.ingest.column_type.change import ColumnType, change
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.gate import GateFailedError
from kafka_lake.ingest.run import ingest
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import head_of, read_positions, summary_of
from kafka_lake_tests.conftest import Topic, View

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]
Cli = Callable[..., Result]


@pytest.fixture
def cli(command_line: Cli) -> Cli:
    """Return the command over one table."""

    def run(spec: TopicTable, *arguments: str) -> Result:
        return command_line(spec.each_topic, "schema", "change", ".".join(spec.identifier), *arguments)

    return run


def by_offset(see: View, *columns: str) -> list[tuple[Any, ...]]:
    rows = sorted(see.rows(), key=lambda row: (row["_kafka"]["partition"], row["_kafka"]["offset"]))
    return [tuple(row[name] for name in columns) for row in rows]


def test_whole_numbers_become_fractions(
    new_topic: NewTopic, connections: NewConnections, view: NewView, cli: Cli
) -> None:
    topic = new_topic()
    spec, see = topic.spec(None), None
    nested = {"tags": ["a"], "who": {"age": 7, "name": "x"}, "list": [1, None]}
    topic.send({"id": 1, "price": 1, "text": "ü", **nested})
    topic.send({"id": 2, "price": None, "text": None, "who": None, "list": None})
    ingest(spec, connections(), "run-1")
    topic.send({"id": 3, "price": 1.5, **nested})
    topic.send({"id": 4, "price": "free"})
    ingest(spec, connections(), "run-2")
    see = view(spec)
    letters = {row["offset"]: row["error_message"] for row in see.dead_letters()}
    assert letters.keys() == {2, 3}
    assert "kafka-lake schema change" in letters[2]
    before, head, names = see.table.schema(), head_of(see.table), [f.name for f in see.table.schema().fields]

    shown = cli(spec, "price", "double", "--dry-run")
    assert shown.exit_code == 0
    assert "2 rows, 1 of them with a value, in 1 files" in " ".join(shown.output.split())
    assert (see.table.schema(), head_of(see.table)) == (before, head)

    assert cli(spec, "price", "double").exit_code == 0
    see.assert_exactly_once(topic.ledger)
    assert by_offset(see, "id", "price", "text", "tags", "who", "list") == [
        (1, 1.0, "ü", ["a"], {"age": 7, "name": "x"}, [1, None]),
        (2, None, None, None, None, None),
        (3, 1.5, None, ["a"], {"age": 7, "name": "x"}, [1, None]),
    ]
    assert [row["offset"] for row in see.dead_letters()] == [3]
    after = see.table.schema()
    assert [f.name for f in after.fields] == names
    assert after.find_type("price") == DoubleType()
    assert {f.name: f.field_id for f in after.fields if f.name != "price"} == {
        f.name: f.field_id for f in before.fields if f.name != "price"
    }
    assert head is not None
    old = see.table.scan(snapshot_id=head).to_arrow()
    assert (old.schema.field("price").type, old["price"].to_pylist()) == ("int64", [1, None])

    topic.send({"id": 5, "price": 2.25})
    ingest(spec, connections(), "run-3")
    see.assert_exactly_once(topic.ledger)
    see.assert_no_branches()
    assert by_offset(see, "id", "price")[-1] == (5, 2.25)


def test_commits_of_others_meanwhile_are_kept(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: SparkResource
) -> None:
    topic, made = new_topic(2), connections()
    spec = topic.spec(None, partition_by=("bucket(2, id)",), sort_by=("id",))

    def send(*ids: int) -> None:
        for n in ids:
            topic.send({"id": n, "who": {"name": f"n{n}", "age": n}}, n % 2)

    send(*range(6))
    ingest(spec, made, "run-1")
    see, told = view(spec), list[str]()

    def interfere(step: str) -> None:
        told.append(step)
        if step.endswith("rows written") and not told[1:-1]:
            send(6, 7)
            ingest(spec, made, "run-2")
            rewrite = see.call("rewrite_data_files", options="map('rewrite-all', 'true')")
            spark_resource.spark_session.sql(rewrite).collect()
        if step.startswith("the staged rows") and told.count(step) == 2:
            send(8, 9)
            ingest(spec, made, "run-4")

    asked = ColumnType(spec.identifier, "who.age", "decimal(12,2)")
    done = change(asked, made, "run-5", interfere)
    assert "the table has changed meanwhile; it is planned again" in told
    assert "rows were appended meanwhile; they are written, too" in told
    assert done.rows == 10
    see.assert_exactly_once(topic.ledger)
    see.assert_no_branches()
    rows = sorted((row["id"], row["who"]["name"], row["who"]["age"]) for row in see.rows())
    assert rows == [(n, f"n{n}", Decimal(n)) for n in range(10)]
    assert see.table.schema().find_type("who.age") == DecimalType(12, 2)
    send(10)
    ingest(spec, made, "run-6")
    see.assert_exactly_once(topic.ledger)
    with pytest.raises(TableError, match=r"10 of|would be lost or altered"):
        change(replace(asked, kind="decimal(3,2)"), made, "run-7")
    see.assert_no_branches()


def test_upsert_table_of_two_topics_keeps_rows_and_positions(
    new_topic: NewTopic, connections: NewConnections, view: NewView, cli: Cli
) -> None:
    one, other = new_topic(), new_topic()
    shared = one.spec(None, topics=(one.name, other.name), write="upsert", key=("id",))
    specs = shared.each_topic
    for n in range(4):
        one.send({"id": n, "n": n, "own": "a"})
        other.send({"id": 10 + n, "n": n, "own": "b"})
    for spec in specs:
        ingest(spec, connections(), "run-1")
    one.send({"id": 0, "n": 5, "own": "c"})
    one.send({"id": 1, "n": 5.5, "own": "c"})
    ingest(specs[0], connections(), "run-2")
    see = view(shared)
    assert int(summary_of(see.table.current_snapshot())["total-delete-files"]) > 0
    for refused, kind, why in (("id", "string", "key"), ("_kafka", "string", "own"), ("n", "bigint", "is of type")):
        answer = cli(shared, refused, kind)
        assert answer.exit_code == 1
        assert why in answer.output
    assert cli(shared, "n", "double").exit_code == 0
    rows = sorted((row["id"], row["n"], row["own"]) for row in see.rows())
    assert rows == [(0, 5.0, "c"), (1, 5.5, "c"), (2, 2.0, "a"), (3, 3.0, "a"),
                    *((10 + n, float(n), "b") for n in range(4))]  # fmt: skip
    assert see.dead_letters() == []
    assert {each.identity.topic for each in read_positions(see.table)} == {one.name, other.name}
    other.send({"id": 0, "n": 7.5, "own": "d"})
    for spec in specs:
        assert len(ingest(spec, connections(), "run-3").commits) == (spec.topic == other.name)
    assert (0, 7.5, "d") in [(row["id"], row["n"], row["own"]) for row in see.rows()]


def test_declared_column_is_changed_after_its_declaration(
    new_topic: NewTopic, connections: NewConnections, view: NewView, cli: Cli
) -> None:
    topic = new_topic()
    spec = topic.spec("id bigint, price bigint not null comment 'In cents.', code string", sort_by=("id",))
    topic.send({"id": 1, "price": 1, "code": "7"})
    topic.send({"id": 2, "price": 1.5, "code": "x"})
    ingest(spec, connections(), "run-1")
    see = view(spec)
    before = see.fingerprint()
    for column, kind, why in (
        ("price", "double", "Write double there first"),
        ("id", "string", "sorted by column id"),
        ("code", "bigint", "declare column code as string"),
        ("nothing", "double", "has no column nothing"),
        ("price", "timestamp", "no plain cast"),
        ("price", "dubble", "unknown type"),
        ("price", "double comment 'x'", "more than a type"),
        ("_kafka.headers.element.key", "binary", "within a list"),
    ):
        answer = cli(spec, column, kind)
        assert (answer.exit_code, see.fingerprint()) == (1, before)
        assert why in " ".join(answer.output.split()), answer.output
    changed = replace(spec, schema="id bigint, price double not null comment 'In cents.', code string")
    topic.send({"id": 3, "price": 2.5, "code": "y"})
    with pytest.raises(GateFailedError):
        ingest(changed, connections(), "run-2")
    assert cli(changed, "price", "double").exit_code == 0
    field = see.table.schema().find_field("price")
    assert (field.field_type, field.required, field.doc) == (DoubleType(), True, "In cents.")
    ingest(changed, connections(), "run-3")
    see.assert_exactly_once(topic.ledger)
    assert by_offset(see, "id", "price", "code") == [(1, 1.0, "7"), (2, 1.5, "x"), (3, 2.5, "y")]
    changed = replace(changed, schema="id bigint, price double not null comment 'In cents.', code bigint")
    answer = cli(changed, "code", "bigint")
    assert answer.exit_code == 1
    assert "of its values, 2 would be lost or altered, y for example" in " ".join(answer.output.split())
    see.assert_no_branches()
