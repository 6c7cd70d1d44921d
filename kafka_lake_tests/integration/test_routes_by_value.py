"""Tables that a topic gets as values appear: each record comes once, in the table of its value."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_lake.ingest.run import ingest, replay, replay_dead_letters, reset
from kafka_lake.routing.by_value import knowing
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import Route, RouteBy, TopicTable, When
from kafka_lake_tests.conftest import NAMESPACE, Topic, View
from kafka_lake_tests.integration.test_routes import killed_at  # noqa: F401

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

COLUMNS = "type string, id bigint"


def spec_of(topic: Topic, **by: Any) -> TopicTable:
    to = TopicTable(topic.name, schema=COLUMNS)
    by = {"max_tables": 3, "kind": "field", "name": "type", **by}
    order = Route(
        When(field="type", values=("order",)),
        TopicTable(topic.name, NAMESPACE, f"{topic.table}_orders", schema=COLUMNS),
    )
    route_by = RouteBy(to=to, table=f"{topic.table}_{{value}}", namespace=NAMESPACE, **by)
    return topic.spec(COLUMNS, routes=(order,), route_by=route_by)


def send(topic: Topic, kinds: str, partitions: int = 2) -> None:
    for kind in kinds.split():
        number = len(topic.ledger)
        value: object = {"type": kind.strip("!"), "id": "bad" if kind.endswith("!") else number}
        topic.send(None if kind == "-" else value, number % partitions)


def held(spec: TopicTable, view: NewView) -> dict[str, list[tuple[int, int]]]:
    """Return where the records of each table are: as rows, or as its dead letters."""
    own = view(spec)
    found = {}
    for table in knowing(spec, own.table.properties).tables:
        see = view(table)
        see.assert_no_branches()
        rows = see.rows() if see.catalog.table(table.identifier) else []
        places = [(r["_kafka"]["partition"], r["_kafka"]["offset"]) for r in rows]
        places += [(r["partition"], r["offset"]) for r in see.dead_letters()]
        found[table.table.removeprefix(spec.table)] = sorted(places)
    return {name: places for name, places in found.items() if places}


def expected(topic: Topic, tables: dict[str, str]) -> dict[str, list[tuple[int, int]]]:
    """Return where they are to be, by which value has which table."""
    found: dict[str, list[tuple[int, int]]] = {}
    for sent in topic.ledger:
        if sent.value is not None:
            found.setdefault(tables.get(json.loads(sent.value)["type"], ""), []).append(sent.place)
    return {name: sorted(places) for name, places in found.items()}


@pytest.mark.exhaustive
def test_values_get_tables_up_to_the_limit(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., bool],  # noqa: F811
) -> None:
    topic = new_topic(2)
    spec, warned = spec_of(topic), list[str]()
    observer = Observer(warn=warned.append)
    tables = {"order": "_orders", "click": "_click"}
    # Columns come from what has no value.
    send(topic, "order click click! refund refund")
    assert killed_at(spec, "new tables recorded")
    ingest(spec, connections(), "first", observer=observer)
    tables["refund"] = "_refund"
    assert held(spec, view) == expected(topic, tables)
    # Two in one name: the second has no table. No more than three have.
    send(topic, "Click a/b a/b a-b x x - y __")
    done = ingest(spec, connections(), "second", observer=observer)
    tables["a/b"] = "_a_b"
    assert held(spec, view) == expected(topic, tables)
    assert done.total("without_table") == 6
    assert "max_tables is 3" in warned[-1]
    # A run that dies between its publications, and one that is overtaken, with values that are new.
    more = replace(spec, route_by=replace(spec.route_by, max_tables=9))
    send(topic, "order click z z")
    assert killed_at(more, f"{NAMESPACE}.{topic.table}_click: table published")
    tables["z"] = "_z"
    ingest(more, connections(), "third", observer=observer)
    assert held(spec, view)["_z"] == expected(topic, tables)["_z"]
    others: list[threading.Thread] = []

    def overtake(step: str) -> None:
        if step == f"{NAMESPACE}.{topic.table}_click: audited" and not others:
            send(topic, "new click")
            others.append(threading.Thread(target=lambda: ingest(more, connections(), "overtaker")))
            others[0].start()
            others[0].join(120)

    send(topic, "click x x")
    ingest(more, connections(), "overtaken", observer=Observer(step_done=overtake))
    assert others
    # What had no table by then is in the topic's own; a replay moves it.
    replay(more, connections(), "replay", ReplayRange())

    def known_values() -> dict[str, str]:
        by = knowing(more, view(spec).table.properties).route_by
        return {value: table.removeprefix(topic.table) for value, _, table in by.known}

    known = known_values()
    assert {"x", "new", "z"} <= {*known}
    # One that no record has had since there was room for it has no table.
    assert not {"Click", "a-b", "__", "y"} & {*known}
    assert held(more, view) == expected(topic, {"order": "_orders", **known})
    # All tables are reset, and filled again.
    for table_spec in knowing(more, view(spec).table.properties).tables:
        reset(table_spec, connections(), f"back {table_spec.table}", "0:1,1:1")
    assert sum(map(len, held(more, view).values())) <= 3
    ingest(more, connections(), "again")
    assert "y" in known_values()
    assert held(more, view) == expected(topic, {"order": "_orders", **known_values()})
    assert replay_dead_letters(more, connections(), "letters").moved == 0


def test_source_tables_become_upsert_tables_of_allowed_namespace(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)

    def change(op: str, where: str, table: str, row: dict[str, Any], wrapped: bool = False) -> None:
        source = {"lsn": len(topic.ledger) + 1, "ts_ms": 1, "table": table, "connector": "postgresql", "db": "shop"}
        value = {
            "op": op,
            "before": row if op == "d" else None,
            "after": None if op == "d" else row,
            "source": {**source, "schema": where},
            "ts_ms": 1,
        }
        topic.send({"schema": {}, "payload": value} if wrapped else value, key=json.dumps({"id": row["id"]}).encode())

    change("c", NAMESPACE, "stores", {"id": 1, "city": "Ulm"})
    change("c", NAMESPACE, "stores", {"id": 2, "city": "Rom"}, wrapped=True)
    change("c", NAMESPACE, "pizzas", {"id": 1, "name": "Marinara"})
    change("u", NAMESPACE, "stores", {"id": 1, "city": "Köln"})
    change("d", NAMESPACE, "stores", {"id": 2, "city": "Rom"})
    topic.send(None, key=b'{"id": 2}')
    change("c", "other", "secrets", {"id": 7, "city": "x"})
    to = TopicTable(topic.name, write="upsert", envelope="debezium")
    by = RouteBy("source_table", "debezium", to, f"{topic.table}_{{name}}", namespace=NAMESPACE, max_tables=2)
    spec, warned = topic.spec(None, route_by=by, where=When(sql="false")), list[str]()
    ingest(spec, connections(), "run", observer=Observer(warn=warned.append))
    known = knowing(spec, view(spec).table.properties)
    tables = {table_spec.table.removeprefix(topic.table): table_spec for table_spec in known.tables[1:]}
    assert {*tables} == {"_stores", "_pizzas"}
    assert [(row["id"], row["city"]) for row in view(tables["_stores"]).rows()] == [(1, "Köln")]
    assert [(row["id"], row["name"]) for row in view(tables["_pizzas"]).rows()] == [(1, "Marinara")]
    assert [row["offset"] for row in view(spec).dead_letters()] == [6]
    assert [field.name for field in view(spec).table.schema().fields] == ["_kafka"], "columns are of its own records"
    assert "max_tables is 2" in warned[-1]
