"""An hour with everything on: ten topics of a running deployment, rules, routes, maintenance, and kills now and then.

Are the tables as fresh at the end as at the beginning, is the memory of each process flat, and is each record in its
table or a dead letter, exactly once, with the values that were produced?
"""

import json
import random
import signal
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from benchmarks.freshness import (
    TOPIC,
    Ledger,
    await_all,
    deployed,
    in_thread,
    later,
    percentiles,
    watch,
    write_documents,
)
from benchmarks.meter import adopt_orphans, resident_bytes
from benchmarks.ours import NAMESPACE
from benchmarks.results import document
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.errors import KafkaLakeError
from kafka_lake.maintenance.policy import table_health

HEADER = ("minutes", "records", "wait, median s", "95 % s", "most s", "commits", "kills", "memory of all, most")
PARTITIONS = 3
KEYS = 500
_TICK_SECONDS = 0.05
_LOOK_SECONDS = 15.0
_BAD, _BREAKS, _DELETES = 211, 97, 89
_STORES = 40
_RUN, _CODE_SERVER = "a run", "code server"

_CLUSTER = """\
type: kafka_lake.KafkaCluster
attributes:
  sensor_interval_seconds: {every}
  maintenance_interval_seconds: 60
  maintenance: {{compact_every: 20, keep_snapshots: 30}}
"""
_COLUMNS = '    columns: "n bigint, id int, store string, amount double, kind string, at timestamp"\n'
_RULES = f"""\
    rules:
      - not_null: [n, store]
      - range: {{column: amount, min: 0}}
      - accepted_values: {{column: kind, values: [order, click, view]}}
      - pattern: {{column: store, regex: "^store-[0-9]+$"}}
      - expression: "n >= 0 and id < {KEYS}"
"""
_SEVERAL = f"""\
type: kafka_lake.KafkaTopic
attributes:
  topic: events
  tables:
    - {{name: {NAMESPACE}.events_orders, where: {{field: kind, equals: order}}}}
    - {{name: {NAMESPACE}.events_clicks, where: {{field: kind, equals: click}}}}
    - name: {NAMESPACE}.events
{_COLUMNS.replace("    ", "      ", 1)}"""
_DERIVED = f"""\
type: kafka_lake.DerivedTable
attributes:
  namespace: {NAMESPACE}
  table: per_minute
  from: [rules_0]
  write: aggregate
  key: {{minute: "date_trunc('minute', at)", store: store}}
  every: "*/5 * * * *"
  sql: |
    SELECT date_trunc('minute', at) AS minute, store, count(*) AS records, sum(n) AS total
    FROM rules_0
    GROUP BY ALL
"""


@dataclass(frozen=True)
class Soak:
    """What is run.

    Args:
        minutes: How long records are produced.
        rate: Records per second and topic.
        every: Seconds between two looks of the sensor.
        kill_every: Seconds between two kills; 0 for none.
        seed: Decides what is killed when.
    """

    minutes: float = 60.0
    rate: float = 20.0
    every: int = 20
    kill_every: float = 240.0
    seed: int = 7

    def documents(self) -> dict[str, str]:
        """Return the project's documents, by topic, and those of the cluster and of the derived table."""
        return {
            "cluster": _CLUSTER.format(every=self.every),
            "per_minute": _DERIVED,
            **{name: TOPIC.format(name=name, namespace=NAMESPACE) + more for name, more in TOPICS.items()},
            "events": _SEVERAL,
        }


TOPICS: Mapping[str, str] = {
    "plain_0": _COLUMNS,
    "plain_1": _COLUMNS,
    "plain_2": _COLUMNS,
    "rules_0": _COLUMNS + _RULES,
    "rules_1": _COLUMNS + _RULES,
    "inferred": "",
    "events": _COLUMNS,
    "live": _COLUMNS + "  read: {continuous: {trigger: 10s, for: 10m}}\n",
    "keyed_0": _COLUMNS + "    write: upsert\n",
    "keyed_1": _COLUMNS + "    write: upsert\n",
}
SIDES = {"events": {"order": "events_orders", "click": "events_clicks"}}


@dataclass
class Sent(Ledger):
    """A ledger that knows which record is at each offset, by its number."""

    numbers: list["array[int]"] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.numbers = [array("q") for _ in range(self.partitions)]

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Yield partition, offset and number of each record."""
        for partition, numbers in enumerate(self.numbers):
            for offset, number in enumerate(numbers):
                yield partition, offset, number


def row(number: int) -> dict[str, Any]:
    """Return the fields of a record. One of 97 breaks a rule of those topics that have rules."""
    return {
        "n": number,
        "id": number * 7919 % KEYS,
        "store": f"store-{number % _STORES}",
        "amount": -1.0 if number % _BREAKS == 5 else number / 4,
        "kind": ("order", "click", "view")[number % 3],
        "at": f"2026-11-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z",
    }


def value(topic: str, number: int) -> bytes | None:
    """Return the bytes of a record's value: one of 211 is no JSON, and in keyed topics one of 89 is a delete."""
    if topic.startswith("keyed") and number % _DELETES == 3:
        return None
    return b"{no json " + str(number).encode() if number % _BAD == 7 else json.dumps(row(number)).encode()


def produce(bootstrap: str, name: str, ledger: Sent, rate: float, stop: threading.Event) -> None:
    """Produce a topic's records at a rate until ``stop`` is set; a key is always in the same partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0})
    began, sent = time.monotonic(), 0
    while not stop.wait(_TICK_SECONDS):
        due = int((time.monotonic() - began) * rate)
        for number in range(sent, due):
            key = row(number)["id"]
            partition = key % PARTITIONS
            producer.produce(name, value(name, number), json.dumps({"id": key}), partition)
            ledger.numbers[partition].append(number)
            ledger.produced[partition].append(time.monotonic())
        sent = due
        producer.poll(0)
    if producer.flush(30):
        raise KafkaLakeError(f"Topic {name}: not all records were delivered.")


def part_of(command: str) -> str | None:
    """Return which part of a deployment a process is by its command line; None if it is none that is watched."""
    for part, reported in (
        ("broker", "kafka.Kafka"),
        ("Spark", "SparkConnectServer"),
        ("Spark's Python", "kafka_lake.engine.daemon"),
        (_CODE_SERVER, "dagster api grpc"),
        ("daemon", "dagster._daemon"),
        ("webserver", "dagster_webserver"),
    ):
        if reported in command:
            return part
    return None


def _processes() -> Iterator[tuple[str, psutil.Process]]:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if part := part_of(command):
                yield part, process
            # Runs, and their steps, are processes that the code server has started.
            elif "spawn_main" in command and any(
                part_of(" ".join(p.cmdline())) == _CODE_SERVER for p in process.parents()
            ):
                yield _RUN, process


def _memory() -> dict[str, int]:
    """Return the memory of each part, bytes; of runs, of which there are several, that of the largest."""
    found: dict[str, int] = {}
    for part, process in _processes():
        with suppress(OSError, psutil.Error):
            size = resident_bytes(process.pid)
            found[part] = max(found.get(part, 0), size) if part == _RUN else found.get(part, 0) + size
    return found


def _kill(chance: random.Random, reported: Callable[[str], None]) -> str | None:
    """Kill a run in progress, or Spark, as chance will have it; return what, or None if there was none."""
    target = chance.choice((_RUN, _RUN, "Spark", "Spark's Python"))
    victims = [process for part, process in _processes() if part == target]
    if not victims:
        return None
    victim = chance.choice(victims)
    with suppress(psutil.NoSuchProcess):
        victim.send_signal(signal.SIGKILL)
    reported(f"killed {target} ({victim.pid})")
    return target


def measure(settings: Soak, folder: Path, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Run the deployment under load, and return what was seen as JSON has it."""
    adopt_orphans()
    write_documents(settings.documents(), folder)
    ledgers: dict[str, Ledger] = {name: Sent(PARTITIONS) for name in TOPICS}
    chance, samples, kills = random.Random(settings.seed), [], []
    with ExitStack() as context:
        stack, bootstrap, catalog = context.enter_context(deployed(folder, TOPICS, PARTITIONS, tell_user))
        watching = context.enter_context(in_thread(lambda stop: watch(catalog, ledgers, stop)))
        with ExitStack() as load:
            producers = [
                load.enter_context(
                    in_thread(lambda stop, n=name: produce(bootstrap, n, ledgers[n], settings.rate, stop))
                )
                for name in TOPICS
            ]
            threads = [watching, *producers]
            await_all(
                lambda: all(any(ledger.seen) for ledger in ledgers.values()), stack, threads, "every table to fill"
            )
            begin = time.monotonic()
            tell_user(f"all tables have rows; {settings.minutes:.0f} minutes begin")
            kill_at = begin + settings.kill_every
            while (at := time.monotonic() - begin) < settings.minutes * 60:
                if settings.kill_every and time.monotonic() >= kill_at and (what := _kill(chance, tell_user)):
                    kills.append({"at": at, "what": what})
                    kill_at = time.monotonic() + settings.kill_every * chance.uniform(0.5, 1.5)
                samples.append(
                    {"at": at, "memory": _memory(), "commits": sum(ledger.commits for ledger in ledgers.values())}
                )
                await_all(later(_LOOK_SECONDS), stack, threads, "")
            end = time.monotonic()
        tell_user("the load has ended; catching up")
        await_all(lambda: all(ledger.complete() for ledger in ledgers.values()), stack, [watching], "the last records")
        problems = [
            problem
            for name, ledger in ledgers.items()
            for problem in differing(catalog, name, ledger)  # type: ignore[arg-type]
        ]
        health = {
            name: {"snapshots": found.snapshots, "data_files": found.data_files, "delete_files": found.delete_files}
            for name in TOPICS
            if (found := table_health(_table(catalog, name)))
        }
    waits = [
        {"at": produced - begin, "seconds": seen - produced, "topic": name}
        for name, ledger in ledgers.items()
        for made, found in zip(ledger.produced, ledger.seen, strict=True)
        for produced, seen in zip(made, found, strict=True)
        if begin <= produced < end
    ]
    return document(
        "soak",
        asdict(settings),
        slices=slices(waits, samples, kills, settings.minutes),
        samples=samples,
        kills=kills,
        records=sum(len(numbers) for ledger in ledgers.values() for numbers in ledger.produced),
        health=health,
        problems=problems,
    )


def slices(
    waits: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
    kills: Sequence[Mapping[str, Any]],
    minutes: float,
) -> list[dict[str, Any]]:
    """Return what was seen in each of six parts of the time."""
    length, found = minutes * 10, []
    for part in range(6):
        begin, end = part * length, (part + 1) * length
        by_topic: dict[str, list[float]] = {name: [] for name in TOPICS}
        for wait in waits:
            if begin <= wait["at"] < end:
                by_topic[wait["topic"]].append(wait["seconds"])
        within = sorted(chain(*by_topic.values()))
        seen = [sample for sample in samples if begin <= sample["at"] < end]
        found.append(
            {
                "from": begin / 60,
                "to": end / 60,
                "records": len(within),
                "seconds": percentiles(within) if within else {},
                "by_topic": {name: percentiles(sorted(element)) for name, element in by_topic.items() if element},
                "commits": seen[-1]["commits"] - seen[0]["commits"] if seen else 0,
                "kills": sum(begin <= kill["at"] < end for kill in kills),
                "memory": {
                    name: max(sample["memory"].get(name, 0) for sample in seen)
                    for name in sorted({name for sample in seen for name in sample["memory"]})
                },
                "memory_of_all": max((sum(sample["memory"].values()) for sample in seen), default=0),
            }
        )
    return found


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the lines of the table that the terminal shows: a sixth of the time each."""
    return [
        (
            f"{part['from']:.0f} to {part['to']:.0f}",
            f"{part['records']:,}",
            *(f"{part['seconds'][name]:.1f}" if part["seconds"] else "" for name in ("p50", "p95", "max")),
            f"{part['commits']:,}",
            f"{part['kills']}",
            f"{part['memory_of_all'] / 2**20:,.0f} MiB",
        )
        for part in result["slices"]
    ]


def differing(catalog: LakeCatalog, topic: str, ledger: Sent) -> list[str]:
    """Compare a topic's tables with what was produced, and return what differs, a line each."""
    if topic.startswith("keyed"):
        return _differing_keys(catalog, topic, ledger)
    sides = SIDES.get(topic, {})
    wanted: dict[str, Counter[tuple[int, int, int]]] = {table: Counter() for table in (topic, *sides.values())}
    letters = Counter[tuple[int, int]]()
    for partition, offset, number in ledger.places():
        fields = row(number)
        if number % _BAD == 7 or (topic.startswith("rules") and fields["amount"] < 0):
            letters[partition, offset] += 1
        else:
            wanted[sides.get(fields["kind"], topic)][partition, offset, number] += 1
    problems = []
    for table, places in wanted.items():
        found = Counter[tuple[int, int, int]]()
        for item in _table(catalog, table).scan().to_arrow().to_pylist():
            kafka = item.pop("_kafka")
            found[kafka["partition"], kafka["offset"], item["n"]] += 1
            if (values := _as_produced(item)) != row(item["n"]):
                problems.append(f"{table}: {values} instead of {row(item['n'])}")
        problems += _difference(table, places, found)
    return problems + _difference(f"{topic}: dead letters", letters, _letters(catalog, topic))


def _differing_keys(catalog: LakeCatalog, topic: str, ledger: Sent) -> list[str]:
    newest: dict[int, int | None] = {}
    letters = Counter[tuple[int, int]]()
    for partition, offset, number in ledger.places():
        if number % _DELETES == 3:
            newest[row(number)["id"]] = None
        elif number % _BAD == 7:
            letters[partition, offset] += 1
        else:
            newest[row(number)["id"]] = number
    found = [
        _as_produced(column) for column in _table(catalog, topic).scan().to_arrow().drop_columns("_kafka").to_pylist()
    ]
    wanted = Counter(json.dumps(row(number)) for number in newest.values() if number is not None)
    return [
        *_difference(topic, wanted, Counter(json.dumps(item) for item in found)),
        *_difference(f"{topic}: dead letters", letters, _letters(catalog, topic)),
    ]


def _as_produced(values: Mapping[str, Any]) -> dict[str, Any]:
    at = values["at"]
    return {**values, "at": at if isinstance(at, str) else at.strftime("%Y-%m-%dT%H:%M:%SZ")}


def _letters(catalog: LakeCatalog, topic: str) -> Counter[tuple[int, int]]:
    read = _table(catalog, f"{topic}__dead_letters").scan().to_arrow().to_pylist()
    return Counter((item["partition"], item["offset"]) for item in read)


def _difference(of: str, wanted: Counter[Any], found: Counter[Any]) -> list[str]:
    lacking, surplus = wanted - found, found - wanted
    return [
        f"{of}: {sum(counted.values())} {what}, such as {next(iter(counted))}"
        for what, counted in (("missing", lacking), ("too many", surplus))
        if counted
    ]


def _table(catalog: LakeCatalog, name: str) -> Any:
    return catalog.pyiceberg.load_table((NAMESPACE, name))
