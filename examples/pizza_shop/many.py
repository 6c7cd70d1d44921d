"""The demo's topic with many tables: produce records, wait for the tables, and compare them with the topics."""

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table

from examples.pizza_shop import topics
from examples.pizza_shop.compare import Comparison, compare
from examples.pizza_shop.topics import TopicProducer
from examples.pizza_shop.watch import Watch
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.cli.commands.topics import matching_topics
from kafka_lake.common.files import home
from kafka_lake.defs.many.component import MARK
from kafka_lake.errors import KafkaLakeError
from kafka_lake.kafka.records import read_all
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource

TOPIC = "shop-events"
KITCHENS = tuple(f"kitchen-{name}" for name in ("harbour", "market", "station"))
PARTITIONS = 3

_KINDS = ("order", "view", "click", "coupon", "complaint")
_WEIGHTS = (30, 40, 20, 7, 3)
_LATE = 0.05
_NO_JSON = 0.01
_NO_AMOUNT = 0.02


@dataclass(frozen=True)
class Sent:
    """The key and the value of a record."""

    key: str
    value: bytes


def generate_events(count: int, seed: int, first_id: int, end: datetime) -> Iterator[Sent]:
    """Yield records of the day that ends at ``end``, numbered from ``first_id``; some late, some that can't be read.

    The same arguments give the same records.
    """
    rng = random.Random(f"{seed}/{first_id}")
    step = timedelta(days=1) / max(count, 1)
    for number in range(count):
        late = timedelta(hours=rng.randrange(1, 12)) if rng.random() < _LATE else timedelta(0)
        at = end - step * (count - 1 - number) - late
        event = _event(rng, first_id + number, f"{at:%Y-%m-%dT%H:%M:%S}Z")
        value = json.dumps(event, separators=(",", ":")).encode()
        yield Sent(str(event["event_id"]), value[:-5] if rng.random() < _NO_JSON else value)


def _event(rng: random.Random, number: int, at: str) -> dict[str, Any]:
    kind = rng.choices(_KINDS, _WEIGHTS)[0]
    event: dict[str, Any] = {"event_id": number, "type": kind, "at": at}
    if kind == "order":
        total: Any = round(rng.uniform(8, 90), 2)
        return event | {"store_id": rng.randrange(1, 21), "total": "free" if rng.random() < _NO_AMOUNT else total}
    if kind in ("view", "click"):
        return event | {"page": rng.choice(("/menu", "/offers", "/cart")), "user": f"user-{rng.randrange(500)}"}
    return event | {"text": rng.choice(("PIZZA10", "too late", "no olives", "lovely"))}


def generate_measurements(count: int, kitchen: str, first_id: int) -> Iterator[Sent]:
    """Yield a kitchen's measurements; not all of its sensors send the same fields."""
    rng = random.Random(f"{kitchen}/{first_id}")
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(first_id, first_id + count):
        record: dict[str, Any] = {"id": number, "at": (begin + timedelta(minutes=number)).isoformat()}
        record["oven"] = rng.randrange(4)
        record |= {"celsius": rng.randrange(200, 330)} if rng.random() < 0.7 else {"celsius": 300.5, "door": "open"}
        yield Sent(f"{record['oven']}", json.dumps(record).encode())


NAMESPACES = ("events", "kitchens")
_DEAD_LETTERS = ("orders", "visits", "other_events")
_LARGE = 60
_CENT = Decimal("0.01")
_MEASUREMENTS = 500


@dataclass(frozen=True)
class Expected:
    """The expected rows and dead letters.

    Args:
        rows: The key columns and the rows of each table.
    """

    rows: Mapping[tuple[str, str], tuple[tuple[str, ...], list[dict[str, Any]]]]
    dead_letters: int


@dataclass(frozen=True)
class Many:
    """The filled topics, and the expected content of their tables."""

    expected: Expected

    def await_tables(self, watch: Watch) -> None:
        """Wait until each table is as expected."""
        watch.until(lambda _: not _differing(self.expected, _found(self.expected)), "tables made from tables")

    def print_comparison(self, console: Console) -> None:
        """Compare the tables with the topics, and print the result."""
        found = _found(self.expected)
        console.print(_shown(self.expected, found))
        if wrong := _differing(self.expected, found):
            raise KafkaLakeError("\n".join(wrong), "Please report this.")
        console.print("[bold green]Every table has exactly the rows that its topics give.[/]")


def many(bootstrap: str, count: int, seed: int, console: Console) -> Many:
    """Fill the topics, and add their tables to this deployment."""
    topics.ensure_topic(bootstrap, TOPIC, PARTITIONS)
    first = topics.next_id(bootstrap, TOPIC, lambda record: int(record.key or b"0"))
    _send(bootstrap, TOPIC, generate_events(count, seed, first, datetime.now(UTC)))
    console.print(f"Produced {count:,} events to {TOPIC}, some late, some that can't be read")
    for kitchen in KITCHENS:
        topics.ensure_topic(bootstrap, kitchen, 1)
        begins = topics.next_id(bootstrap, kitchen, lambda record: int(json.loads(record.value or b"")["id"]))
        _send(bootstrap, kitchen, generate_measurements(_MEASUREMENTS, kitchen, begins))
    (home() / MARK).touch()
    matching_topics(refresh=True)
    return Many(expected_content())


def _send(bootstrap: str, topic: str, records: Iterable[Sent]) -> None:
    producer = TopicProducer(bootstrap, topic)
    for record in records:
        producer.send(record.key, record.value)
    producer.flush()


def expected_content() -> Expected:
    """Return the expected content of the tables, computed from the records of the topics."""
    orders, visits, other_events, unreadable = list[Any](), list[Any](), list[Any](), 0
    for event in _values(TOPIC):
        if event is None:
            unreadable += 1
        elif event["type"] in ("view", "click"):
            visits.append(event)
        elif event["type"] != "order":
            other_events.append(event)
        elif (order := _order(event)) is None:
            unreadable += 1
        else:
            orders.append(order)
    large = [item for item in orders if item["total"] >= _LARGE]
    by_id = ("event_id",)
    rows: dict[tuple[str, str], Any] = {
        ("events", "orders"): (by_id, orders),
        ("events", "visits"): (by_id, visits),
        ("events", "other_events"): (by_id, other_events),
        ("events", "large_orders"): (by_id, large),
        ("events", "revenue_per_hour"): (("hour", "store_id"), _revenue(orders)),
        ("events", "large_orders_per_store"): (("store_id",), _by_store(large)),
    }
    for kitchen in KITCHENS:
        found = [_measured(value) for value in _values(kitchen) if value is not None]
        rows["kitchens", kitchen.partition("-")[2]] = (("id",), found)
    return Expected(rows, unreadable)


def _values(topic: str) -> Iterator[dict[str, Any] | None]:
    cluster = KafkaResource().cluster()
    for record in read_all(cluster, cluster.watermarks_of(topic)):
        try:
            yield json.loads(record.value or b"")
        except ValueError:
            yield None


def _order(event: Mapping[str, Any]) -> dict[str, Any] | None:
    if isinstance(event["total"], str):
        return None
    total = Decimal(str(event["total"])).quantize(_CENT)
    at = datetime.fromisoformat(event["at"])
    return {"event_id": event["event_id"], "store_id": event["store_id"], "total": total, "at": at}


def _measured(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record, "celsius": float(record["celsius"]), "door": record.get("door")}


def _revenue(orders: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    totals: dict[tuple[datetime, int], list[Decimal]] = defaultdict(list)
    for order in orders:
        totals[order["at"].replace(minute=0, second=0), order["store_id"]].append(order["total"])
    return [
        {"hour": hour, "store_id": store, "revenue": sum(prices), "orders": len(prices)}
        for (hour, store), prices in totals.items()
    ]


def _by_store(orders: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    totals: dict[int, list[Decimal]] = defaultdict(list)
    for order in orders:
        totals[order["store_id"]].append(order["total"])
    return [{"store_id": store, "orders": len(prices), "largest": max(prices)} for store, prices in totals.items()]


@dataclass(frozen=True)
class _Found:
    """The comparison of each table with the expected rows, and the number of dead letters."""

    tables: Mapping[str, Comparison]
    dead_letters: int


def _found(expected: Expected) -> _Found:
    catalog = CatalogResource().open()
    tables = {
        ".".join(name): compare(key, wanted, _rows(catalog, name)) for name, (key, wanted) in expected.rows.items()
    }
    return _Found(tables, sum(len(_rows(catalog, ("events", f"{table}__dead_letters"))) for table in _DEAD_LETTERS))


def _rows(catalog: LakeCatalog, identifier: tuple[str, str]) -> list[dict[str, Any]]:
    table = catalog.table(identifier)
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist() if table else []
    return rows


def _differing(expected: Expected, found: _Found) -> list[str]:
    problems = [
        f"{name}: {len(item.missing)} rows missing, {len(item.unexpected)} unexpected, {len(item.different)} different."
        for name, item in found.tables.items()
        if item.differences
    ]
    if found.dead_letters != expected.dead_letters:
        problems.append(f"{TOPIC}: {found.dead_letters} dead letters, expected {expected.dead_letters}.")
    return problems


def _shown(expected: Expected, found: _Found) -> Table:
    shown = Table("table", title="Topics and tables, compared row by row")
    for heading in ("expected rows", "rows in Iceberg", "rows that differ"):
        shown.add_column(heading, justify="right")
    for name, comparison in found.tables.items():
        shown.add_row(name, f"{comparison.wanted:,}", f"{comparison.found:,}", f"{comparison.differences:,}")
    differ = abs(found.dead_letters - expected.dead_letters)
    shown.add_row("dead letters of events", f"{expected.dead_letters:,}", f"{found.dead_letters:,}", f"{differ:,}")
    return shown
