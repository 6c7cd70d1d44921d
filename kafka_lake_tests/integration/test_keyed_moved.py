"""Updates that change the key of a row in one record: the row of the old key goes, by the order of changes."""

from collections.abc import Callable
from typing import Any

import pytest

from kafka_lake.ingest.published import examine
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_keyed import rows

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


def change(op: str, lsn: int, after: Any, before: Any = None) -> dict[str, Any]:
    source = {"connector": "postgresql", "lsn": lsn, "sequence": f'["{lsn}","{lsn}"]', "ts_ms": 1_000 * lsn}
    return {"before": before, "after": after, "source": source, "op": op}


def row(a: int, v: str) -> dict[str, Any]:
    return {"a": a, "v": v}


@pytest.mark.parametrize("write", ["upsert", exhaustive("history")])
def test_key_changed_in_one_update_moves_the_row(
    write: Any, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(None, write=write, envelope="debezium", key=("a",))

    def current() -> list[Any]:
        found = [row for row in view(spec).rows() if write == "upsert" or row["valid_to"] is None]
        return sorted((row["a"], row["v"]) for row in found)

    for number in (1, 3, 5, 7):
        topic.send(change("c", number, row(number, "inserted")), number % 2)
    # In the batch that brings the row.
    topic.send(change("u", 11, row(2, "moved"), row(1, "inserted")))
    ingest(spec, connections(), "run-1")
    assert current() == [(2, "moved"), (3, "inserted"), (5, "inserted"), (7, "inserted")]
    # In a later one, from another partition; to a key that was there; twice; and only the value.
    topic.send(change("u", 12, row(4, "moved"), row(3, "inserted")), 0)
    topic.send(change("d", 20, None, row(5, "inserted")), 1)
    topic.send(change("u", 21, row(5, "moved"), row(4, "moved")), 0)
    topic.send(change("u", 22, row(2, "changed"), row(2, "moved")), 1)
    # What is read late deletes no newer row.
    topic.send(change("u", 2, row(9, "late"), row(7, "inserted")), 1)
    # Nothing tells the key before.
    missing = topic.send(change("u", 30, row(8, "unknown")), 1).offset
    null = topic.send(change("u", 31, row(8, "unknown"), {"a": None, "v": None}), 1).offset
    ingest(spec, connections(), "run-2")
    expected = [(2, "changed"), (5, "moved"), (7, "inserted"), (9, "late")]
    assert current() == expected
    letters = {
        letter["offset"]: (letter["error_class"], letter["error_message"]) for letter in view(spec).dead_letters()
    }
    assert {offset: found for offset, (found, _) in letters.items()} == {missing: "no_old_key", null: "no_old_key"}
    assert "REPLICA IDENTITY FULL" in letters[missing][1]
    assert "in the key before the update: a." in letters[null][1]
    assert all(result.passed for result in examine(spec, connections().catalog, connections().cluster))
    if write == "upsert":
        return
    ended = {(item["a"], item["v"]): item["valid_to"].timestamp() for item in view(spec).rows() if item["valid_to"]}
    assert {key: ended[key] for key in ((1, "inserted"), (3, "inserted"), (4, "moved"))} == {
        (1, "inserted"): 11, (3, "inserted"): 12, (4, "moved"): 21,
    }  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("deletes", ["soft", "ignore"])
def test_moved_row_follows_the_deletes_setting(
    deletes: Any, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec(None, write="upsert", envelope="debezium", key=("a",), deletes=deletes)
    topic.send(change("c", 1, row(1, "inserted")))
    ingest(spec, connections(), "run-1")
    topic.send(change("u", 2, row(2, "moved"), row(1, "inserted")))
    ingest(spec, connections(), "run-2")
    assert rows(view(spec), "a", "v") == [(1, "inserted"), (2, "moved")]
    if deletes == "soft":
        assert rows(view(spec), "a", "_is_deleted") == [(1, True), (2, False)]
