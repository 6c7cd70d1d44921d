"""Conditions of the settings in DuckDB's SQL, and what fresh reads refuse."""

from dataclasses import replace
from typing import Any

import duckdb
import pytest

from kafka_lake.errors import ConfigurationError, FreshReadError
from kafka_lake.fresh.conditions import condition_for, condition_of
from kafka_lake.fresh.decode import refuse_unsupported
from kafka_lake.routing.by_value import find_topic
from kafka_lake.spec.rule import RuleEntry
from kafka_lake.spec.topic_table import Route, RouteBy, TopicTable, When

OTHER = TopicTable("t", table="other")


@pytest.mark.parametrize(
    ("sql", "rows"),
    [("v = 'gone'", [1]), ("n BETWEEN 2 AND 3 OR `v` IS NULL", [2, 3]), ("NOT lower(v) IN ('x', 'gone')", [3])],
)
def test_condition_of_literals_selects_the_same_rows(sql: str, rows: list[int]) -> None:
    table = "(VALUES (1, 'gone'), (2, NULL), (3, 'a')) AS t(n, v)"
    found = duckdb.sql(f"SELECT n FROM {table} WHERE {condition_of(sql, 'delete_when:')} ORDER BY n").fetchall()
    assert [n for (n,) in found] == rows


@pytest.mark.parametrize(
    "sql",
    ["cast(v AS int) = 1", "v RLIKE 'a'", r"v LIKE 'a\\_'", "date_format(at, 'y') = '1'", "v =", "n / 2 = 1"],
)
def test_condition_that_two_engines_may_read_differently_is_refused(sql: str) -> None:
    with pytest.raises(FreshReadError, match=r"delete_when: has .*compare columns and literals only"):
        condition_of(sql, "delete_when:")


def test_table_without_condition_takes_what_no_other_table_takes() -> None:
    topic = TopicTable("t", routes=(Route(When(field="a.b", values=("it's",)), OTHER),))
    taken, rest = condition_for(topic, OTHER), condition_for(topic, topic)
    values = (
        """SELECT v::BLOB AS value FROM (VALUES ('{"a": {"b": "it''s"}}'), ('{"a": {}}'), ('{"a"'), (NULL)) AS t(v)"""
    )
    query = f"SELECT {taken}, {rest} FROM ({values})"
    assert duckdb.sql(query).fetchall() == [(True, False), (False, True), (False, True), (False, True)]


@pytest.mark.parametrize(
    ("topic", "table", "why"),
    [
        (TopicTable("t", routes=(Route(When(schema=("a",)), OTHER),)), OTHER, "uses schema:"),
        (TopicTable("t", routes=(Route(When(sql="length(key) > 1"), OTHER),)), OTHER, "where: of table lake.other has"),
        (TopicTable("t", route_by=RouteBy("field", "f", OTHER)), None, "whose value has no table"),
    ],
)
def test_condition_beyond_a_fresh_read_is_refused(topic: TopicTable, table: TopicTable | None, why: str) -> None:
    with pytest.raises(FreshReadError, match=why):
        condition_for(topic, table or topic)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"transform": "a:b"}, "transform:, which needs Spark"),
        ({"write": "upsert", "snapshot": "replace"}, "on_snapshot: replace"),
        ({"write": "upsert", "topics": ("t", "u")}, "several topics"),
        ({"rules": (RuleEntry(name="one", expression="id > 1"),)}, r"rules that need Spark \(one\)"),
    ],
)
def test_setting_beyond_a_fresh_read_is_named(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(FreshReadError, match=f"Table lake.t has {why}"):
        refuse_unsupported(TopicTable("t", **settings))


def test_topic_is_found_by_any_of_its_tables() -> None:
    by_value = TopicTable("v", route_by=RouteBy("field", "f", OTHER, table="v_{value}"))
    topics = [TopicTable("t", routes=(Route(When(field="f", values=("a",)), OTHER),)), by_value]
    found = [find_topic(topics, name).topic for name in ("t", "lake.t", "other", "lake.v_new")]
    assert found == ["t", "t", "t", "v"]
    with pytest.raises(
        ConfigurationError, match=r"No topic has a table x in this project; the tables are: lake.other, lake.t, lake.v"
    ):
        find_topic(topics, "x")


def test_topics_that_fill_one_table_count_as_one() -> None:
    both = TopicTable("eu", table="orders", topics=("eu", "us"))
    assert find_topic(both.each_topic, "lake.orders").identifier == ("lake", "orders")
    assert find_topic(both.each_topic, "us").topic == "us"


def test_name_of_a_topic_goes_before_that_of_a_table() -> None:
    topics = [TopicTable("orders", table="raw"), TopicTable("events", table="orders")]
    assert find_topic(topics, "orders").topic == "orders"


def test_what_several_have_is_refused_with_names_to_choose() -> None:
    clusters = [TopicTable("t", cluster=name, table=name) for name in ("eu", "us")]
    with pytest.raises(ConfigurationError, match="Name one of them: eu/t or us/t"):
        find_topic(clusters, "t")
    twice = replace(OTHER, namespace="a", table="t"), replace(OTHER, namespace="b", table="t")
    topic = TopicTable("x", routes=tuple(Route(When(field="f", values=(to.namespace,)), to) for to in twice))
    with pytest.raises(ConfigurationError, match=r"name of several tables[^N]*Name one of them: a.t or b.t"):
        find_topic([topic], "t")
