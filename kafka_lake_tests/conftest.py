"""One broker, one Spark session and one SQLite catalog for the whole test session; a topic of its own for each test."""

import json
import os
import re
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import HealthCheck, settings
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.table import Table
from rich.console import Console
from typer.testing import CliRunner, Result

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import read_state
from kafka_lake.common.offsets import Position
from kafka_lake.devstack.servers import EmbeddedBroker, EmbeddedRegistry
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.contract.pairs import PAIRS, start_pair

NAMESPACE = "it"

# How fast an example is says how busy the machine is; benchmarks say how fast the code is.
# The same examples each time: what is new is found at night, by `--hypothesis-profile random`, and not by whoever
# changes something else.
settings.register_profile(
    "random", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, max_examples=1000
)
settings.register_profile("kafka_lake", settings.get_profile("random"), derandomize=True, max_examples=100)
settings.load_profile("kafka_lake")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # In a background job of a shell. Dagster gives SIGTERM what SIGINT has, and servers that tests start inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Sent:
    """A record as the broker acknowledged it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset


@dataclass
class Topic:
    """A topic, and the ledger of everything that was produced to it and is not aborted."""

    name: str
    table: str
    admin: AdminClient
    producer: Producer
    ledger: list[Sent] = field(default_factory=list)

    def spec(self, schema: str | None = "id bigint", **settings: Any) -> TopicTable:
        return TopicTable(self.name, NAMESPACE, self.table, schema=schema, **settings)

    def send(
        self,
        value: object,
        partition: int = 0,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Sent:
        """Produce one record, bytes and None as they are, anything else as JSON, and wait for the broker's answer."""
        raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        stamp = timestamp_ms or int(time.time() * 1000)
        answers: list[Sent] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            answers.append(Sent(partition, message.offset(), key, raw, tuple(headers), stamp))

        self.producer.produce(
            self.name, raw, key, partition, on_delivery=delivered, timestamp=stamp, headers=list(headers)
        )
        assert self.producer.flush(20) == 0
        self.ledger += answers
        return answers[0]

    def send_ids(self, ids: Sequence[int], partitions: int = 1) -> None:
        """Produce ``{"id": …}`` for each, round robin over the partitions."""
        for identifier in ids:
            self.send({"id": identifier}, identifier % partitions)

    def create(self, partitions: int = 1, **config: str) -> None:
        new = NewTopic(self.name, partitions, 1, config={"retention.ms": "-1", **config})
        self.admin.create_topics([new])[self.name].result(20)
        self.wait_for(lambda: self.partitions() == partitions)

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(20)
        self.wait_for(lambda: self.partitions() == 0)

    def partitions(self) -> int:
        # By the producer, which sends to those partitions only that its own metadata know.
        found = self.producer.list_topics(timeout=10).topics.get(self.name)
        return len(found.partitions) if found else 0

    @staticmethod
    def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the broker didn't get there"
            time.sleep(0.05)


@dataclass(frozen=True)
class View:
    """A topic's tables as readers see them, by PyIceberg."""

    catalog: LakeCatalog
    spec: TopicTable

    @property
    def table(self) -> Table:
        found = self.catalog.table(self.spec.identifier)
        assert found is not None, f"no table {self.spec.identifier}"
        return found

    def rows(self) -> list[dict[str, Any]]:
        return _rows(self.table)

    def dead_letters(self) -> list[dict[str, Any]]:
        table = self.catalog.table(self.spec.dead_letter_table)
        return _rows(table) if table else []

    def ids(self) -> list[Any]:
        return sorted(row["id"] for row in self.rows())

    def position(self) -> dict[int, int]:
        position = read_state(self.table).position
        return dict(position.offsets) if position else {}

    def fingerprint(self) -> tuple[Any, ...]:
        """Return all that a run which publishes nothing must leave as it was: refs, snapshots, data files."""
        prints: list[Any] = []
        for name in (*self.spec.identifiers[:2], self.spec.deletes_table):
            if table := self.catalog.table(name):
                refs = {key: ref.snapshot_id for key, ref in table.metadata.refs.items()}
                prints.append((refs, {s.snapshot_id for s in table.metadata.snapshots}, data_files(table)))
            else:
                prints.append(None)
        return tuple(prints)

    def call(self, procedure: str, **arguments: str) -> str:
        """Return the statement that calls one of Iceberg's procedures for the topic's table."""
        return self.catalog.call(procedure, self.spec.identifier, **arguments)

    def sql_name(self) -> str:
        return self.catalog.spark_name(self.spec.identifier)

    def assert_exactly_once(self, ledger: Sequence[Sent], position: Mapping[int, int] | None = None) -> None:
        """Assert that every produced record with a value is once in the table or once in the dead letters."""
        held = Counter((r["_kafka"]["partition"], r["_kafka"]["offset"]) for r in self.rows())
        dead = Counter((r["partition"], r["offset"]) for r in self.dead_letters())
        assert held + dead == Counter(sent.place for sent in ledger if sent.value is not None)
        ends: dict[int, int] = {}
        for sent in ledger:
            ends[sent.partition] = max(ends.get(sent.partition, 0), sent.offset + 1)
        assert {p: o for p, o in self.position().items() if o} == (ends if position is None else position)

    def assert_no_branches(self) -> None:
        for name in self.spec.identifiers:
            if table := self.catalog.table(name):
                assert set(table.metadata.refs) == {"main"}

    def carried_by(self, snapshot_id: int) -> Position:
        snapshot = self.table.metadata.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        assert snapshot.summary is not None
        return Position.from_json(snapshot.summary.additional_properties["kafka-lake.position"])


def without_totals(catalog: LakeCatalog, identifier: tuple[str, str]) -> None:
    """Take the totals out of the summaries of a table's snapshots, which the specification calls optional."""
    table = catalog.pyiceberg.load_table(identifier)
    with table.io.new_input(table.metadata_location).open() as file:
        document = json.loads(file.read())
    for snapshot in document["snapshots"]:
        summary = snapshot["summary"]
        snapshot["summary"] = {key: value for key, value in summary.items() if not key.startswith("total-")}
    # What is known of the snapshots of a table needn't be parsed again: this is another table.
    document["table-uuid"] = str(uuid.uuid4())
    bare = f"{table.location()}/metadata/99999-{uuid.uuid4()}.metadata.json"
    with table.io.new_output(bare).create() as file:
        file.write(json.dumps(document).encode())
    catalog.pyiceberg.drop_table(identifier)
    catalog.pyiceberg.register_table(identifier, bare)


def files(table: Table) -> set[str]:
    """Return the files in the table's folder, in metadata or not, by their paths in it."""
    location = table.location()
    scheme = location.partition(":")[0]
    store: Any = FsspecFileIO(table.io.properties).get_fs(scheme)
    store.invalidate_cache()
    return set(map(in_its_folder(location), store.find(location)))


def in_its_folder(location: str) -> Callable[[str], str]:
    """Return a function that gives the part of a path, with or without its scheme, behind a folder."""

    def bare(path: str) -> str:
        return re.sub("^[a-z0-9]+:", "", path).lstrip("/")

    return lambda path: bare(path).removeprefix(bare(location)).lstrip("/")


def data_files(table: Table) -> set[str]:
    """Return the names of the data files in the table's folder, in metadata or not."""
    found = (path for path in files(table) if path.startswith("data/") and path.endswith(".parquet"))
    return {path.rpartition("/")[2] for path in found}


def _rows(table: Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return rows


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), heap="384m") as running:
        yield running


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRegistry]:
    with EmbeddedRegistry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="session")
def lake_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def kafka_resource(broker: EmbeddedBroker) -> KafkaResource:
    return KafkaResource(properties={"bootstrap.servers": broker.bootstrap_servers})


def pytest_addoption(parser: pytest.Parser) -> None:
    known = ", ".join(sorted(PAIRS))
    parser.addoption("--pair", default="sqlite_files", help=f"catalog and storage, of {known}; one for each worker")


def pair_of(config: pytest.Config) -> str:
    """Return the pair of this worker."""
    pairs = config.getoption("--pair").split(",")
    if unknown := set(pairs) - set(PAIRS):
        raise pytest.UsageError(f"--pair: {unknown.pop()} is none of {', '.join(sorted(PAIRS))}")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return str(pairs[int(worker.removeprefix("gw")) % len(pairs)])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is about other pairs than the one that this session has."""
    pair = pair_of(config)
    others = [test for test in items if (about := test.get_closest_marker("pairs")) and pair not in about.args]
    config.hook.pytest_deselected(items=others)
    items[:] = [test for test in items if test not in others]


@pytest.fixture(scope="session")
def catalog_resource(lake_home: Path, request: pytest.FixtureRequest) -> Iterator[CatalogResource]:
    # As properties_from_environment would give them, without touching the other tests' environment.
    with start_pair(pair_of(request.config), lake_home) as properties:
        yield CatalogResource(name="lake", properties=properties)


@pytest.fixture(scope="session")
def spark_resource(catalog_resource: CatalogResource, lake_home: Path) -> Iterator[SparkResource]:
    config = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        # Most of what a test compiles runs once: C1 alone takes a fifth less of the CPU.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
        "spark.sql.warehouse.dir": str(lake_home / "spark"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SPARK_REMOTE", raising=False)
        # A machine far from UTC: whatever depends on the local time zone shows.
        patch.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        resource = SparkResource(spark_config=config, catalog=catalog_resource)
        try:
            yield resource
        finally:
            resource.stop()
    time.tzset()


def keeps_frames(spark: Any) -> bool:
    """Return whether Spark keeps any frame, of whatever session."""
    return not spark._jsparkSession.sharedState().cacheManager().isEmpty()


@pytest.fixture
def connections(
    kafka_resource: KafkaResource, catalog_resource: CatalogResource, spark_resource: SparkResource
) -> Iterator[Callable[..., Connections]]:
    """Return a function that gives Systems of their own to each run; the Spark session alone is shared.

    What Spark keeps for a run fills its memory if it isn't forgotten in the end, and that isn't seen by any result.
    """

    def fresh(registry: SchemaRegistry | None = None) -> Connections:
        return Connections(
            kafka_resource.cluster(),
            kafka_resource.spark_options(),
            catalog_resource.open(),
            lambda: spark_resource.spark_session,
            registry=registry,
        )

    yield fresh
    spark = spark_resource.spark_session
    kept = keeps_frames(spark)
    if kept:
        # Not the next test's fault.
        spark.catalog.clearCache()
    assert not kept, "Spark still keeps a frame"


@pytest.fixture
def new_topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Callable[..., Topic]:
    address = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
    stem = re.sub(r"[^a-z0-9]+", "_", request.node.name.lower()).strip("_")[:40]

    def create(partitions: int = 1, called: str | None = None, **config: str) -> Topic:
        table = f"{stem}_{uuid.uuid4().hex[:6]}"
        topic = Topic(
            called or table.replace("_", "-"), table, AdminClient(address), Producer({**address, "linger.ms": 0})
        )
        topic.create(partitions, **config)
        return topic

    return create


@pytest.fixture
def view(catalog_resource: CatalogResource) -> Callable[[TopicTable], View]:
    return lambda spec: View(catalog_resource.open(), spec)


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, connections: Callable[..., Connections]) -> Callable[..., Result]:
    """Return kafka-lake's command line over the settings of some topics, with the test session's systems."""
    import kafka_lake.cli.main
    import kafka_lake.cli.output
    import kafka_lake.cli.project

    @contextmanager
    def at_hand(*_: object, **__: object) -> Iterator[Connections]:
        yield connections()

    monkeypatch.setattr(kafka_lake.cli.project, "open_connections", at_hand)
    catalog = SimpleNamespace(open=lambda: connections().catalog)
    monkeypatch.setattr(kafka_lake.cli.project, "configured_catalog", lambda: catalog)
    # A console looks at the terminal once, when the module is imported.
    monkeypatch.setattr(kafka_lake.cli.output, "out", Console(width=100))

    def run(specs: Sequence[TopicTable], *arguments: str, answer: str | None = None) -> Result:
        monkeypatch.setattr(kafka_lake.cli.project, "topic_tables", lambda topic=None: list(specs))
        monkeypatch.setattr(kafka_lake.cli.project, "maintained_tables", lambda name=None: list(specs))
        result = CliRunner().invoke(kafka_lake.cli.main.app, list(arguments), input=answer)
        print(result.output)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run
