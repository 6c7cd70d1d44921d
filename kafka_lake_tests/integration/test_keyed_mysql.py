"""Maxwell's and Canal's records on a real broker: what a model of the source holds is what the table holds."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import Envelope, TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]

SCHEMA = "a bigint, b string, price decimal(20,2), note string, at timestamp_ntz"
SQL_TYPES = {"a": -5, "b": 12, "price": 3, "note": 12, "at": 93}
KEY = ("a", "b")


@dataclass
class Source:
    """A table of MySQL's, and what it says of its changes.

    Args:
        kind: Who says it.
        moves: Whether updates change keys.
        rows: What it holds.
    """

    kind: Envelope
    moves: bool = False
    rows: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def reported(self, operation: str, row: dict[str, Any], old: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the record of a change."""
        if self.kind == "maxwell":
            message = {"database": "shop", "table": "t", "type": operation, "ts": 1, "xid": 2, "commit": True}
            shown = plain(row)
            return {**message, "data": shown, **({"old": plain(old)} if old else {})}
        return {
            "data": [{name: None if value is None else str(value) for name, value in row.items()}],
            "old": [{name: None if value is None else str(value) for name, value in old.items()}] if old else None,
            "type": operation.upper(),
            "database": "shop",
            "table": "t",
            "pkNames": list(KEY),
            "isDdl": False,
            "es": 1,
            "ts": 2,
            "id": 3,
            "sql": "",
            "sqlType": SQL_TYPES,
            "mysqlType": {"a": "bigint"},
        }

    def happen(self, chance: random.Random) -> dict[str, Any]:
        """Change a row by chance, and return the record of it."""
        key = chance.randrange(8), chance.choice("xyz")
        row = self.rows.get(key)
        if row is None:
            made = {**dict(zip(KEY, key, strict=True)), **self._values(chance)}
            self.rows[key] = made
            return self.reported("insert", made)
        if chance.random() < 0.4:
            return self.reported("delete", self.rows.pop(key))
        new = {**row, **self._values(chance)}
        if self.moves and (free := [(a, key[1]) for a in range(8) if (a, key[1]) not in self.rows]):
            new["a"] = chance.choice(free)[0]
            del self.rows[key]
        self.rows[new["a"], new["b"]] = new
        return self.reported("update", new, {name: value for name, value in row.items() if new[name] != value})

    @staticmethod
    def _values(chance: random.Random) -> dict[str, Any]:
        return {
            "price": chance.choice([None, Decimal(chance.randrange(10**6)) / 100]),
            "note": chance.choice([None, "", "7", 'ß "\n', "null"]),
            "at": f"2026-11-24 10:00:{chance.randrange(60):02d}",
        }


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON has it, decimals as numbers."""
    return {name: float(value) if isinstance(value, Decimal) else value for name, value in row.items()}


def partition(key: tuple[int, str]) -> int:
    return key[0] % 2


def key_of(kind: Envelope, row: dict[str, Any]) -> bytes | None:
    if kind == "canal":
        return None
    return json.dumps({"database": "shop", "table": "t", **{f"pk.{name}": row[name] for name in KEY}}).encode()


@pytest.mark.parametrize(("kind", "partitions"), [("maxwell", 2), exhaustive("canal", 1)])
def test_mysql_upsert_table_matches_the_source(
    kind: Envelope, partitions: int, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    # Of a key that changes, the row may have come from another partition.
    source, chance = Source(kind, moves=partitions == 1), random.Random(20_261_124)
    topic = new_topic(partitions)
    spec = topic.spec(SCHEMA, write="upsert", envelope=kind)
    for number in range(3):
        for _ in range(40):
            record = source.happen(chance)
            row = record["data"][0] if kind == "canal" else record["data"]
            topic.send(record, partition((int(row["a"]), row["b"])) % partitions, key=key_of(kind, row))
        ingest(spec, connections(), f"run-{number}")
        found = {(row["a"], row["b"]): {name: row[name] for name in SQL_TYPES} for row in view(spec).rows()}
        wanted = {key: {**row, "at": row["at"]} for key, row in source.rows.items()}
        assert {key: {**row, "at": f"{row['at']:%Y-%m-%d %H:%M:%S}"} for key, row in found.items()} == wanted
    assert view(spec).dead_letters() == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["maxwell", "canal"])
def test_impossible_change_is_a_dead_letter(
    kind: Envelope, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, source = new_topic(2), Source(kind)
    spec = topic.spec(None, write="upsert", envelope=kind, on_truncate="ignore" if kind == "canal" else "fail")
    row = {"a": 1, "b": "x", "note": "n"}
    ddl = {"type": "table-alter", "sql": "alter"} if kind == "maxwell" else {"type": "ALTER", "isDdl": True}
    topic.send(ddl)
    for record in (
        source.reported("insert", row),
        source.reported("insert", {**row, "a": 2}),
        source.reported("update", {**row, "a": 3}, {"a": 1}),
    ):
        topic.send(record, key=key_of(kind, row))
    expected = [(0, "not_a_change"), (3, "key_changed")]
    if kind == "canal":
        several = source.reported("insert", row)
        topic.send({**several, "data": several["data"] * 2})
        topic.send({"type": "TRUNCATE", "isDdl": True, "data": None})
        expected.append((4, "several_rows"))
    ingest(spec, connections(), "run-1")
    assert sorted((letter["offset"], letter["error_class"]) for letter in view(spec).dead_letters()) == expected
    assert sorted((found["a"], found["b"], found["note"]) for found in view(spec).rows()) == [
        (1, "x", "n"),
        (2, "x", "n"),
    ]
    # Only Kafka's offset tells the order, and those of two partitions can't be compared.
    topic.send(source.reported("update", {**row, "note": "m"}, {"note": "n"}), 1, key=key_of(kind, row))
    with pytest.raises(KafkaLakeError, match=r"another change came from partition 0.*order_by"):
        ingest(spec, connections(), "run-2")
    view(spec).assert_no_branches()
    if kind == "canal":
        topic.send({"type": "TRUNCATE", "isDdl": True, "data": None})
        stops = topic.spec(None, write="upsert", envelope=kind)
        with pytest.raises(KafkaLakeError, match=r"1 records truncate the table, the first in partition 0 at offset"):
            ingest(stops, connections(), "run-3")


@pytest.mark.exhaustive
def test_columns_of_the_row_may_order_changes(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic, source = new_topic(2), Source("maxwell")
    spec = topic.spec("a bigint, v bigint", write="upsert", envelope="maxwell", key=("a",), order_by=("v",))
    for number, (v, where) in enumerate([(2, 0), (1, 1), (3, 1)]):
        topic.send(source.reported("update" if number else "insert", {"a": 1, "v": v}), where)
    topic.send(source.reported("insert", {"a": 2, "v": 1}), 0)
    topic.send(source.reported("delete", {"a": 2, "v": 2}), 1)
    ingest(spec, connections(), "run-1")
    assert [(row["a"], row["v"]) for row in view(spec).rows()] == [(1, 3)]
    topic.send(source.reported("update", {"a": 2, "v": 1}), 1)
    topic.send(source.reported("update", {"a": 4, "v": 4}, {"a": 1}), 0)
    topic.send(source.reported("insert", {"a": 5, "v": 6}), 0)
    topic.send(source.reported("update", {"a": 6, "v": 5}, {"a": 5}), 1)
    ingest(spec, connections(), "run-2")
    assert sorted((row["a"], row["v"]) for row in view(spec).rows()) == [(4, 4), (5, 6), (6, 5)]


@pytest.mark.parametrize("kind", ["maxwell", exhaustive("canal")])
def test_records_without_key_stop_the_first_run(
    kind: Envelope, new_topic: NewTopic, connections: NewConnections
) -> None:
    topic, source = new_topic(1), Source(kind)
    topic.send({**source.reported("insert", {"a": 1}), "pkNames": None})
    with pytest.raises(
        KafkaLakeError, match=r"None of the first 1 records names the key .*or name the columns with key:"
    ):
        ingest(topic.spec(None, write="upsert", envelope=kind), connections(), "run-1")
