"""Keyed tables on real servers: what a source holds is what the table holds, whatever came in which order and when."""

import json
import random
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from kafka_lake.catalog.positions import head_of
from kafka_lake.cdc.task.unavailable import PLACEHOLDER
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest, replay, replay_dead_letters, reset
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_exactly_once import killed_at  # noqa: F401

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


def rows(view: View, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in view.rows())


def facts(report: Any) -> dict[str, Any]:
    return next(f.facts for f in report.commits[-1].findings if f.check == "row_count")


@pytest.mark.exhaustive
def test_a_row_for_each_key_as_its_newest_record_left_it(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(None, write="upsert")
    topic.send({"id": 1, "v": "a"}, 0, key=b"one")
    topic.send({"id": 2, "v": "b"}, 1, key=b"two")
    topic.send({"id": 1, "v": "c"}, 0, key=b"one")
    ingest(spec, connections(), "run-1")
    assert rows(view(spec), "id", "v") == [(1, "c"), (2, "b")]

    topic.send({"id": 2, "v": "d", "more": 1.5}, 1, key=b"two")
    topic.send(None, 0, key=b"one")
    topic.send({"id": 3, "v": "e"}, 0, key=b"three")
    report = ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "v", "more") == [(2, "d", 1.5), (3, "e", None)]
    reported = facts(report)
    assert (
        reported["rows_inserted"],
        reported["rows_updated"],
        reported["rows_deleted"],
        reported["keys_ignored"],
    ) == (1, 1, 1, 0)

    topic.send(None, 0, key=b"three")
    topic.send({"id": 3, "v": "f"}, 0, key=b"three")
    topic.send(None, 1, key=b"never there")
    ingest(spec, connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(2, "d"), (3, "f")]
    assert ingest(spec, connections(), "run-4").commits == []


def _send_at_once(topic: Topic, records: dict[int, int], id_of: Callable[[int], Any]) -> None:
    for n, v in records.items():
        value = {"id": id_of(n), "day": str(date(1960, 1, 1) + timedelta(n)), "v": v}
        topic.producer.produce(topic.name, json.dumps(value), b"\xff%d" % n, 0)
    assert topic.producer.flush(20) == 0


@pytest.mark.parametrize(
    ("key", "kind", "id_of"),
    [
        (("id",), "string", lambda n: f"it's \\ {n} Ä€😀"),
        exhaustive(("id",), "string", lambda n: f"{n}" * 3_000),
        exhaustive(("id",), "decimal(20,2)", lambda n: n + 0.25),
        exhaustive(("id", "day"), "int", lambda n: n % 100),
        exhaustive((), "string", str),
    ],
)
def test_a_few_keys_of_a_larger_table(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    key: tuple[str, ...],
    kind: str,
    id_of: Callable[[int], Any],
) -> None:
    """The keys are listed, or filtered by their hashes: no row of theirs may be missed."""
    topic = new_topic()
    spec = topic.spec(f"id {kind}, day date, v int", write="upsert", key=key)
    expected = dict.fromkeys(range(3_000), 0)
    _send_at_once(topic, expected, id_of)
    ingest(spec, connections(), "run-1")
    for run, count in (("run-2", 1_200), ("run-3", 400), ("run-4", 100)):
        changes = {n: n for n in random.Random(run).sample(range(3_400), count)}
        _send_at_once(topic, changes, id_of)
        reported = facts(ingest(spec, connections(), run))
        assert reported["rows_inserted"] == len(changes.keys() - expected.keys())
        assert reported["rows_updated"] == len(changes.keys() & expected.keys())
        expected |= changes
    found = {(row["day"] - date(1960, 1, 1)).days: row["v"] for row in view(spec).rows()}
    assert found == expected
    assert len(view(spec).rows()) == len(expected)


def test_the_order_is_the_columns_and_a_delete_is_remembered(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(3)
    spec = topic.spec("id bigint, at bigint, v string", write="upsert", key=("id",), order_by=("at",),
                      delete_when="v = 'gone'")  # fmt: skip
    topic.send({"id": 1, "at": 5, "v": "new"}, 0)
    topic.send({"id": 1, "at": 3, "v": "old"}, 1)
    topic.send({"id": 2, "at": 9, "v": "gone"}, 2)
    topic.send({"id": 2, "at": 8, "v": "late in the batch"}, 1)
    ingest(spec, connections(), "run-1")
    assert rows(view(spec), "id", "v") == [(1, "new")]
    topic.send({"id": 2, "at": 7, "v": "late"}, 0)
    topic.send({"id": 1, "at": 4, "v": "late"}, 2)
    report = ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "v") == [(1, "new")]
    assert facts(report)["keys_later_deleted"] == 1
    topic.send({"id": 2, "at": 10, "v": "back"}, 0)
    topic.send({"id": 3, "at": None, "v": "no order"}, 0)
    topic.send({"id": None, "at": 1, "v": "no key"}, 0)
    report = ingest(spec, connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(1, "new"), (2, "back")]
    assert {(c["error_class"]) for c in view(spec).dead_letters()} == {"no_order", "no_key"}


@pytest.mark.exhaustive
def test_partial_change_leaves_missing_columns(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic()
    spec = topic.spec("id bigint, a string, b string, n int", write="upsert", key=("id",),
                      ignore_null_updates=("a", "n"))  # fmt: skip
    for row in (
        {"id": 1, "a": "a1", "b": "b1", "n": 1},
        {"id": 2, "a": "a2", "b": "b2", "n": 2},
        {"id": 2, "b": "b22", "n": 22},
        {"id": 3, "b": "b3"},
        {"id": 4, "a": "a4", "b": "b4", "n": 4},
    ):
        topic.send(row)
    ingest(spec, connections(), "run-1")
    assert rows(view(spec), "id", "a", "b", "n") == [
        (1, "a1", "b1", 1), (2, "a2", "b22", 22), (3, None, "b3", None), (4, "a4", "b4", 4),
    ]  # fmt: skip
    for row in (
        {"id": 1, "b": None, "n": 11},
        {"id": 2, "b": "newer"},
        {"id": 3, "a": "a3", "b": "older"},
        {"id": 3, "b": "b33", "n": 33},
    ):
        topic.send(row)
    topic.send(None, key=b'{"id": 4}')
    topic.send({"id": 4, "n": 44})
    ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "a", "b", "n") == [
        (1, "a1", None, 11), (2, "a2", "newer", 22), (3, "a3", "b33", 33), (4, None, None, 44),
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_partial_soft_delete_leaves_other_columns(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """However the records are cut into batches."""
    topic = new_topic()
    spec = topic.spec("id bigint, a string, b string", write="upsert", key=("id",), deletes="soft",
                      ignore_null_updates=("a",), delete_when="b = 'gone'")  # fmt: skip
    by_batch = replace(spec, table=f"{topic.table}_by_batch")
    for number, batch in enumerate((
        [{"id": 1, "a": "a1", "b": "b1"}, {"id": 2, "a": "a2", "b": "old"}, {"id": 3, "b": "b3"}],
        [{"id": 1, "b": "gone"}, {"id": 2, "b": "b2"}, {"id": 4, "b": "gone"}],
    )):  # fmt: skip
        for row in batch:
            topic.send(row)
        ingest(by_batch, connections(), f"run-{number}")
    topic.send(None, key=b"3")
    topic.send(None, key=b"5")
    for table in (by_batch, spec):
        ingest(table, connections(), "run-last")
        assert rows(view(table), "id", "a", "b", "_is_deleted") == [
            (1, "a1", "gone", True), (2, "a2", "b2", False), (3, None, "b3", True), (4, None, "gone", True),
        ]  # fmt: skip


def test_a_key_of_two_partitions_without_an_order_stops_the_run(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec("v string", write="upsert")
    topic.send({"v": "a"}, 0, key=b"one")
    ingest(spec, connections(), "run-1")
    topic.send({"v": "b"}, 1, key=b"one")
    with pytest.raises(
        KafkaLakeError, match=r"partition 1 at offset 0; another change came from partition 0.*order_by"
    ):
        ingest(spec, connections(), "run-2")
    assert rows(view(spec), "v") == [("a",)]
    view(spec).assert_no_branches()


@pytest.mark.exhaustive
def test_a_key_may_be_of_any_type_that_has_an_order(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    columns = "at timestamp, there timestamp_ntz, day date, price decimal(38,9), name string, raw binary, much double"
    names = ("at", "there", "day", "price", "name", "raw", "much")
    keys: list[tuple[Any, ...]] = [
        ("2026-10-25T00:30:00Z", "2026-10-25T02:30:00", "2026-10-25", "0.000000001", "ß\u0000\"'", "AP8=", 1.5),
        ("2026-10-25T01:30:00Z", "2026-10-25T02:30:00.000001", "1582-10-10", "-1E-9", "\U0001f355", "", -0.0),
        ("1883-11-18T00:00:00.123456Z", "0001-01-01T00:00:00", "9999-12-31", "9" * 29, "", "/w==", 3e-320),
    ]  # fmt: skip
    topic = new_topic(1)
    spec = topic.spec(f"{columns}, n bigint", write="upsert", key=names)
    for number in range(2):
        for key in keys:
            topic.send({**dict(zip(names, key, strict=True)), "n": number})
        report = ingest(spec, connections(), f"run-{number}")
        assert view(spec).dead_letters() == []
        assert [row["n"] for row in view(spec).rows()] == [number] * 3
    assert facts(report)["rows_updated"] == 3
    found = {(r["at"].isoformat(), str(r["there"]), str(r["day"]), str(r["price"])) for r in view(spec).rows()}
    assert ("1883-11-18T00:00:00.123456+00:00", "0001-01-01 00:00:00", "9999-12-31") in {row[:3] for row in found}


@pytest.mark.exhaustive
def test_a_key_may_get_more_fields_and_wider_ones(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    def key(number: int) -> bytes:
        return json.dumps({"id": number}).encode()

    topic = new_topic()
    spec = topic.spec("at int, v string", write="upsert", key_format="json", key_schema="id int", order_by=("at",))
    for number in (1, 2, 3):
        topic.send({"at": 5, "v": "a"}, key=key(number))
    topic.send(None, key=key(1))
    ingest(spec, connections(), "run-1")
    wide = replace(spec, key_schema="id bigint, region string", schema="at bigint, v string")
    topic.send({"at": 4, "v": "late"}, key=key(1))
    topic.send({"at": 6, "v": "new"}, key=key(2))
    topic.send(None, key=key(3))
    topic.send({"at": 1, "v": "long"}, key=key(2**40))
    ingest(wide, connections(), "run-2")
    assert rows(view(wide), "v") == [("long",), ("new",)]
    assert view(wide).dead_letters() == []
    topic.send(None, key=key(2**40))
    topic.send({"at": 4, "v": "late"}, key=key(3))
    ingest(wide, connections(), "run-3")
    assert rows(view(wide), "v") == [("new",)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("write", ["upsert", exhaustive("history")])
def test_record_from_before_a_tombstone_stays_deleted(
    write: Any, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """As a record that was a dead letter, whether or not there was a row when the tombstone came."""
    topic = new_topic()
    spec = topic.spec("id bigint, at bigint, v string", write=write, key=("id",), order_by=("at",), max_record_bytes=60)

    def current(*names: str) -> list[Any]:
        rows_ = [row for row in view(spec).rows() if write == "upsert" or row["valid_to"] is None]
        return sorted(tuple(row[name] for name in names) for row in rows_)

    topic.send({"id": 1, "at": 3, "v": "a"})
    for number in (1, 3, 2):
        topic.send({"id": number, "at": 7, "v": "x" * 60})
    topic.send(None, key=b"1")
    topic.send(None, key=b"2")
    ingest(spec, connections(), "run-1")
    assert (len(view(spec).dead_letters()), current("id")) == (3, [])
    longer = replace(spec, max_record_bytes=None)
    replay(longer, connections(), "again", ReplayRange("0:1", "0:4"))
    assert current("id") == [(3,)]
    topic.send({"id": 1, "at": 8, "v": "back"})
    ingest(longer, connections(), "run-2")
    assert current("id", "at") == [(1, 8), (3, 7)]


@pytest.mark.exhaustive
def test_tombstone_is_newer_than_earlier_records_of_partition(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """However the records are cut into batches: once each by itself, once all at once."""
    history = [
        ("late before it", [{"at": 5}, {"at": 3}, None], False),
        ("late behind it", [{"at": 100}, None, {"at": 50}], False),
        ("new behind it", [{"at": 100}, None, {"at": 150}], True),
        ("alone", [None, {"at": 1}], True),
        ("of two columns", [{"at": 1, "n": 1}, {"at": 1, "n": 2}, None], False),
    ]
    ends = {name for name, _, there in history if there}
    for cut in (True, False):
        topic = new_topic(1)
        spec = topic.spec("id string, at bigint, n bigint", write="upsert", key=("id",), order_by=("at", "n"))
        for step in range(3):
            for name, records, _ in history:
                for record in records[step : step + 1]:
                    value = record and {"id": name, "n": 0, **record}
                    topic.send(value, key=json.dumps({"id": name}).encode())
            if cut:
                ingest(spec, connections(), f"run-{step}")
        ingest(spec, connections(), "run-last")
        assert view(spec).dead_letters() == []
        assert {row["id"] for row in view(spec).rows()} == ends, "each by itself" if cut else "all at once"


@pytest.mark.parametrize("write", ["upsert", exhaustive("history")])
@pytest.mark.parametrize("how", ["by offset", exhaustive("of dead letters")])
def test_dead_letters_return_after_rollback_of_replay(
    write: Any, how: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("id bigint, v string", write=write, key=("id",), max_record_bytes=60)
    topic.send({"id": 1, "v": "a"})
    topic.send({"id": 2, "v": "x" * 60})
    ingest(spec, connections(), "run-1")
    good, longer = head_of(view(spec).table), replace(spec, max_record_bytes=None)

    def again(run_id: str) -> None:
        if how == "by offset":
            replay(longer, connections(), run_id, ReplayRange("0:1", "0:2"))
        else:
            replay_dead_letters(longer, connections(), run_id)
        assert (view(spec).ids(), view(spec).dead_letters()) == ([1, 2], [])

    again("again")
    connections().spark().sql(view(spec).call("rollback_to_snapshot", snapshot_id=f"{good}")).collect()
    ingest(longer, connections(), "run-2")
    assert [row["offset"] for row in view(spec).dead_letters()] == [1]
    again("and again")
    ingest(longer, connections(), "run-3")
    assert view(spec).dead_letters() == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("others", [False, True])
def test_change_completed_after_killed_run_leaves_dead_letters(
    others: bool,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic, text = new_topic(2), PLACEHOLDER
    spec = topic.spec("id int, n int, big string", write="upsert", envelope="debezium")
    topic.send(debezium("c", 5, {"id": 9, "n": 0, "big": "a"}, 1), key=b'{"id": 9}')
    ingest(spec, connections(), "run-0")
    topic.send(debezium("u", 20, {"id": 1, "n": 2, "big": text}, 2), key=b'{"id": 1}')
    topic.send(debezium("u", 30, {"id": 2, "n": 3, "big": text}, 3), key=b'{"id": 2}')
    killed_at(spec, "dead letters published")
    assert sorted(row["offset"] for row in view(spec).dead_letters()) == [1, 2]
    # What was before it in the source's log comes through another partition by the next run.
    topic.send(debezium("c", 10, {"id": 1, "n": 1, "big": "told"}, 1), 1, key=b'{"id": 1}')
    if not others:
        topic.send(debezium("c", 25, {"id": 2, "n": 1, "big": "told too"}, 1), 1, key=b'{"id": 2}')
    ingest(spec, connections(), "run-1")
    assert rows(view(spec), "id", "n", "big") == [
        (1, 2, "told"), *([] if others else [(2, 3, "told too")]), (9, 0, "a"),
    ]  # fmt: skip
    assert [row["offset"] for row in view(spec).dead_letters()] == ([2] if others else [])
    view(spec).assert_no_branches()


@pytest.mark.exhaustive
def test_debezium_columns_keep_values_not_sent(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    """In each form that the connector of PostgreSQL has for it."""
    topic, text = new_topic(1), "__debezium_unavailable_value"
    spec = topic.spec(
        "id bigint, _changed_by string, ints array<int>, longs array<bigint>, texts array<string>, ids array<string>, "
        "store string, pairs map<string,string>, raw binary, doc string, columns int, days array<date>, "
        "shop struct<a: string>",
        write="upsert",
        envelope="debezium",
    )
    row = {"_changed_by": "ada", "ints": [1], "longs": [2], "texts": ["a"], "ids": ["b"], "store": '{"a":"b"}',
           "pairs": {"a": "b"}, "raw": "AQI=", "doc": {"a": 1}, "columns": 1,
           "days": ["2026-11-24"], "shop": {"a": "b"}}  # fmt: skip
    reported = {"_changed_by": text, "ints": [*text.encode()], "longs": [*text.encode()], "texts": [text],
            "ids": ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], "store": f'{{"{text}":"{text}"}}', "pairs": {text: text},
            "raw": b64encode(text.encode()).decode(), "doc": text, "days": [*text.encode()],
            "shop": {text: text}}  # fmt: skip
    for number, (op, values) in enumerate([("c", row), ("u", reported), ("u", reported)]):
        topic.send(debezium(op, 10 + number, {"id": 1, **values}, number), key=b'{"id": 1}')
        if number:
            ingest(spec, connections(), f"run-{number}")
    name = view(spec).sql_name()
    (found,) = connections().spark().sql(f"SELECT *, doc AS shown FROM {name}").collect()
    names = ("_changed_by", "ints", "longs", "texts", "ids", "store", "pairs", "shown")
    assert [found[item] for item in names] == ["ada", [1], [2], ["a"], ["b"], '{"a":"b"}', {"a": "b"}, '{"a":1}']
    assert bytes(found["raw"]) == b"\x01\x02"
    assert (found["days"], found["shop"].asDict()) == ([date(2026, 11, 24)], {"a": "b"})
    # Of a row that is gone nothing is left to keep.
    topic.send(debezium("c", 20, {"id": 2, **row}, 19), key=b'{"id": 2}')
    topic.send(debezium("d", 21, None, 20), key=b'{"id": 2}')
    topic.send(debezium("u", 22, {"id": 2, **reported}, 21), key=b'{"id": 2}')
    topic.send(debezium("u", 23, {"id": 3, **reported, "doc": {}}, 22), key=b'{"id": 3}')
    topic.send(debezium("u", 24, {"id": 1, **reported, "doc": {"a": 2}}, 23), key=b'{"id": 1}')
    topic.send(debezium("u", 25, {"id": 3, **reported}, 24), key=b'{"id": 3}')
    report = ingest(spec, connections(), "run-3")
    shown = connections().spark().sql(f"SELECT id, doc AS shown FROM {name}").collect()
    assert [(item["id"], item["shown"]) for item in shown] == [(1, '{"a":2}')]
    letters = sorted((r["offset"], r["error_class"], r["error_message"]) for r in view(spec).dead_letters())
    assert [letter[:2] for letter in letters] == [(number, "value_not_sent") for number in (5, 6, 8)]
    assert letters[0][2].startswith("The source omitted unchanged values that no row of the key has: _changed_by, ")
    assert letters[1][2].endswith(": _changed_by, ints, longs, texts, ids, store, pairs, raw, days, shop.")
    assert (facts(report)["changes"], facts(report)["dead_letters"]) == (3, 3)
    # What tells all values brings the row.
    topic.send(debezium("u", 26, {"id": 3, **row}, 25), key=b'{"id": 3}')
    ingest(spec, connections(), "run-4")
    assert rows(view(spec), "id") == [(1,), (3,)]


@pytest.mark.exhaustive
def test_row_with_new_column_keeps_values_not_sent_later(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, text = new_topic(1), PLACEHOLDER
    spec = topic.spec(None, write="upsert", envelope="debezium", on_incompatible="new_column")
    topic.send(debezium("c", 10, {"id": 1, "p": 1, "big": "x"}, 9), key=b'{"id": 1}')
    ingest(spec, connections(), "run-1")
    topic.send(debezium("c", 20, {"id": 2, "p": {"a": 1}, "q": [1], "big": "y"}, 19), key=b'{"id": 2}')
    topic.send(debezium("u", 30, {"id": 2, "p": 2, "q": [2], "big": text}, 29), key=b'{"id": 2}')
    ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "big") == [(1, "x"), (2, "y")]
    assert view(spec).dead_letters() == []
    # The table has no column that could have kept a value.
    topic.send(debezium("u", 40, {"id": 1, "p": 3, "never": text}, 39), key=b'{"id": 1}')
    topic.send(debezium("u", 41, {"id": 2, "p": 4, "q": [*text.encode()], "big": text}, 40), key=b'{"id": 2}')
    # What the row's key lacks, the record's key tells.
    topic.send(debezium("u", 42, {"id": text, "p": 5, "q": [6], "big": text}, 41), key=b'{"id": 2}')
    ingest(spec, connections(), "run-3")
    assert rows(view(spec), "id", "p", "q", "big") == [(1, 1, None, "x"), (2, 5, [6], "y")]
    letters = sorted((r["offset"], r["error_class"], r["error_message"]) for r in view(spec).dead_letters())
    assert letters == [
        (3, "value_not_sent", "The source omitted unchanged values that the table doesn't have: never."),
    ]


@pytest.mark.exhaustive
def test_change_that_fails_its_batch_becomes_a_dead_letter(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    fails = "CASE WHEN v = 'poison' THEN CAST(raise_error('more than anybody can bear') AS BOOLEAN) ELSE v = 'gone' END"
    spec = topic.spec("v string", write="upsert", delete_when=fails)
    for key, value in ((b"1", {"v": "a"}), (b"2", {"v": "poison"}), (b"3", {"v": "c"}), (b"3", None)):
        topic.send(value, key=key)
    ingest(spec, connections(), "run-1")
    assert rows(view(spec), "v") == [("a",)]
    (letter,) = view(spec).dead_letters()
    assert (letter["offset"], letter["error_class"]) == (1, "undecodable")
    assert "more than anybody can bear" in letter["error_message"]
    # Read again after the cause was fixed, it is a row and no dead letter any more.
    fixed = replace(spec, delete_when="v = 'gone'")
    replay(fixed, connections(), "run-2", ReplayRange())
    assert (rows(view(fixed), "v"), view(fixed).dead_letters()) == ([("a",), ("poison",)], [])


@pytest.mark.exhaustive
def test_text_of_times_is_ordered_by_time(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, write="upsert", order_by=("at",))
    # As Java writes them: without a fraction where it is zero.
    topic.send({"at": "2026-01-01T00:00:00.5Z", "v": "newer"}, key=b"1")
    topic.send({"at": "2026-01-01T00:00:00Z", "v": "older"}, key=b"1")
    ingest(spec, connections(), "run-1")
    assert rows(view(spec), "v") == [("newer",)]
    topic.send({"at": "2026-01-01T00:00:00.250Z", "v": "late"}, key=b"1")
    ingest(spec, connections(), "run-2")
    assert rows(view(spec), "v") == [("newer",)]


@pytest.mark.exhaustive
def test_source_column_names_have_no_special_meaning(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, write="upsert", key_format="string")
    row = {"_is_deleted": False, "_changed_by": "ada", "change": {"op": "x"}, "s": {"v": 1}, "t": {"v": 2}, "newest": 3}
    topic.send(row, key=b"1")
    topic.send(row, key=b"2")
    ingest(spec, connections(), "run-1")
    topic.send(None, key=b"1")
    topic.send(None, key=b"never there")
    ingest(spec, connections(), "run-2")
    (found,) = view(spec).rows()
    assert {name: found[name] for name in row} == row
    assert found["_key"] == "2"


@pytest.mark.exhaustive
def test_key_deleted_in_another_partition_stops_the_run(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec("v string", write="upsert")
    topic.send({"v": "a"}, 1, key=b"one")
    topic.send(None, 1, key=b"one")
    ingest(spec, connections(), "run-1")
    topic.send({"v": "back"}, 0, key=b"one")
    with pytest.raises(KafkaLakeError, match=r"partition 0 at offset 0; .* came from partition 1.*order_by"):
        ingest(spec, connections(), "run-2")
    view(spec).assert_no_branches()
    ordered = topic.spec("v string, at bigint", write="upsert", order_by=("at",))
    ordered = replace(ordered, table=f"{ordered.table}_ordered")
    topic.send({"v": "b", "at": 1}, 0, key=b"two")
    ingest(ordered, connections(), "run-3")
    topic.send(None, 1, key=b"two")
    with pytest.raises(
        KafkaLakeError, match=r"partition 1 at offset 2 is a tombstone.* came from partition 0.*delete_when"
    ):
        ingest(ordered, connections(), "run-4")


def debezium(op: str, lsn: int, after: dict[str, Any] | None = None, commit: int | None = None) -> dict[str, Any]:
    source = {"connector": "postgresql", "lsn": lsn, "sequence": json.dumps([commit and str(commit), str(lsn)])}
    return {"before": None, "after": after, "op": op, "source": source, "ts_ms": 1}


@pytest.mark.exhaustive
def test_debezium_without_a_setting_but_its_name(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, write="upsert", envelope="debezium")

    def send(change: dict[str, Any] | None, number: int) -> None:
        topic.send(change, 0, key=json.dumps({"id": number}).encode())

    send(debezium("r", 100, {"id": 1, "name": "ada", "price": 1.10}), 1)
    send(debezium("r", 100, {"id": 2, "name": "bob", "price": 2.50}), 2)
    send(debezium("c", 110, {"id": 3, "name": "cy", "price": None}, 105), 3)
    ingest(spec, connections(), "run-1")
    assert rows(view(spec), "id", "name", "price") == [(1, "ada", 1.1), (2, "bob", 2.5), (3, "cy", None)]

    send(debezium("u", 120, {"id": 1, "name": "__debezium_unavailable_value", "price": 7.0}, 115), 1)
    send(debezium("d", 130, None, 125), 2)
    send(None, 2)
    # Of a transaction that began earlier and was committed later.
    send(debezium("u", 90, {"id": 3, "name": "cyd", "price": 1.0}, 128), 3)
    # Of before the row that is there, though it comes later: what it tells is older than what the row has.
    send(debezium("r", 90, {"id": 1, "name": "old", "price": 0.0}), 1)
    send({"ts_ms": 7}, 9)
    report = ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "name", "price") == [(1, "ada", 7.0), (3, "cyd", 1.0)]
    assert [(c["error_class"], bytes(c["value"])) for c in view(spec).dead_letters()] == [
        ("not_a_change", b'{"ts_ms": 7}')
    ]
    assert facts(report)["rows_deleted"] == 1


@pytest.mark.exhaustive
def test_random_changes_end_as_a_model_in_memory(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(3)
    spec = topic.spec("id bigint, at bigint, v bigint", write="upsert", key=("id",), order_by=("at",))
    chance = random.Random(17)
    newest: dict[int, tuple[int, int, int, int | None]] = {}
    for batch in range(4):
        for _ in range(60):
            number, at, partition = chance.randrange(12), chance.randrange(40), chance.randrange(3)
            value = chance.randrange(1000)
            sent = topic.send({"id": number, "at": at, "v": value}, partition, key=str(number).encode())
            newest[number] = max(newest.get(number, (-1, 0, 0, None)), (at, partition, sent.offset, value))
        ingest(spec, connections(), f"run-{batch}")
        assert rows(view(spec), "id", "at", "v") == sorted(
            (number, at, value) for number, (at, _, _, value) in newest.items()
        )


@pytest.mark.exhaustive
def test_key_columns_may_be_renamed_in_the_table(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, write="upsert", envelope="debezium")

    def send(op: str, lsn: int, number: int, value: str) -> None:
        key = {"a.b": 0, "id": number}
        topic.send(debezium(op, lsn, None if op == "d" else {**key, "v": value}), key=json.dumps(key).encode())

    for number in (1, 2):
        send("c", 10, number, "a")
    ingest(spec, connections(), "run-1")
    send("u", 20, 1, "b")
    send("d", 20, 2, "")
    ingest(spec, connections(), "run-2")
    assert rows(view(spec), "a_b", "id", "v") == [(0, 1, "b")]
    renamed = replace(spec, renames={"id": "number"})
    send("u", 30, 1, "c")
    send("u", 15, 2, "late")
    ingest(renamed, connections(), "run-3")
    assert rows(view(spec), "a_b", "number", "v") == [(0, 1, "c")]
    assert view(spec).dead_letters() == []


class Source:
    """A table of a PostgreSQL database, and what Debezium tells of it: transactions in the order of their commits."""

    def __init__(self, seed: int) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.events: list[tuple[int, dict[str, Any] | None]] = []
        self._chance = random.Random(seed)
        self._lsn, self._committed = 100, 90

    def transactions(self, count: int) -> None:
        """Let transactions interleave: each has written its changes before any of them is told."""
        for _ in range(count):
            open_ = [
                [self._next() for _ in range(self._chance.randint(1, 3))] for _ in range(self._chance.randint(1, 3))
            ]
            self._chance.shuffle(open_)
            for positions in open_:
                before, committed = self._committed, self._next()
                for position in positions:
                    self._change(position, before)
                self._committed = committed

    def snapshot(self) -> None:
        """Read all rows once more, as an incremental snapshot does."""
        self._committed = position = self._next()
        for number, row in sorted(self.rows.items()):
            self.events.append((number, debezium("r", position, dict(row))))

    def again(self) -> None:
        """Tell the last changes once more, as a connector does that was killed."""
        self.events += self.events[-self._chance.randint(1, 8) :]

    def _next(self) -> int:
        self._lsn += self._chance.randint(1, 9)
        return self._lsn

    def _change(self, position: int, before: int) -> None:
        number = self._chance.randrange(10)
        row = self.rows.get(number)
        if row is None:
            row = self.rows[number] = {"id": number, "n": self._chance.randrange(100), "big": f"big {position}"}
            self.events.append((number, debezium("c", position, dict(row), before)))
        elif self._chance.random() < 0.3:
            del self.rows[number]
            self.events += [(number, debezium("d", position, None, before)), (number, None)]
        else:
            reported = {**row, "n": self._chance.randrange(100), "big": "__debezium_unavailable_value"}
            if self._chance.random() < 0.4:
                reported["big"] = f"big {position}"
            self.rows[number] = {**reported, "big": row["big"] if reported["big"].startswith("__") else reported["big"]}
            self.events.append((number, debezium("u", position, reported, before)))


@pytest.mark.parametrize("seed", [1, exhaustive(2), exhaustive(3), exhaustive(4)])
def test_upsert_table_matches_the_database(
    seed: int, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec("id bigint not null, n bigint not null, big string", write="upsert", envelope="debezium")
    source, chance = Source(seed), random.Random(seed)
    for number in range(4):
        source.transactions(8)
        if number:
            chance.choice((source.snapshot, source.again, lambda: None))()
        for key, change in source.events:
            topic.send(change, key % 2, key=json.dumps({"id": key}).encode())
        source.events.clear()
        ingest(spec, connections(), f"run-{number}")
        assert rows(view(spec), "id", "n", "big") == sorted(tuple(row.values()) for row in source.rows.values())
        assert view(spec).dead_letters() == []


@pytest.mark.exhaustive
@pytest.mark.exhaustive
@pytest.mark.parametrize("step", ["deletes published", "table staged", "audited"])
def test_killed_upsert_run_leaves_rows_to_the_next(
    step: str,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic = new_topic(1)
    spec = topic.spec("v string", write="upsert", dead_letters="table")
    for key in ("a", "b", "c"):
        topic.send({"v": key}, key=key.encode())
    ingest(spec, connections(), "run-1")
    topic.send(None, key=b"a")
    topic.send({"v": "new b"}, key=b"b")
    topic.send(b"not json", key=b"c")
    killed_at(spec, step)
    assert rows(view(spec), "v") == [("a",), ("b",), ("c",)]
    topic.send({"v": "a again"}, key=b"a")
    topic.send(None, key=b"b")
    ingest(spec, connections(), "run-3")
    assert rows(view(spec), "v") == [("a again",), ("c",)]
    assert len(view(spec).dead_letters()) == 1
    view(spec).assert_no_branches()


@pytest.mark.exhaustive
def test_upsert_replay_applies_current_settings(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("v string, n int", write="upsert")
    for key, value in (("a", "x"), ("b", "x"), ("a", "y"), ("c", "gone")):
        topic.send({"v": value, "n": 1}, key=key.encode())
    topic.send(None, key=b"b")
    ingest(spec, connections(), "run-1")
    assert rows(view(spec), "v") == [("gone",), ("y",)]
    today = replace(spec, delete_when="v = 'gone'")
    replay(today, connections(), "again", ReplayRange("earliest", "latest"))
    assert rows(view(spec), "v") == [("y",)]
    reset(today, connections(), "back", "earliest")
    assert rows(view(spec), "v") == [("y",)]
    ingest(today, connections(), "run-2")
    assert rows(view(spec), "v") == [("y",)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("deletes", "left"),
    [("soft", [("a", True), ("b", False)]), ("ignore", [("a", None), ("b", None)])],
)
def test_deletes_as_the_settings_say(
    deletes: Any, left: list[Any], new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("v string", write="upsert", deletes=deletes)
    topic.send({"v": "a"}, key=b"1")
    topic.send({"v": "old b"}, key=b"2")
    ingest(spec, connections(), "run-1")
    topic.send(None, key=b"1")
    topic.send(None, key=b"2")
    topic.send({"v": "b"}, key=b"2")
    topic.send(None, key=b"3")
    ingest(spec, connections(), "run-2")
    found = sorted((row["v"], row.get("_is_deleted")) for row in view(spec).rows())
    assert found == left


@pytest.mark.exhaustive
def test_order_by_set_later_counts_from_then_on(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """As the error says that tells of changes which nothing orders; and another order as its error says."""
    topic = new_topic(2)
    spec = topic.spec("id bigint, at bigint, v string, n int", write="upsert", key=("id",))
    topic.send({"id": 1, "at": 5, "v": "first"}, 0)
    topic.send({"id": 2, "at": 9, "v": "gone"}, 0)
    topic.send(None, 0, key=b"2")
    ingest(spec, connections(), "run-1")
    topic.send({"id": 1, "at": 4, "v": "older"}, 1)
    with pytest.raises(KafkaLakeError, match="Name the column that orders changes with order_by:"):
        ingest(spec, connections(), "run-2")
    ordered = replace(spec, order_by=("at",))
    topic.send({"id": 2, "at": 3, "v": "back"}, 0)
    ingest(ordered, connections(), "run-3")
    assert rows(view(spec), "id", "at", "v") == [(1, 5, "first"), (2, 3, "back")]
    topic.send({"id": 1, "at": 6, "v": "newer", "n": 1}, 1)
    topic.send(None, 0, key=b"2")
    ingest(ordered, connections(), "run-4")
    assert rows(view(spec), "id", "at", "v") == [(1, 6, "newer")]
    for other in (spec, replace(spec, order_by=("n",))):
        with pytest.raises(KafkaLakeError, match=r"order_by was at and is (n|\(none\))\..*drop the table and fill"):
            ingest(other, connections(), "run-5")
    connections().catalog.pyiceberg.drop_table(spec.identifier)
    ingest(replace(spec, order_by=("n",)), connections(), "run-6")
    assert rows(view(spec), "id", "at", "v") == [(1, 6, "newer")]


def test_order_set_later_may_be_by_a_new_field(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, write="upsert", key=("id",))
    topic.send({"id": 1, "v": "first"})
    ingest(spec, connections(), "run-1")
    topic.send({"id": 1, "v": "ordered", "at": 5})
    ordered = replace(spec, order_by=("at",))
    ingest(ordered, connections(), "run-2")
    assert rows(view(ordered), "id", "v", "at") == [(1, "ordered", 5)]


@pytest.mark.exhaustive
def test_order_of_a_history_needs_a_new_table(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic(1)
    spec = topic.spec("id bigint, at bigint", write="history", key=("id",))
    topic.send({"id": 1, "at": 5})
    topic.send({"id": 1, "at": 4})
    ingest(spec, connections(), "run-1")
    ordered = replace(spec, order_by=("at",))
    with pytest.raises(KafkaLakeError, match=r"order_by was \(none\) and is at\..*drop the table and fill"):
        ingest(ordered, connections(), "run-2")
    connections().catalog.pyiceberg.drop_table(spec.identifier)
    ingest(ordered, connections(), "run-3")
    assert sorted((row["valid_from"], row["valid_to"]) for row in view(spec).rows()) == [(4, 5), (5, None)]


def test_deletes_that_shall_fail_publish_nothing(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("v string", write="upsert", deletes="fail")
    topic.send({"v": "a"}, key=b"1")
    topic.send(None, key=b"1")
    with pytest.raises(KafkaLakeError, match="1 records delete rows, the first in partition 0 at offset 1"):
        ingest(spec, connections(), "run-1")
    view(spec).assert_no_branches()


def test_settings_that_do_not_go_with_the_rows_are_refused(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic(1)
    spec = topic.spec("id int, at int", write="upsert", key=("id",))
    topic.send({"id": 1, "at": 1})
    ingest(spec, connections(), "run-1")
    with pytest.raises(KafkaLakeError, match=r"key was id and is id, at; order_by was \(none\) and is at"):
        ingest(replace(spec, key=("id", "at"), order_by=("at",)), connections(), "run-2")
    with pytest.raises(KafkaLakeError, match="its topic now has write: append"):
        ingest(topic.spec("id int, at int"), connections(), "run-3")


@pytest.mark.exhaustive
def test_deletes_are_forgotten_after_their_time(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("v string", write="upsert", keep_deletes="2d")
    topic.send(None, key=b"first")
    ingest(spec, connections(), "run-1")
    spark, name = connections().spark(), connections().catalog.spark_name(spec.deletes_table)
    for days in (1, 3, 30):
        old = f"SELECT _kafka, _deleted_at - INTERVAL '{days}' DAY FROM {name} WHERE _deleted_at > current_date()"
        spark.sql(f"INSERT INTO {name} {old}")
    topic.send(None, key=b"second")
    ingest(spec, connections(), "run-2")
    kept = spark.sql(f"SELECT datediff(current_date(), _deleted_at) AS days FROM {name} ORDER BY days").collect()
    assert [row["days"] for row in kept] == [0, 0, 1]
