"""Whatever happens to a database, its table is what it is: PostgreSQL, Debezium, Kafka, Spark and Iceberg, all real."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest

from kafka_lake.catalog.positions import read_state
from kafka_lake.common.offsets import lag
from kafka_lake.common.processes import HOST, free_port
from kafka_lake.devstack.servers import EmbeddedBroker, EmbeddedRegistry
from kafka_lake.devstack.sources import Debezium, EmbeddedPostgres, Owner
from kafka_lake.error_classification import is_transient
from kafka_lake.errors import KafkaLakeError, UnknownTopicError
from kafka_lake.ingest.run import ingest
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import NAMESPACE, View
from kafka_lake_tests.contract.cdc.source import DECLARED, NAME, Source, plain
from kafka_lake_tests.contract.postgres import database
from kafka_lake_tests.integration.test_exactly_once import killed_at  # noqa: F401

pytestmark = [pytest.mark.integration, pytest.mark.contract, pytest.mark.timeout(900)]

OWNER = Owner("cdc", "cdc-secret", "shop")
SECONDS = 60
PAGE = Path(__file__).parents[3] / "docs" / "cdc.md"
_SLOT = "SELECT pg_drop_replication_slot('debezium')"

NewConnections = Callable[[], Connections]
NewWorker = Callable[..., Debezium]
VALUES: dict[str, Any] = {
    # What happens by chance has keys from 1 on.
    "id": -1,
    "name": "Zoë",
    "big": "big",
    "n": 7,
    "price": Decimal("12.50000"),
    "at": datetime(2026, 11, 24, 10, tzinfo=UTC),
    "local": datetime(2026, 11, 24, 10, 0, 0, 123456),
    "day": date(2026, 11, 24),
    "ok": True,
    "ratio": 0.1,
    "doc": '{"a": 1.10}',
    "tags": ["a", "b"],
    "uid": "00000000-0000-0000-0000-000000000001",
    "bytes": b"\x00\xff",
}
ROW = (
    f"INSERT INTO {NAME} VALUES (-1, 'Zoë', 'big', 7, 12.50, '2026-11-24T10:00:00Z', '2026-11-24 10:00:00.123456', "
    "'2026-11-24', true, 0.1, '{\"a\": 1.10}', '{a,b}', '00000000-0000-0000-0000-000000000001', '\\x00ff')"
)


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    with database(free_port(), OWNER) as found:
        yield found


@pytest.fixture
def source(server: EmbeddedPostgres) -> Source:
    found = Source(server.port, OWNER, seed=20_261_124)
    found.create()
    return found


@pytest.fixture
def capture(tmp_path: Path, broker: EmbeddedBroker, server: EmbeddedPostgres) -> NewWorker:
    """Return a function that makes a worker, not started, whose topics begin with ``prefix``."""

    def worker(prefix: str, settings: Mapping[str, str] = MappingProxyType({})) -> Debezium:
        reported = {"topic.prefix": prefix, **settings}
        return Debezium(tmp_path / prefix, broker.bootstrap_servers, server, reported, jars="debezium-avro")

    return worker


def until_equal(spec: TopicTable, source: Source, connections: NewConnections, view: Callable[..., View]) -> None:
    """Ingest until the table is what the database is; nobody changes that meanwhile."""
    deadline = time.monotonic() + SECONDS
    wanted = source.plain_rows()
    while True:
        ingest(spec, connections(), str(uuid4()))
        found = sorted(map(plain, view(spec).rows()), key=lambda row: row["id"])
        reported = [{name: row.get(name) for name in wanted[0]} for row in found]
        if reported == wanted:
            return
        if time.monotonic() > deadline:
            assert [letter["error_message"] for letter in view(spec).dead_letters()] == []
            assert {row["id"] for row in reported} == {row["id"] for row in wanted}
            for one, other in zip(reported, wanted, strict=True):
                assert one == other
        time.sleep(0.5)


def told_by_the_page_s_comparison(source: Source, view: View) -> str:
    """Return what the code of docs/cdc.md prints that compares a table with its database, run as a reader runs it."""
    (code,) = re.findall(r"```python\n(import psycopg2.*?)```", PAGE.read_text(), re.DOTALL)
    ours = {
        "postgresql://reader:secret@db.example.com/shop": source.address,
        '"phone", ("phone", "name", "street", "points")': '"id", ("id", "name", "n", "ok")',
        "shop.customers": ".".join(view.spec.identifier),
    }
    for written, replaced in ours.items():
        assert written in code
        code = code.replace(written, replaced)
    catalog = {f"PYICEBERG_CATALOG__LAKE__{key.upper()}": value for key, value in view.catalog.properties.items()}
    environment = {**os.environ, **catalog}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_debezium_table_matches_the_database_after_faults(
    source: Source,
    capture: NewWorker,
    connections: NewConnections,
    view: Callable[..., View],
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    """Debezium's own settings; a batch read as a snapshot, changes after it; worker and runs killed; a lost slot."""
    worker = capture("one")
    spec = TopicTable(f"one.public.{NAME}", NAMESPACE, "captured", schema=DECLARED, write="upsert", envelope="debezium")
    source.happen(200)
    try:
        worker.start()
        await_records(spec, connections)
        until_equal(spec, source, connections, view)
        source.happen(300)
        until_equal(spec, source, connections, view)
        reported = told_by_the_page_s_comparison(source, view(spec))
        assert reported.endswith("missing: []\ntoo many: []\ndifferent: []\n")
        (row,) = source.execute(f"UPDATE {NAME} SET n = n + 1 WHERE id = (SELECT min(id) FROM {NAME}) RETURNING id")
        assert f"different: [{row[0]}]" in told_by_the_page_s_comparison(source, view(spec))
        worker.kill()
        source.happen(200)
        worker.start()
        for step in ("deletes published", "table staged", "audited"):
            source.happen(100)
            await_records(spec, connections)
            killed_at(spec, step)
        until_equal(spec, source, connections, view)
        source.execute(f"ALTER TABLE {NAME} ADD COLUMN added text")
        source.execute(f"UPDATE {NAME} SET added = 'since' WHERE id % 2 = 0")
        source.happen(200)
        until_equal(spec, source, connections, view)
        # A slot that is gone has lost changes: rows that only a new snapshot tells.
        worker.stop()
        source.execute(_SLOT)
        source.execute(f"UPDATE {NAME} SET name = 'changed unseen', n = 7 WHERE id % 3 = 0")
        (worker.folder / "offsets").unlink()
        worker.start()
        source.happen(100)
        until_equal(spec, source, connections, view)
    finally:
        worker.stop()
    assert view(spec).dead_letters() == []
    view(spec).assert_no_branches()


def test_shortest_cdc_document_matches_the_source(
    source: Source, capture: NewWorker, connections: NewConnections, view: Callable[..., View]
) -> None:
    """Debezium's own settings and ours: numbers are numbers, days and times are days and times."""
    spec = TopicTable(f"short.public.{NAME}", NAMESPACE, "short", write="upsert", envelope="debezium",
                      infer_timestamps=True)  # fmt: skip
    source.execute(ROW)
    with capture("short"):
        await_records(spec, connections)
        ingest(spec, connections(), "run-1")
    (row,) = view(spec).rows()
    assert {name: row[name] for name in VALUES} == {**VALUES, "price": 12.5, "bytes": "AP8="}


def test_rows_without_schema_fit_declared_columns(
    source: Source, capture: NewWorker, connections: NewConnections, view: Callable[..., View]
) -> None:
    """As docs/upsert-tables.md says of them."""
    spec = TopicTable(f"bare.public.{NAME}", NAMESPACE, "bare", schema=DECLARED.replace("timestamp_ntz", "timestamp"),
                      write="upsert", envelope="debezium")  # fmt: skip
    source.execute(ROW)
    converter = "org.apache.kafka.connect.json.JsonConverter"
    bare = {f"{side}.converter": converter for side in ("key", "value")}
    bare |= {f"{side}.converter.schemas.enable": "false" for side in ("key", "value")}
    settings = {**bare, "decimal.handling.mode": "string", "time.precision.mode": "isostring"}
    with capture("bare", settings):
        await_records(spec, connections)
        ingest(spec, connections(), "run-1")
    assert [letter["error_message"] for letter in view(spec).dead_letters()] == []
    (row,) = view(spec).rows()
    wanted = {**VALUES, "local": VALUES["local"].replace(tzinfo=UTC)}
    assert {name: row[name] for name in VALUES} == wanted


IDS: dict[str, dict[str, str]] = {
    "as Confluent": {"as-confluent": "true", "use-id": "contentId", "headers.enabled": "false"},
    "by default": {},
    "eight bytes": {"headers.enabled": "false"},
}
"""Settings by which Apicurio's converter writes schema ids; without any, the global id is in a header."""


@pytest.mark.parametrize("ids", IDS)
def test_in_avro_the_table_is_what_the_database_is(
    ids: str,
    source: Source,
    capture: NewWorker,
    connections: Callable[..., Connections],
    view: Callable[..., View],
    registry: EmbeddedRegistry,
) -> None:
    """By the converter of a registry, with schemas of its making: values of all types, and a column that comes."""
    prefix = f"avro{list(IDS).index(ids)}"
    spec = TopicTable(f"{prefix}.public.{NAME}", NAMESPACE, prefix, format="avro", write="upsert", envelope="debezium")
    use_id = {"apicurio.use.id": "globalId"} if ids == "eight bytes" else {}

    def known() -> Connections:
        return connections(SchemaRegistry({"url": registry.url, **use_id}))

    source.execute(ROW)
    worker = capture(prefix, avro(registry, IDS[ids]))
    try:
        worker.start()
        await_records(spec, known)
        ingest(spec, known(), "run-1")
        (row,) = view(spec).rows()
        assert {name: row[name] for name in VALUES} == VALUES
        source.happen(300)
        until_equal(spec, source, known, view)
        worker.kill()
        source.execute(f"ALTER TABLE {NAME} ADD COLUMN added text")
        source.execute(f"UPDATE {NAME} SET added = 'since' WHERE id % 2 = 0")
        worker.start()
        source.happen(200)
        until_equal(spec, source, known, view)
    finally:
        worker.stop()
    assert view(spec).dead_letters() == []


def avro(registry: EmbeddedRegistry, ids: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by which keys and values are Avro, with the registry's ids."""
    settings = {
        "": "io.apicurio.registry.utils.converter.AvroConverter",
        ".apicurio.registry.url": f"http://{HOST}:{registry.port}/apis/registry/v2",
        ".apicurio.registry.auto-register": "true",
        ".apicurio.registry.find-latest": "true",
        **{f".apicurio.registry.{name}": value for name, value in ids.items()},
    }
    reported = {f"{side}.converter{name}": value for side in ("key", "value") for name, value in settings.items()}
    return {**reported, "schema.name.adjustment.mode": "avro"}


def await_records(spec: TopicTable, connections: NewConnections) -> None:
    """Wait until the topic has records that the table lacks, and for a second no others come."""
    deadline = time.monotonic() + SECONDS
    before, since = 0, time.monotonic()
    while not before or time.monotonic() - since < 1:
        assert time.monotonic() < deadline
        here = connections()
        table = here.catalog.table(spec.identifier)
        try:
            now = here.cluster.watermarks_of(spec.topic)
        except KafkaLakeError as error:
            # A topic that is just being made may not be there, or may have no leader yet.
            if not (isinstance(error, UnknownTopicError) or is_transient(error)):
                raise
            time.sleep(0.2)
            continue
        lacking = sum(lag(read_state(table).position if table else None, now).values())
        if lacking != before:
            before, since = lacking, time.monotonic()
        time.sleep(0.2)
