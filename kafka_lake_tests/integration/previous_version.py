"""Writes ``previous_version.tar.xz``: tables, catalog and broker as a version of kafka_lake leaves them behind.

``test_previous_version`` unpacks the archive and goes on with the code as it is. So the test proves that later code
reads what earlier code wrote. The archive in the repository was written by version 0.1.0 as of November 2026. Keep it
as long as tables of that version may exist. To write one with the code of the current checkout, run::

    python -m kafka_lake_tests.integration.previous_version

What is in it, topic by topic:

- ``previous-orders``: declared columns, two partitions, good and bad records, tombstones; two commits, then a
  compaction, whose snapshot carries no position.
- ``previous-events``: inferred columns that evolved by new fields, by a field with a dot in its name, and by a field
  that changed its type; then offsets that a person skipped.
- ``previous-letters``: a dead-letter replay that died after it had published the table. The same records are rows and
  dead letters, until a run reconciles them.
- ``previous-rolled-back``: a dead-letter replay that was completed, then the table was rolled back to before it. The
  record is nowhere, until a run brings its dead letter back.
- ``previous-torn``: a run that died between its two publications. Its dead letters are visible, its rows are not.

The last batch of every topic is in Kafka only. Iceberg's metadata holds absolute paths, so the files must come to lie
in `FOLDER` again. The times in Iceberg's metadata are moved to `WRITTEN_AT`: Iceberg refuses commits to tables whose
last one lies in the future, and the clock of the machine that wrote them may be ahead.
"""

import fcntl
import json
import re
import shutil
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from unittest.mock import patch

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.components.resources.kafka import KafkaResource
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.observer import Observer
from kafka_lake.ingest.run import ingest, replay_dead_letters, reset
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.positions import read_state
from kafka_lake.local_stack.broker import EmbeddedBroker
from kafka_lake_tests.conftest import Topic

ARCHIVE = Path(__file__).with_suffix(".tar.xz")
FOLDER = Path("/tmp/kafka_lake_previous_version")
CATALOG = "lake"
FIRST_RECORD_AT = datetime(2025, 12, 1, tzinfo=UTC)
WRITTEN_AT = datetime(2025, 12, 2, tzinfo=UTC)

_NAMESPACE = "previous"
_CLOCKS = re.compile(r'("(?:timestamp-ms|last-updated-ms)"\s*:\s*)(\d+)')
# The broker writes these again, or does without them.
_LEFT_OUT = re.compile(r".*\.crc|.*/broker/(broker\.log|server\.properties|logs/\.lock)|.*/spark(/.*)?")

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True)
class Record:
    """A record to produce; `bytes` and None as they are, anything else as JSON."""

    value: object
    partition: int = 0
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def raw(self) -> bytes | None:
        """The value as Kafka has it."""
        return self.value if self.value is None or isinstance(self.value, bytes) else json.dumps(self.value).encode()


@dataclass(frozen=True)
class History:
    """A topic's settings, and its records in batches; the last batch is not ingested."""

    spec: TopicTable
    batches: tuple[tuple[Record, ...], ...]
    partitions: int = 1

    def records(self) -> dict[Place, tuple[Record, datetime]]:
        """Return every record and its timestamp, by where it is."""
        ends: Counter[int] = Counter()
        found: dict[Place, tuple[Record, datetime]] = {}
        for number, record in enumerate(each for batch in self.batches for each in batch):
            found[record.partition, ends[record.partition]] = record, FIRST_RECORD_AT + timedelta(minutes=number)
            ends[record.partition] += 1
        return found


ORDERS = History(
    TopicTable(
        "previous-orders",
        _NAMESPACE,
        "orders",
        schema="id bigint, price decimal(9,2), at timestamp, note string",
        partition_by=("bucket(2, id)",),
    ),
    (
        (
            Record(
                {"id": 1, "price": 10.5, "at": "2025-12-01T10:00:00Z", "note": "first"},
                key=b"1",
                headers=(("source", b"web"), ("empty", None)),
            ),
            Record({"id": 2, "price": 0.01}, 1, b"2"),
            Record(b"not json", key=b"3", headers=(("source", b"\xff"),)),
            Record(None, key=b"1"),
            Record({"id": "four"}, 1),
            Record({"id": 5, "note": "ünï 🍕"}, headers=(("twice", b"1"), ("twice", b"2"))),
        ),
        (
            Record({"id": 6, "price": 9999999.99}, 1),
            Record({"id": 7, "at": "2025-12-02T23:59:59.123456+05:30"}),
            Record({"id": 8, "price": 123456789}, 1),
        ),
        (
            Record({"id": 9, "price": 1, "note": "later"}, key=b"9"),
            Record(b"\xff", 1, headers=(("source", b"later"),)),
            Record(None, 1, b"2"),
            Record({"id": 10}),
            Record({"id": 11, "at": "2025-12-03T00:00:00Z"}, 1),
        ),
    ),
    partitions=2,
)
EVENTS = History(
    TopicTable("previous-events", _NAMESPACE, "events", on_incompatible="new_column"),
    (
        (Record({"id": 1, "a.b": "dotted", "s": {"x": 1}, "l": [{"p": 1}]}),),
        (
            Record({"id": 2, "s": {"x": 2, "y": {"z": "new"}}, "l": [{"p": 2, "q": True}], "added": 0.5}),
            Record({"id": "three"}),
        ),
        (Record({"id": 4, "added": 4.5}), Record({"id": 5})),
        (
            Record({"id": "six", "a.b": "again", "s": {"x": 6, "w": "newer"}, "later": 6}),
            Record(b"{"),
            Record({"id": 8, "l": [{"q": False}], "added": 8.5}),
        ),
    ),
)
STRICT, MENDED = "id bigint not null, note string", "id bigint, note string"
LETTERS = History(
    TopicTable("previous-letters", _NAMESPACE, "letters", schema=STRICT),
    (
        (
            Record({"id": 0}),
            Record({"note": "one"}),
            Record({"note": "two"}),
            Record(b"junk"),
            Record({"note": "four"}, key=b"k", headers=(("h", b"v"),)),
        ),
        (Record({"id": 5}), Record({"note": "six"})),
    ),
)
ROLLED_BACK = History(
    TopicTable("previous-rolled-back", _NAMESPACE, "rolled_back", schema=STRICT, sort_by=("note desc",)),
    (
        (Record({"id": 0}), Record({"note": "one"}, key=b"k", headers=(("h", b"v"),)), Record(b"junk")),
        (Record({"id": 3}),),
    ),
)
TORN = History(
    TopicTable("previous-torn", _NAMESPACE, "torn", schema=STRICT),
    (
        (Record({"id": 0}),),
        (Record({"id": 1}), Record({"note": "two"}), Record(b"junk")),
        (Record({"id": 4}), Record(b"more junk")),
    ),
)


class _KilledError(BaseException):
    """Stands for the end of a process: nothing is cleaned up after it."""


def mended(history: History) -> TopicTable:
    """Return the settings by which the dead letters without an id become rows."""
    return replace(history.spec, schema=MENDED)


def catalog_resource(name: str = CATALOG) -> CatalogResource:
    """Return the catalog in `FOLDER`.

    Args:
        name: Its name in Spark and PyIceberg.
    """
    return CatalogResource(
        name=name,
        properties={
            "type": "sql",
            "uri": f"sqlite:///{FOLDER / 'catalog.db'}",
            "warehouse": f"file://{FOLDER / 'warehouse'}",
        },
    )


def broker() -> EmbeddedBroker:
    """Return the broker in `FOLDER`, on a free port."""
    return EmbeddedBroker(FOLDER / "broker", heap="384m")


@contextmanager
def folder() -> Iterator[None]:
    """Have `FOLDER`, empty at first, during the block; another process waits for its turn. It is removed afterwards."""
    with FOLDER.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(FOLDER)


def main() -> None:
    """Write the archive with the code of this checkout."""
    with folder():
        catalog = catalog_resource()
        spark = SparkResource(
            spark_config={
                "spark.master": "local[2]",
                "spark.driver.memory": "1g",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(FOLDER / "spark"),
            },
            catalog=catalog,
        )
        with broker() as running:
            kafka = KafkaResource(properties={"bootstrap.servers": running.bootstrap_servers})
            connections = Connections(
                kafka.cluster(), kafka.spark_options(), catalog.open(), lambda: spark.spark_session
            )
            try:
                _write(connections, running.bootstrap_servers)
            finally:
                spark.stop()
        _move_clocks()
        _pack()
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes")


def _write(connections: Connections, bootstrap_servers: str) -> None:
    batches = _produced(ORDERS, bootstrap_servers)
    for run in ("run-0", "run-1"):
        next(batches)
        ingest(ORDERS.spec, connections, run)
    _call(connections, "rewrite_data_files", ORDERS, options="map('rewrite-all', 'true')")
    next(batches)

    batches = _produced(EVENTS, bootstrap_servers)
    for run in ("run-0", "run-1"):
        next(batches)
        ingest(EVENTS.spec, connections, run)
    next(batches)
    reset(EVENTS.spec, connections, "skips", "latest")
    next(batches)

    batches = _produced(LETTERS, bootstrap_servers)
    next(batches)
    ingest(LETTERS.spec, connections, "run-0")
    with _killed_at("primary published") as die:
        replay_dead_letters(
            mended(LETTERS), connections, "killed", "offset in (1, 2)", observer=Observer(step_done=die)
        )
    next(batches)

    batches = _produced(ROLLED_BACK, bootstrap_servers)
    next(batches)
    ingest(ROLLED_BACK.spec, connections, "run-0")
    before = read_state(connections.catalog.pyiceberg.load_table(ROLLED_BACK.spec.identifier)).head
    replay_dead_letters(mended(ROLLED_BACK), connections, "moves", "offset = 1")
    _call(connections, "rollback_to_snapshot", ROLLED_BACK, snapshot_id=f"{before}")
    next(batches)

    batches = _produced(TORN, bootstrap_servers)
    next(batches)
    ingest(TORN.spec, connections, "run-0")
    next(batches)
    with _killed_at("dead letters published") as die:
        ingest(TORN.spec, connections, "killed", observer=Observer(step_done=die))
    next(batches)


def _call(connections: Connections, procedure: str, history: History, **arguments: str) -> None:
    connections.spark().sql(connections.catalog.call(procedure, history.spec.identifier, **arguments)).collect()


def _produced(history: History, bootstrap_servers: str) -> Iterator[None]:
    """Create a topic, and produce one batch of its records at each step."""
    address = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
    topic = Topic(history.spec.topic, history.spec.table, AdminClient(address), Producer({**address, "linger.ms": 0}))
    topic.create(history.partitions)
    records = iter(history.records().values())
    for batch in history.batches:
        for record, at in islice(records, len(batch)):
            topic.send(record.raw, record.partition, record.key, record.headers, int(at.timestamp() * 1000))
        yield


@contextmanager
def _killed_at(step: str) -> Iterator[Callable[[str], None]]:
    """Give an ``step_done`` that ends the run at a step as the end of its process would."""

    def die(done: str) -> None:
        if done == step:
            raise _KilledError(step)

    # A dead process discards and drops nothing.
    with patch.multiple(StagingBranch, discard=lambda self: None, drop=lambda self: None):
        try:
            yield die
        except _KilledError:
            return
    raise AssertionError(f"there was no step {step!r}")


def _move_clocks() -> None:
    """Let the last change of the tables be at `WRITTEN_AT`, and all others as long before it as they were."""
    ahead = int((time.time() - WRITTEN_AT.timestamp()) * 1000)
    for path in FOLDER.glob("warehouse/**/*.metadata.json"):
        path.write_text(_CLOCKS.sub(lambda found: f"{found[1]}{int(found[2]) - ahead}", path.read_text()))


def _pack() -> None:
    def cleaned(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return None if _LEFT_OUT.fullmatch(member.name) else member

    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        archive.add(FOLDER, FOLDER.name, filter=cleaned)


if __name__ == "__main__":
    main()
