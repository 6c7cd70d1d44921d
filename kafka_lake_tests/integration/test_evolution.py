"""Changes of JSON records under ingestion, by every policy: what the table becomes, and where each value is."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pyiceberg.types import DecimalType, DoubleType, LongType, StringType

from kafka_lake.errors import AuditFailedError, ConfigurationError
from kafka_lake.ingest.read import SAMPLE_RECORDS
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.commit import CheckFailedError
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]


def values(see: View) -> list[dict[str, Any]]:
    rows = sorted(see.rows(), key=lambda row: row["_kafka"]["offset"])
    return [{k: v for k, v in row.items() if k != "_kafka"} for row in rows]


def notes(report: RunReport) -> list[tuple[str, str, str]]:
    (finding,) = [f for f in report.findings() if f.check == "schema_evolution"]
    return [(n.column, n.what, n.why) for n in finding.changes]


def letters(see: View) -> list[tuple[int, str]]:
    return sorted((row["offset"], row["error_class"]) for row in see.dead_letters())


@pytest.mark.exhaustive
@pytest.mark.in_contract
def test_new_nested_fields_are_added_while_writing(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send({"id": 1, "s": {"a": 1}, "l": [{"a": 1}], "deep": [[{"x": 1}]]})
    spec = topic.spec(None)
    ingest(spec, connections(), "run-1")
    topic.send(
        {"id": 2, "s": {"a": 2, "b": {"c": "new"}}, "l": [{"a": 2}, {"b": True}], "deep": [[{"y": 0.5}]], "z": 1}
    )
    report = ingest(spec, connections(), "run-2")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert values(see) == [
        {"id": 1, "s": {"a": 1, "b": None}, "l": [{"a": 1, "b": None}], "deep": [[{"x": 1, "y": None}]], "z": None},
        {
            "id": 2,
            "s": {"a": 2, "b": {"c": "new"}},
            "l": [{"a": 2, "b": None}, {"a": None, "b": True}],
            "deep": [[{"x": None, "y": 0.5}]],
            "z": 1,
        },
    ]
    assert {(column, what) for column, what, _ in notes(report)} == {
        ("s.b", "added"), ("l.element.b", "added"), ("deep.element.element.y", "added"), ("z", "added"),
    }  # fmt: skip


@pytest.mark.exhaustive
def test_names_that_no_column_can_have(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic, long = new_topic(), "n" * 300
    topic.send({"id": 1, "a.b": 2, "": 3, "_file": 4, "_kafka": 5, "back`tick": 6, long: 7, "ü ñ": 8})
    spec = topic.spec(None)
    ingest(spec, connections(), "run-1")
    topic.send({"ID": 9, "id": 10, "a.b": 11, "nested": {"x": 1, "X": 2}, "list": [{"y.z": 3}]})
    ingest(spec, connections(), "run-2")
    topic.send({"ID": 12, "nested": {"X": 4}, "": 13})
    ingest(spec, connections(), "run-3")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    names = [f.name for f in see.table.schema().fields]
    (cut,) = [name for name in names if name.startswith("nnn")]
    assert len(cut) <= 255
    # PyIceberg 0.12 reads a null list of structs as an empty one.
    found = [{k: v for k, v in row.items() if v not in (None, [])} for row in values(see)]
    assert found == [
        {"id": 1, "a_b": 2, "_": 3, "_file__2": 4, "_kafka__2": 5, "back_tick": 6, cut: 7, "ü_ñ": 8},
        {"id": 10, "ID__2": 9, "a_b": 11, "nested": {"x": 1, "X__2": 2}, "list": [{"y_z": 3}]},
        {"ID__2": 12, "nested": {"x": None, "X__2": 4}, "_": 13},
    ]


@pytest.mark.exhaustive
def test_inferred_numbers_are_bigints_or_doubles(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send(b'{"id": 1, "big": 123456789012345678901234567890, "exact": 0.12345678901234567890123, "plain": 0.5}')
    topic.send(
        b'{"id": 2, "sum": 0.30000000000000004, "price": 5, "whole": 1.0, "l": [1, 2.5], "both": 9007199254740993}'
    )
    topic.send(b'{"id": 3, "price": 5.25, "whole": 2, "l": [0.1], "both": 0.5}')
    spec = topic.spec(None)
    ingest(spec, connections(), "run-1")
    topic.send(b'{"id": 4, "exact": 9.87654321098765432109876, "s": {"price": 1, "l": [{"p": 7.125}, {"p": 7}]}}')
    topic.send(b'{"id": 5, "s": {"price": 1.5}}')
    ingest(spec, connections(), "run-2")
    topic.send(b'{"id": 6, "s": {"price": 2, "n": 3}}')
    topic.send(b'{"id": 7, "s": {"n": 3.5}, "exact": 7.00000000000000000000001}')
    ingest(spec, connections(), "run-3")
    found = {row.pop("id"): {k: v for k, v in row.items() if v not in (None, [])} for row in values(view(spec))}
    assert letters(view(spec)) == []
    # A null list of structs is an empty one to PyIceberg 0.12.
    assert found == {
        1: {"big": 123456789012345678901234567890.0, "exact": 0.12345678901234567890123, "plain": 0.5},
        2: {"sum": 0.30000000000000004, "price": 5.0, "whole": 1.0, "l": [1.0, 2.5], "both": 9007199254740992.0},
        3: {"price": 5.25, "whole": 2.0, "l": [0.1], "both": 0.5},
        4: {"exact": 9.87654321098765432109876, "s": {"price": 1.0, "l": [{"p": 7.125}, {"p": 7.0}], "n": None}},
        5: {"s": {"price": 1.5, "l": [], "n": None}},
        6: {"s": {"price": 2.0, "l": [], "n": 3.0}},
        7: {"s": {"price": None, "l": [], "n": 3.5}, "exact": 7.00000000000000000000001},
    }


def test_new_table_gets_fields_that_its_sample_lacks(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, count = new_topic(), 2 * SAMPLE_RECORDS + 1_000
    for n in range(count):
        rare = {"rare": {"price": 1.5}, "id": n} if n == count // 2 else {"id": n}
        topic.producer.produce(topic.name, json.dumps(rare).encode(), partition=0)
        if n % 10_000 == 0:
            topic.producer.flush()
    assert topic.producer.flush(60) == 0
    spec = topic.spec(None)
    ingest(spec, connections(), "run-1")
    rows = view(spec).table.scan().to_arrow()
    assert rows["id"].to_pylist() == [*range(count)]
    assert [(n, value) for n, value in enumerate(rows["rare"].to_pylist()) if value] == [(count // 2, {"price": 1.5})]


@pytest.mark.exhaustive
def test_narrow_columns_widen_when_a_record_needs_it(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    declared = "id int, price decimal(6,2), s struct<n: int>, l array<int>"
    topic.send({"id": 1, "price": 1.25, "s": {"n": 1}, "l": [1]})
    ingest(topic.spec(declared), connections(), "run-1")
    spec = topic.spec(None)
    topic.send({"id": 7, "price": 2.5, "s": {"n": 2}, "l": [2]})
    report = ingest(spec, connections(), "run-2")
    assert notes(report) == []
    topic.send({"id": 2**40})
    topic.send({"id": 3, "s": {"n": 2**41}})
    report = ingest(spec, connections(), "run-3")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert {(column, what) for column, what, _ in notes(report)} == {("id", "widened"), ("s.n", "widened")}
    assert see.table.schema().find_field("id").field_type == LongType()
    assert see.table.schema().find_field("price").field_type == DecimalType(6, 2)
    assert [(r["id"], r["s"] and r["s"]["n"]) for r in values(see)] == [(1, 1), (7, 2), (2**40, None), (3, 2**41)]
    assert letters(see) == []


def test_values_that_do_not_fit_are_dead_letters_by_default(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send({"id": 1, "price": 5})
    spec = topic.spec(None)
    ingest(spec, connections(), "run-1")
    topic.send({"id": 2, "price": 5.5})
    topic.send({"id": 3, "price": {"amount": 1}})
    topic.send({"id": 4, "new": "kept"})
    report = ingest(spec, connections(), "run-2")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert values(see) == [{"id": 1, "price": 5, "new": None}, {"id": 4, "price": None, "new": "kept"}]
    assert letters(see) == [(1, "wrong_type"), (2, "wrong_type")]
    assert report.total("decoded_singly") >= 2


@pytest.mark.exhaustive
def test_or_get_a_column_beside_it(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic()
    topic.send({"id": 1, "price": 5, "s": {"n": 1}, "tags": [1]})
    spec = topic.spec(None, on_incompatible="new_column")
    ingest(spec, connections(), "run-1")
    topic.send({"id": 2, "price": 5.5, "s": {"n": "one"}, "tags": ["a"]})
    topic.send({"id": 3, "price": 7, "s": {"n": 2}, "tags": [3]})
    report = ingest(spec, connections(), "run-2")
    topic.send({"id": 4, "price": 8.25})
    ingest(spec, connections(), "run-3")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert letters(see) == []
    assert [{k: v for k, v in row.items() if v is not None} for row in values(see)] == [
        {"id": 1, "price": 5, "s": {"n": 1, "n__v2": None}, "tags": [1]},
        {"id": 2, "price__v2": 5.5, "s": {"n": None, "n__v2": "one"}, "tags__v2": ["a"]},
        {"id": 3, "price": 7, "s": {"n": 2, "n__v2": None}, "tags": [3]},
        {"id": 4, "price__v2": 8.25},
    ]
    assert see.table.schema().find_field("price__v2").field_type == DoubleType()
    assert ("price__v2", "added", "") in notes(report)
    assert any(column == "price" and "price__v2" in why for column, what, why in notes(report) if what == "not changed")


@pytest.mark.exhaustive
def test_or_fail_the_run(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic()
    topic.send({"id": 1, "price": 5})
    spec = topic.spec(None, on_incompatible="fail")
    ingest(spec, connections(), "run-1")
    topic.send({"id": 2, "price": "five"})
    with pytest.raises(AuditFailedError, match=r"price"):
        ingest(spec, connections(), "run-2")
    declared = topic.spec("id bigint, price bigint", on_incompatible="fail")
    with pytest.raises(CheckFailedError, match=r"on_incompatible is fail.*partition 0 at offset 1.*price"):
        ingest(declared, connections(), "run-3")
    assert values(view(spec)) == [{"id": 1, "price": 5}]
    assert list(view(spec).table.metadata.refs) == ["main"]


def test_new_fields_are_refused_when_frozen_or_reported(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send({"id": 1, "s": {"a": 1}})
    ingest(topic.spec(None), connections(), "run-1")
    topic.send({"id": 2, "s": {"a": 2, "b": 3}, "more": 1})
    frozen = topic.spec(None, evolution="freeze")
    with pytest.raises(AuditFailedError, match=r"column s\.b: added .*column more: added|column more.*column s\.b"):
        ingest(frozen, connections(), "run-2")
    spec = topic.spec(None, evolution="ignore_new")
    report = ingest(spec, connections(), "run-3")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert values(see) == [{"id": 1, "s": {"a": 1}}, {"id": 2, "s": {"a": 2}}]
    assert sorted(notes(report)) == [
        ("more", "not added", "evolution is ignore_new"), ("s.b", "not added", "evolution is ignore_new"),
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_a_declared_schema_obeys_the_policy_too(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send({"id": 1, "more": 1})
    ingest(topic.spec("id bigint"), connections(), "run-1")
    topic.send({"id": 2, "more": 2})
    with pytest.raises(AuditFailedError, match="column more: added"):
        ingest(topic.spec("id bigint, more int", evolution="freeze"), connections(), "run-2")
    report = ingest(topic.spec("id bigint, more int", evolution="ignore_new"), connections(), "run-3")
    assert notes(report) == [("more", "not added", "evolution is ignore_new")]
    assert values(view(topic.spec())) == [{"id": 1}, {"id": 2}]
    topic.send({"id": 3, "more": 3})
    ingest(topic.spec("id bigint, more int"), connections(), "run-4")
    assert values(view(topic.spec()))[2] == {"id": 3, "more": 3}


@pytest.mark.exhaustive
@pytest.mark.in_contract
@pytest.mark.parametrize("schema", [None, exhaustive("id bigint, s struct<customer: string>, renamed string")])
def test_a_rename_keeps_the_field_and_takes_both_names(
    schema: str | None, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send({"id": 1, "s": {"cust": "a"}, "old": "x"})
    before = None if schema is None else "id bigint, s struct<cust: string>, old string"
    ingest(topic.spec(before), connections(), "run-1")
    see = view(topic.spec())
    ids = {name: see.table.schema().find_field(name).field_id for name in ("s.cust", "old")}
    spec = topic.spec(schema, renames={"s.cust": "customer", "old": "renamed"})
    topic.send({"id": 2, "s": {"cust": "b"}, "old": "y"})
    topic.send({"id": 3, "s": {"customer": "c"}, "renamed": "z"})
    report = ingest(spec, connections(), "run-2")
    see.assert_exactly_once(topic.ledger)
    assert [(r["id"], r["s"]["customer"], r["renamed"]) for r in values(see)] == [
        (1, "a", "x"), (2, "b", "y"), (3, "c", "z"),
    ]  # fmt: skip
    after = {name: see.table.schema().find_field(name).field_id for name in ("s.customer", "renamed")}
    assert list(after.values()) == list(ids.values())
    assert [what for _, what, _ in notes(report)] == ["renamed", "renamed"]
    topic.send({"id": 4, "s": {"cust": "d"}, "renamed": "w"})
    assert notes(ingest(spec, connections(), "run-3")) == []
    assert values(see)[3] == {"id": 4, "s": {"customer": "d"}, "renamed": "w"}


@pytest.mark.exhaustive
def test_times_are_inferred_where_that_is_asked_for(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send(
        {
            "id": 1,
            "at": "2026-01-02T03:04:05.5+05:30",
            "day": "2026-01-02",
            "local": "2026-01-02 03:04:05",
            "nano": "2026-01-02T03:04:05.123456789Z",
            "mixed": "2026-01-02",
            "s": {"at": "2026-01-02T00:00:00Z"},
        }
    )
    topic.send({"id": 2, "at": "2026-01-02T03:04:05Z", "mixed": "soon"})
    plain, inferring = topic.spec(None), topic.spec(None, infer_timestamps=True)
    inferring = type(inferring)(**{**vars(inferring), "table": f"{inferring.table}_inferred"})
    ingest(plain, connections(), "run-1")
    ingest(inferring, connections(), "run-2")
    assert values(view(plain))[0]["at"] == "2026-01-02T03:04:05.5+05:30"
    assert values(view(inferring)) == [
        {
            "id": 1,
            "at": datetime(2026, 1, 1, 21, 34, 5, 500_000, tzinfo=UTC),
            "day": date(2026, 1, 2),
            "local": datetime(2026, 1, 2, 3, 4, 5),
            "nano": "2026-01-02T03:04:05.123456789Z",
            "mixed": "2026-01-02",
            "s": {"at": datetime(2026, 1, 2, tzinfo=UTC)},
        },
        {
            "id": 2,
            "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "day": None,
            "local": None,
            "nano": None,
            "mixed": "soon",
            "s": None,
        },
    ]
    topic.send({"id": 3, "later": "2026-05-06"})
    topic.send({"id": 4, "at": "no time"})
    ingest(inferring, connections(), "run-3")
    assert values(view(inferring))[2]["later"] == date(2026, 5, 6)
    assert letters(view(inferring)) == [(3, "wrong_type")]


@pytest.mark.exhaustive
@pytest.mark.in_contract
def test_sql_of_the_error_gives_a_table_another_layout(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send({"id": 1, "day": "2026-01-02", "region": "eu"})
    declared = "id bigint, day date, region string"
    ingest(topic.spec(declared, partition_by=("month(day)",), sort_by=("id",)), connections(), "run-1")
    topic.send({"id": 2, "day": "2026-01-03", "region": "us"})
    spec = topic.spec(declared, partition_by=("day(day)", "region"), sort_by=("id desc",))
    with pytest.raises(ConfigurationError, match="differs from the settings") as raised:
        ingest(spec, connections(), "run-2")
    for statement in raised.value.remedy.rpartition("SQL: ")[2].rstrip(".").split("; "):
        connections().spark().sql(statement)
    ingest(spec, connections(), "run-3")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert [str(f.transform) for f in see.table.spec().fields if str(f.transform) != "void"] == ["day", "identity"]
    assert [(f.direction.value, f.source_id) for f in see.table.sort_order().fields] == [("desc", 1)]
    # The partition column may be renamed, and the table still takes records.
    topic.send({"id": 3, "day": "2026-01-04", "area": "apac"})
    renamed = topic.spec("id bigint, day date, area string", partition_by=("day(day)", "area"), sort_by=("id desc",),
                         renames={"region": "area"})  # fmt: skip
    ingest(renamed, connections(), "run-4")
    assert [(r["id"], r["area"]) for r in values(see)] == [(1, "eu"), (2, "us"), (3, "apac")]


@pytest.mark.exhaustive
def test_new_field_beside_renamed_nested_ones_is_added(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, staged = new_topic(), list[str]()

    def step(name: str) -> None:
        staged.append(name)
        assert staged.count("table staged") <= 2, "the batch is staged again and again"

    spec = topic.spec(None)
    nested = {"shop.id": 1, "id": 2, "ID": 3}
    topic.send({"s": nested, "l": [nested]})
    ingest(spec, connections(), "run-1")
    # What is empty is seen in every pass, and must not bring about another one.
    topic.send({"s": nested, "l": [nested], "new": 1, "empty": []})
    ingest(spec, connections(), "run-2", observer=Observer(step_done=step))
    columns = {"shop_id": 1, "id": 2, "ID__2": 3}
    first = {"s": columns, "l": [columns], "new": None}
    assert values(view(spec)) == [first, {**first, "new": 1}]


@pytest.mark.exhaustive
def test_names_that_are_data_stop_at_the_bound_and_go_into_a_map(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send({"id": 1, "scores": {"user_0": 0}})
    spec = topic.spec(None, max_columns=20)
    ingest(spec, connections(), "run-1")
    for user in range(1, 19):
        topic.send({"id": 1 + user, "scores": {f"user_{user}": user}})
    ingest(spec, connections(), "run-2")
    see = view(spec)
    before = see.table.schema()
    assert len(before.find_field("scores").field_type.fields) == 19  # type: ignore[union-attr]
    for user in range(100, 300):
        topic.send({"id": user, "scores": {f"user_{user}": user}})
    with pytest.raises(
        CheckFailedError, match=r"more than 20 columns; most of them are in scores, such as scores\.user_100"
    ) as no:
        ingest(spec, connections(), "run-3")
    (finding,) = no.value.findings
    assert (finding.check, finding.refuses) == ("schema_evolution", True)
    # Nothing was changed, neither rows nor columns.
    assert see.table.schema() == before
    assert list(see.table.metadata.refs) == ["main"]
    assert len(see.rows()) == 19
    ignoring = topic.spec(None, max_columns=20, evolution="ignore_new")
    report = ingest(ignoring, connections(), "run-4")
    reported = {column: what for column, what, _ in notes(report)}
    assert reported["scores.user_100"] == "not added"
    assert any("more" in why for column, _, why in notes(report) if column == "…")
    see.assert_exactly_once(topic.ledger)
    mapped = topic.spec("id bigint, scores map<string, bigint>")
    mapped = type(mapped)(**{**vars(mapped), "table": f"{mapped.table}_mapped"})
    ingest(mapped, connections(), "run-5")
    assert dict(values(view(mapped))[-1]["scores"]) == {"user_299": 299}


@pytest.mark.exhaustive
def test_a_table_is_not_made_with_more_columns_than_the_bound(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic()
    for user in range(30):
        topic.send({f"user_{user}": {"seen": True, "times": user}})
    spec = topic.spec(None, max_columns=20)
    with pytest.raises(AuditFailedError, match=r"columns.*more than 20 columns"):
        ingest(spec, connections(), "run-1")
    assert connections().catalog.table(spec.identifier) is None
    ingest(topic.spec(None, max_columns=60), connections(), "run-2")


def test_columns_of_refused_commit_stay_and_are_null(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send({"id": 1, "n": 1})
    ingest(topic.spec("id bigint, n int not null"), connections(), "run-1")
    spec = topic.spec(None, max_dead_letters=0)
    see = view(spec)
    head, rows = see.table.current_snapshot(), values(see)
    topic.send({"id": 2, "n": 2**40, "later": "x"})
    topic.send({"id": "two", "n": 3})
    with pytest.raises(CheckFailedError, match="1 dead letters"):
        ingest(spec, connections(), "run-2")
    schema = see.table.schema()
    assert schema.find_field("later").field_type == StringType()
    assert schema.find_field("n").field_type == LongType()
    # Readers see the rows of before, with one more column.
    assert see.table.current_snapshot() == head
    assert values(see) == [{**row, "later": None} for row in rows]
    # The columns can be taken back, and the next run gives the table what its records need, whatever is there.
    with see.table.update_schema() as update:
        update.delete_column("later")
    report = ingest(topic.spec(None), connections(), "run-3")
    see.assert_exactly_once(topic.ledger)
    assert values(see)[1] == {"id": 2, "n": 2**40, "later": "x"}
    assert ("later", "added") in {(column, what) for column, what, _ in notes(report)}


@pytest.mark.exhaustive
def test_column_dropped_by_hand_returns_with_its_records(
    new_topic: Callable[..., Topic], connections: Callable[[], Connections], view: Callable[[TopicTable], View]
) -> None:
    topic = new_topic()
    spec = topic.spec(None)
    topic.send({"id": 1, "mistake": "x", "place": {"town": "Ulm", "mistake": 1}})
    ingest(spec, connections(), "run-1")
    with connections().catalog.table(spec.identifier).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("mistake").delete_column("place.mistake")
    topic.send({"id": 2, "place": {"town": "Rom"}})
    ingest(spec, connections(), "run-2")
    assert "mistake" not in view(spec).rows()[0]
    assert {r["id"]: r["place"] for r in view(spec).rows()} == {1: {"town": "Ulm"}, 2: {"town": "Rom"}}
    topic.send({"id": 3, "mistake": "y"})
    ingest(spec, connections(), "run-3")
    assert {r["id"]: r["mistake"] for r in view(spec).rows()} == {1: None, 2: None, 3: "y"}
