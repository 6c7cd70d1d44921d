"""The demo's database: Debezium captures its changes, and its rows are compared with the tables at the end."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import Any

from rich.console import Console
from rich.table import Table

from examples.pizza_shop import topics
from examples.pizza_shop.compare import Comparison, compare
from examples.pizza_shop.shop import KEYS, OWNER, Shop
from examples.pizza_shop.watch import Watch
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.cli.commands.status import TopicStatus, collect
from kafka_lake.common.files import home
from kafka_lake.common.text import counted
from kafka_lake.defs.shop.component import DATABASE
from kafka_lake.devstack.sources import IVY_FILE, Debezium, EmbeddedPostgres, find_programs
from kafka_lake.devstack.stack import Stack
from kafka_lake.engine.jars import retrieve_jars
from kafka_lake.errors import KafkaLakeError
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource
from kafka_lake.spec.topic_table import TopicTable, WriteMode

NAMESPACE = "shop"
WRITES: Mapping[str, WriteMode] = {name: "history" if name == "customers" else "upsert" for name in KEYS}
TABLES = {
    name: TopicTable(f"{NAMESPACE}.public.{name}", NAMESPACE, name, write=write, envelope="debezium")
    for name, write in WRITES.items()
}
_PARTITIONS = 3
_PER_SECOND = 10.0
# The first rows, then changes.
_LOADS = 2
_SHOWN = 4
_COLUMNS = ("phone", "name", "street", "points")


@dataclass(frozen=True)
class Captured:
    """A shop whose database is captured while it changes."""

    shop: Shop
    _stop: Event
    _work: Future[None]

    def await_tables(self, watch: Watch) -> None:
        """Wait until both tables have rows and changes, end the changes, and wait for the last one."""
        positions: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        watch.until(lambda _: self._ended_early() or _have_moved(positions), "changes of the database")
        self._stop.set()
        self._work.result()
        end = self.shop.close_of_business()
        watch.until(lambda _: self.shop.is_captured(end) and _no_lag(), "the last change of the database")

    def print_comparison(self, console: Console) -> None:
        """Compare the tables with the database, and print the result and the versions of a customer."""
        catalog = CatalogResource().open()
        found = compare_all(self.shop, catalog)
        console.print(_changes(self.shop))
        console.print(_compared(found))
        console.print(_longest_history(catalog, TABLES["customers"].identifier))
        if wrong := [_problem(name, comparison) for name, comparison in found.items() if comparison.differences]:
            raise KafkaLakeError("\n".join(wrong), "Please report this.")
        console.print("[bold green]Every row is the same in PostgreSQL and in Iceberg.[/]")

    def _ended_early(self) -> bool:
        if self._work.done():
            self._work.result()
        return False


@contextmanager
def captured(stack: Stack, bootstrap: str, console: Console) -> Iterator[Captured]:
    """Start PostgreSQL and Debezium; customers come and go, order and move while the block runs."""
    find_programs()
    retrieve_jars(IVY_FILE, "debezium", console.print)
    postgres = EmbeddedPostgres(home() / DATABASE, OWNER)
    stack.start_server("PostgreSQL", postgres)
    shop = Shop(postgres.url)
    new = shop.open()
    for name, spec in TABLES.items():
        rows = len(shop.rows(name))
        console.print(f"Table {name} {'created' if new else 'already exists'}, with {counted(rows, 'row')}")
        topics.ensure_topic(bootstrap, spec.topic, _PARTITIONS)
    stack.start_server("Debezium", Debezium(home() / "debezium", bootstrap, postgres, {"topic.prefix": NAMESPACE}))
    console.print(f"Its rows change all the time now. Change some too: psql {postgres.url}", soft_wrap=True)
    stop = Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            yield Captured(shop, stop, pool.submit(shop.work, _PER_SECOND, stop))
        finally:
            stop.set()


def compare_all(shop: Shop, catalog: LakeCatalog) -> dict[str, Comparison]:
    """Compare each table with the database; of a history, the current versions."""
    found = {}
    for name, spec in TABLES.items():
        rows = _rows(catalog, spec.identifier)
        current = [row for row in rows if spec.write != "history" or row["valid_to"] is None]
        found[".".join(spec.identifier)] = compare(KEYS[name], shop.rows(name), current)
    return found


def _have_moved(positions: dict[str, set[tuple[int, ...]]]) -> bool:
    """Remember each table's position, and return whether every table has had several.

    A run lasts as long as the database changes, so its end can't be awaited.
    """
    for status in _statuses():
        if position := tuple(of.position for of in status.partitions if of.position):
            positions[status.table].add(position)
    return all(len(positions[".".join(spec.identifier)]) >= _LOADS for spec in TABLES.values())


def _no_lag() -> bool:
    return not any(status.lag for status in _statuses())


def _statuses() -> list[TopicStatus]:
    return collect([*TABLES.values()], KafkaResource().cluster(), CatalogResource().open())


def _rows(catalog: LakeCatalog, identifier: tuple[str, str]) -> list[dict[str, Any]]:
    table = catalog.table(identifier)
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist() if table else []
    return rows


def _changes(shop: Shop) -> Table:
    shown = Table("what happened in the database", title="Changes while it ran")
    shown.add_column("transactions", justify="right")
    for kind, times in shop.happened.items():
        shown.add_row(kind, f"{times:,}")
    return shown


def _compared(found: Mapping[str, Comparison]) -> Table:
    shown = Table("table", title="PostgreSQL and Iceberg, compared row by row")
    for heading in ("rows in PostgreSQL", "rows in Iceberg", "rows that differ"):
        shown.add_column(heading, justify="right")
    for name, comparison in found.items():
        label = f"{name}, current" if WRITES[name.rpartition(".")[2]] == "history" else name
        shown.add_row(label, f"{comparison.wanted:,}", f"{comparison.found:,}", f"{comparison.differences:,}")
    return shown


def _longest_history(catalog: LakeCatalog, identifier: tuple[str, str]) -> Table:
    """Return the versions of the row with the most versions; empty intervals are left out."""
    versions: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(catalog, identifier):
        if not row["_is_deleted"] and row["valid_from"] != row["valid_to"]:
            versions.setdefault(row["phone"], []).append(row)
    most = max(versions, key=lambda phone: len(versions[phone]))
    longest = sorted(versions[most], key=lambda row: row["valid_from"])
    shown = Table("valid_from", "valid_to", title=f"The last versions of a customer, in {'.'.join(identifier)}")
    for name in _COLUMNS:
        shown.add_column(name)
    for row in longest[-_SHOWN:]:
        ends = _time(row["valid_to"]) if row["valid_to"] else ""
        shown.add_row(_time(row["valid_from"]), ends, *(str(row[name]) for name in _COLUMNS))
    return shown


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).time().isoformat("milliseconds")


def _problem(name: str, found: Comparison) -> str:
    of = {"missing": found.missing, "unexpected": found.unexpected, "different": tuple(found.different.items())}
    return f"{name}: " + "; ".join(f"{len(keys)} {what}, such as {keys[0]}" for what, keys in of.items() if keys)
