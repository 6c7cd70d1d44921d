"""Chaos with a database: PostgreSQL, captured by Debezium, while faults strike; then each row is compared."""

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2

from examples.pizza_shop.compare import compare
from kafka_lake.catalog.positions import read_state
from kafka_lake.common.processes import free_port
from kafka_lake.devstack.sources import CONFIRMED, SLOT, Debezium, EmbeddedPostgres, Owner
from kafka_lake.ingest.published import examine
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.chaos.faults import Chaos, Tally
from kafka_lake_tests.chaos.rounds import catch_up, chosen, count, first_tables, strike
from kafka_lake_tests.chaos.verify import PositionWatch, Verdict, clean_up, nothing_left
from kafka_lake_tests.chaos.world import World, wait_for
from kafka_lake_tests.contract.cdc.source import DECLARED, NAME, Source, plain
from kafka_lake_tests.contract.postgres import database

LABELS = (
    "planned",
    "table created",
    "deletes published",
    "table staged",
    "audited",
    "table published",
)
_KILLED_AT = tuple(label for label in LABELS if label != "table created")
_BEFORE_PUBLICATION = ("planned", "table staged", "audited", "deletes published")
_AS_EVER = (
    "kill while writing",
    "kill broker",
    "race",
    "answer lost",
    "answer lost as 504",
    "answer lost as 503",
    "publication's answer lost",
    "catalog fails",
    "catalog slow",
    "kill engine",
    "kill engine's Python",
    "kill catalog",
    "host replaced",
    "catalog fails in reporting",
    "network cut",
    "network stalled",
)
_OWNER = Owner("cdc", "cdc-secret", "shop")
_PREFIX = "chaos"
_PARTITIONS = 3
_STEP = 1_000_000
_SECONDS = 120.0


@dataclass
class Captured:
    """A table made from the topic of the database's table.

    Args:
        spec: Its settings.
        has_table: Whether there is a table yet.
    """

    spec: TopicTable
    has_table: bool = False
    partitions: int = _PARTITIONS

    @property
    def name(self) -> str:
        """The topic."""
        return self.spec.topic


class DatabaseTraffic:
    """Applications at work in the database, that don't mind what happens to it.

    Args:
        server: The database.
        seed: Of what they do; in which order is the scheduler's.

    Attributes:
        transactions: How often something came to its end, and how often the database was gone.
    """

    def __init__(self, server: EmbeddedPostgres, seed: int) -> None:
        self.topics: dict[str, Captured] = {}
        self.refusals: Counter[str] = Counter()
        self.errors: list[str] = []
        self.transactions: Counter[str] = Counter()
        port = server.port
        # Short transactions one after the other, some of a few seconds, and some of half a minute: each its own rows.
        pauses = (0.0, 0.0, 0.05, 0.5)
        sources = [Source(port, _OWNER, seed + n, n * _STEP, pause) for n, pause in enumerate(pauses)]
        self.source, *self._others = sources
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(other,), daemon=True) for other in self._others]

    def start(self) -> None:
        """Let them work until `stop`."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End what they do, and wait until their transactions are over."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_SECONDS)
            if thread.is_alive():
                self.errors.append("an application hangs")

    def burst(self, _topic: Captured, changes: int = 60) -> None:
        """Make some changes, and return once they are committed or rolled back."""
        self._happen(self.source, changes)

    def _work(self, source: Source) -> None:
        while not self._stop.wait(0.5):
            self._happen(source, 40)

    def _happen(self, source: Source, changes: int) -> None:
        try:
            source.happen(changes)
            self.transactions["in rounds that ended"] += 1
        except psycopg2.Error:
            self.transactions["in rounds cut off"] += 1
            wait_for(partial(self._knows, source), _SECONDS, "the database")

    @staticmethod
    def _knows(source: Source) -> bool:
        try:
            source.find(source.before + _STEP)
        except psycopg2.Error:
            return False
        return True


class CapturedWorld(World):
    """The systems of a chaos, and PostgreSQL and Debezium besides.

    Attributes:
        postgres: The database's server.
        debezium: Reaches the brokers by the faulty network, as runs do.
    """

    traffic: DatabaseTraffic  # type: ignore[assignment]

    def _start_traffic(self) -> None:
        self.postgres = self._stack.enter_context(database(free_port(), _OWNER))
        self.traffic = DatabaseTraffic(self.postgres, self.seed)
        self.traffic.source.create()
        settings = {"topic.prefix": _PREFIX}
        worker = Debezium(self.folder / "debezium", self.brokers.bootstrap_servers, self.postgres, settings)
        self.debezium = self._stack.enter_context(worker)
        self._stack.callback(self.traffic.stop)

    def await_capture(self) -> None:
        """Wait until all that was committed before is in Kafka; a connector that has given up is started again."""
        source = self.traffic.source
        ((before,),) = source.execute("SELECT pg_current_wal_insert_lsn()")
        source.execute(f"INSERT INTO {NAME} (id) SELECT least(min(id), 0) - 1 FROM {NAME}")

        def captured() -> bool:
            return source.execute(CONFIRMED, str(before), SLOT) == [(True,)]

        try:
            wait_for(captured, _SECONDS / 2, "the last change to be in Kafka")
        except TimeoutError:
            self.traffic.transactions["in a connector that had to be restarted"] += 1
            self.debezium.kill()
            self.debezium.start()
            wait_for(captured, _SECONDS, "the last change to be in Kafka, after Debezium was restarted")


class DatabaseChaos(Chaos):
    """Strikes a world with a database."""

    world: CapturedWorld
    # A merge and a history are many queries, whose plans a Spark that is cold takes long for.
    run_seconds = 1_200.0

    def faults(self) -> dict[str, Callable[[], None]]:
        """Return every fault by its name."""
        before = super().faults()
        named: dict[str, Callable[[], None]] = {f"kill at {step}": partial(self.kill_at, step) for step in _KILLED_AT}
        named |= {f"zombie at {step}": partial(self.zombie, step) for step in _BEFORE_PUBLICATION}
        named |= {name: before[name] for name in _AS_EVER}
        return named | {
            "kill Connect": lambda: self.while_writing(lambda: self.restart(self.world.debezium)),
            "kill database": self.kill_database,
            "kill Connect and run": self.kill_both,
        }

    def kill_database(self) -> None:
        """SIGKILL PostgreSQL with all its open transactions while a run is on, and start it again."""
        self.while_writing(lambda: self.restart(self.world.postgres))
        self.world.await_capture()

    def kill_both(self) -> None:
        """SIGKILL Debezium's worker and a run, and start the worker again: it tells some changes twice."""
        run = self.start(self.any_topic())
        self.until_writing(run)
        self.world.debezium.kill()
        run.send(signal.SIGKILL)
        self.finish(run)
        self.world.debezium.start()


def run_cdc_chaos(
    folder: Path,
    seed: int,
    go_on: Callable[[int, int], bool],
    only: tuple[str, ...] = (),
    tell_user: Callable[[str], None] = print,
) -> tuple[Verdict, Tally]:
    """Strike until it is enough, let the tables catch up, and compare them with the database.

    Args:
        folder: Data and logs of all systems; must be empty.
        seed: Decides faults and changes.
        go_on: Told how many rounds there were and how many faults one deck has; returns whether another shall follow.
        only: Faults whose names begin so; empty for all.
        tell_user: Called with a line of progress.
    """
    tally = Tally()

    def reported(line: str) -> None:
        with (folder / "faults.log").open("a") as file:
            file.write(line + "\n")
        tell_user(line)

    with CapturedWorld(folder, 1, seed, None, reported) as world:
        traffic = world.traffic
        topic = f"{_PREFIX}.public.{NAME}"
        for name, write in (("state", "upsert"), ("versions", "history")):
            spec = TopicTable(
                topic, "chaos", name, schema=DECLARED, write=write, envelope="debezium",
                max_records_per_commit=10_000,
            )  # fmt: skip
            traffic.topics[name] = Captured(spec)
        topics = [*traffic.topics.values()]
        traffic.burst(topics[0], 300)
        world.await_capture()
        chaos = DatabaseChaos(world, topics, random.Random(seed), tally)  # type: ignore[arg-type]
        watch = PositionWatch(world.catalog())
        first_tables(chaos)
        traffic.start()
        hung = strike(chaos, chosen(chaos, only), watch, go_on)
        reported("faults off; catching up")
        traffic.stop()
        world.await_capture()
        failures = catch_up(chaos)
        watch.look(traffic.topics)  # type: ignore[arg-type]
        verdict = _verify(world)
        verdict.problems = hung + failures + chaos.problems + watch.problems + verdict.problems + traffic.errors
        (folder / "verdict").write_text("\n".join([*verdict.problems, *verdict.notes, ""]))
        count(world, verdict, LABELS)
        return verdict, tally


def _verify(world: CapturedWorld) -> Verdict:
    """Compare each table with the database; call it with all faults off and all runs done."""
    verdict = Verdict()
    catalog = world.catalog()
    wanted = world.traffic.source.plain_rows()
    verdict.figures["rows in the database"] = len(wanted)
    for name, topic in world.traffic.topics.items():
        spec = topic.spec
        table = catalog.table(spec.identifier)
        if table is None:
            verdict.problems.append(f"table {name}: there is none")
            continue
        position = read_state(table).position
        if position is None or dict(position.offsets) != dict(world.cluster().watermarks_of(spec.topic).end):
            verdict.problems.append(f"table {name}: its position isn't the topic's end")
        rows = _rows(catalog, spec.identifier)
        current = [row for row in rows if spec.write == "upsert" or row["valid_to"] is None]
        verdict.problems += _differences(name, wanted, current)
        verdict.problems += [f"table {name}: dead letter {letter}" for letter in _dead_letters(catalog, spec)]
        if spec.write == "history":
            verdict.figures["changes in the history"] = len(rows)
        for finding in examine(spec, catalog, world.cluster()):
            verdict.problems += [f"table {name}: check {finding.check}: {problem}" for problem in finding.problems]
        verdict.figures[f"commits of {name}"] = len(table.metadata.snapshots)
    clean_up(world, verdict)
    for topic in world.traffic.topics.values():
        nothing_left(catalog, topic.spec, verdict)
    return verdict


def _rows(catalog: Any, identifier: tuple[str, str]) -> list[dict[str, Any]]:
    table = catalog.table(identifier)
    return [plain(row) for row in table.scan().to_arrow().to_pylist()] if table else []


def _dead_letters(catalog: Any, spec: TopicTable) -> list[str]:
    return sorted({row["error_message"] for row in _rows(catalog, spec.dead_letter_table)})


def _differences(name: str, wanted: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[str]:
    compared = compare(["id"], wanted, found)
    of = {
        "rows are missing": compared.missing,
        "rows aren't in the database, or are there twice": compared.unexpected,
        "rows differ": tuple(compared.different.items()),
    }
    return [f"table {name}: {len(keys)} {what}, the first: {keys[:5]}" for what, keys in of.items() if keys]
