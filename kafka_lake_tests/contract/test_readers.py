"""What each reader finds in each kind of table: `UPDATE_DOCS=1 pytest` on this file writes the table of the page.

A reader that refuses a table, or reads it otherwise, may change with its version: the page says what this run found.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from benchmarks.page import between
from benchmarks.results import in_markdown
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.derived.engine import Engine
from kafka_lake.derived.run import derive
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections, Observer, RetryPolicy
from kafka_lake.spec.topic_table import Route, TopicTable, When
from kafka_lake_tests.conftest import NAMESPACE, Topic
from kafka_lake_tests.contract.readers import FOREIGN, OWN, Reader, Rows

pytestmark = [pytest.mark.integration, pytest.mark.pairs("sqlite_files")]

PAGE = Path(__file__).parents[2] / "docs" / "catalogs.md"
RESULTS = PAGE.parent / "verification" / "readers.json"

_OUTCOMES = ("reads", "wrong", "refuses")

Made = tuple[tuple[str, str], str, Rows]
"""A table's name, columns of it, and its rows."""

_ORDER = "id bigint, city string, price decimal(9,2), day date, tags array<string>"
_COLUMNS = "id, city, price, day, tags"
_V3 = {"format-version": "3"}


def _order(number: int, **changed: Any) -> dict[str, Any]:
    cells = {"id": number, "city": ["Zürich", "Rom", None][number % 3], "price": f"{number}.25", "day": "2026-01-31"}
    return {**cells, "tags": ["ä", ""][: number % 3], **changed}


def _send(topic: Topic, orders: list[dict[str, Any]]) -> Rows:
    for order in orders:
        topic.send({**order, "price": float(order["price"])}, order["id"] % 2, key=json.dumps(order["id"]).encode())
    return [list(order.values()) for order in orders]


def _append(topic: Topic, connections: Callable[[], Connections], **settings: Any) -> Made:
    spec, rows = topic.spec(_ORDER, partition_by=("bucket(4, id)",), **settings), Rows()
    for first in (0, 20):
        rows += _send(topic, [_order(number) for number in range(first, first + 20)])
        ingest(spec, connections(), f"run-{first}")
    return spec.identifier, _COLUMNS, rows


def _upsert(topic: Topic, connections: Callable[[], Connections], **settings: Any) -> Made:
    spec = topic.spec(_ORDER, write="upsert", key=("id",), **settings)
    rows = _send(topic, [_order(number) for number in range(40)])
    ingest(spec, connections(), "run-1")
    rows = [row for row in rows if row[0] >= 20 and row[0] != 39]
    rows += _send(topic, [_order(number, city="Ulm") for number in range(20)])
    topic.send(None, 1, key=b'{"id": 39}')
    ingest(spec, connections(), "run-2")
    return spec.identifier, _COLUMNS, rows


def _history(topic: Topic, connections: Callable[[], Connections]) -> Made:
    spec = topic.spec("id bigint, at bigint, v string", write="history", key=("id",), order_by=("at",))
    rows = Rows()
    for at in (10, 20):
        for number in range(20):
            topic.send({"id": number, "at": at, "v": f"v {at}"}, number % 2)
            rows.append([number, f"v {at}", at, 20 if at == 10 else None])
        ingest(spec, connections(), f"run-{at}")
    return spec.identifier, "id, v, valid_from, valid_to", rows


def _routed(topic: Topic, connections: Callable[[], Connections]) -> Made:
    to = TopicTable(topic.name, NAMESPACE, f"{topic.table}_rome", schema=_ORDER)
    spec = topic.spec(_ORDER, routes=(Route(When(field="city", values=("Rom",)), to),))
    rows = _send(topic, [_order(number) for number in range(40)])
    ingest(spec, connections(), "run-1")
    return to.identifier, _COLUMNS, [row for row in rows if row[1] == "Rom"]


def _derived(topic: Topic, connections: Callable[[], Connections]) -> Made:
    _append(topic, connections)
    spec = DerivedTable(
        table=f"{topic.table}_cities",
        namespace=NAMESPACE,
        sources=(topic.table,),
        write="aggregate",
        sql=f"SELECT city, count(*) AS orders FROM {topic.table} GROUP BY city",
        key={"city": "city"},
    )
    for run in (1, 2):
        systems = connections()
        derive(spec, Engine(systems.catalog, systems.spark, f"derive-{run}", Observer(), RetryPolicy(attempts=1)))
        if run == 1:
            _send(topic, [_order(number) for number in range(1, 31, 3)])
            ingest(topic.spec(_ORDER, partition_by=("bucket(4, id)",)), connections(), "run-more")
    return spec.identifier, "city, orders", [["Zürich", 14], ["Rom", 23], [None, 13]]


KINDS: Mapping[str, Callable[[Topic, Callable[[], Connections]], Made]] = {
    "append": _append,
    "upsert v2": lambda topic, connections: _upsert(topic, connections, table_properties={"format-version": "2"}),
    "upsert v3": lambda topic, connections: _upsert(topic, connections, table_properties=_V3),
    "history": _history,
    "routed": _routed,
    "derived": _derived,
}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, int) else str(value)


def _sorted(rows: Rows) -> list[str]:
    return sorted(json.dumps([_plain(value) for value in row]) for row in rows)


def _outcome(reader: Reader, table: Table, columns: str, spark: Any, rows: Rows) -> str:
    try:
        found = reader(table, columns, spark)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        return "refuses"
    if _sorted(found) == _sorted(rows):
        return "reads"
    print(*_sorted(found)[:5], "instead of", *_sorted(rows)[:5], sep="\n")
    return "wrong"


@pytest.mark.parametrize(
    "readers", [pytest.param(OWN, id="own"), pytest.param(FOREIGN, id="foreign", marks=pytest.mark.contract)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_readers_find_what_the_page_says(
    kind: str,
    readers: Mapping[str, Reader],
    new_topic: Callable[..., Topic],
    connections: Callable[[], Connections],
) -> None:
    check(kind, readers, new_topic(2), connections)


def check(kind: str, readers: Mapping[str, Reader], topic: Topic, connections: Callable[[], Connections]) -> None:
    """Compare what readers find in a kind of table with what the page says, or write it there."""
    identifier, columns, rows = KINDS[kind](topic, connections)
    table = connections().catalog.table(identifier)
    assert table is not None
    spark = connections().spark()
    found = {name: _outcome(reader, table, columns, spark, rows) for name, reader in readers.items()}
    kept: dict[str, dict[str, str]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if os.environ.get("UPDATE_DOCS"):
        kept[kind] = {**kept.get(kind, {}), **found}
        RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(between("readers").sub(lambda _: f"{_table(kept)}\n", PAGE.read_text()))
    assert {name: kept[kind][name] for name in found} == found


def _table(kept: Mapping[str, Mapping[str, str]]) -> str:
    """Return the page's table: for each reader, which kinds of tables it reads."""
    rows = []
    for reader in (*OWN, *FOREIGN, "Trino"):
        kinds = {outcome: [kind for kind in kept if kept[kind].get(reader) == outcome] for outcome in _OUTCOMES}
        rows.append((reader, *("all" if len(found) == len(kept) else ", ".join(found) for found in kinds.values())))
    return in_markdown(("reader", *_OUTCOMES), rows)
