"""Columns of any name: as key, order, partition, order of files, in rules, conditions, a history and a compaction."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kafka_lake.ingest.run import ingest
from kafka_lake.maintenance.maintain import maintain
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable, derived_table_name
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

NAMES = ("a key", 'q"uote', "it's (so), say", "shop.id", "tick`ed", "order", "größe [数]", "1st {%s}")


def in_sql(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["upsert", exhaustive("history")])
def test_upsert_table_has_columns_of_any_name(
    mode: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    key, other, order, value, text, gone, more, most = NAMES
    write: dict[str, Any] = {"mode": mode, "key": [key, other], "order_by": [order]}
    write["delete_when"] = f"{in_sql(gone)} = 1"
    if mode == "history":
        write["track"] = [value, text]
    document = KafkaTopic(
        topic=topic.name,
        table={
            "name": f"it.{derived_table_name(topic.name)}",
            "columns": ", ".join(f"{in_sql(name)} bigint" for name in NAMES),
            "write": write,
            "partition_by": [in_sql(key), f"bucket(4, {in_sql(other)})"],
            "sort_by": [f"{in_sql(text)} desc", key],
            "rules": [
                {"range": {"column": more, "max": 10}, "name": "more"},
                {"expression": f"{in_sql(most)} < 10", "name": "most"},
            ],
        },
    )
    spec = document.topic_table()

    def send(**values: int) -> None:
        topic.send(json.dumps({**dict.fromkeys(NAMES, 0), **values}).encode())

    send(**{key: 1, other: 1, order: 1, value: 1})
    send(**{key: 2, other: 1, order: 1, value: 2})
    send(**{key: 3, other: 1, order: 1, more: 11})
    send(**{key: 3, other: 2, order: 1, most: 11})
    ingest(spec, connections(), "run-1")
    send(**{key: 1, other: 1, order: 3, value: 3})
    send(**{key: 1, other: 1, order: 2, value: 9})
    send(**{key: 2, other: 1, order: 2, gone: 1})
    ingest(spec, connections(), "run-2")
    is_history = mode == "history"

    def current(*names: str) -> list[Any]:
        found = [row for row in view(spec).rows() if not is_history or row["valid_to"] is None]
        return [tuple(row[name] for name in names) for row in found]

    assert current(key, other, order, value) == [(1, 1, 3, 3)]
    assert sorted(row["error_class"] for row in view(spec).dead_letters()) == ["rule:more", "rule:most"]
    if is_history:
        versions = sorted((row[key], row[value], row["valid_from"], row["valid_to"]) for row in view(spec).rows())
        assert versions == [(1, 1, 1, 2), (1, 3, 3, None), (1, 9, 2, 3), (2, 0, 2, 2), (2, 2, 1, 2)]
    assert maintain(spec, connections(), everything=True)
    assert current(value) == [(3,)]


@pytest.mark.exhaustive
def test_key_and_order_are_columns_of_fields_with_other_names(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec(None, write="upsert", key=("shop_id",), order_by=("at_s",))
    for id_, at, value in ((1, 2, "newer"), (1, 1, "older"), (2, 1, "gone")):
        topic.send({"shop.id": id_, "at`s": at, "v": value})
    ingest(spec, connections(), "run-1")
    assert sorted((row["shop_id"], row["at_s"], row["v"]) for row in view(spec).rows()) == [
        (1, 2, "newer"),
        (2, 1, "gone"),
    ]
    topic.send(None, key=b"2")
    ingest(spec, connections(), "run-2")
    assert [row["shop_id"] for row in view(spec).rows()] == [1]
    assert view(spec).dead_letters() == []
