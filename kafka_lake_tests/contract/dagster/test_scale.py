"""What 200 topics and 1,000 runs cost Dagster's storage in PostgreSQL: rows of a run, and the time of a sensor's tick.

Prints the figures of docs/production.md: ``pytest -s`` shows them.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from confluent_kafka.admin import NewTopic

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import POSITION
from kafka_lake.catalog.tables import ensure_table, schema_of
from kafka_lake.common.offsets import Position, Watermarks
from kafka_lake.common.processes import HOST, free_port
from kafka_lake.devstack.sources import Owner
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.orchestration.assets import Presentation, build_topic_assets
from kafka_lake.orchestration.keys import TOPIC_TAG, table_key
from kafka_lake.orchestration.partitions import partitions_of
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake.orchestration.sensors.requests import Pace, Sharing, run_checks
from kafka_lake.orchestration.sensors.topics import evaluate
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic
from kafka_lake_tests.contract.dagster.composed import DEPLOY
from kafka_lake_tests.contract.postgres import database, execute
from kafka_lake_tests.integration.test_dagster import RANGE, SharedSpark, _sessions

pytestmark = [pytest.mark.contract, pytest.mark.e2e, pytest.mark.timeout(900)]

TOPICS, PARTITIONS, RUNS = 200, 6, 1000
# Each of these has the run's id in it.
TABLES = {
    "runs": ("run_id", "run_body"),
    "run_tags": ("run_id", "value"),
    "event_logs": ("run_id", "event", "asset_key"),
}


@dataclass(frozen=True)
class Storage:
    """Dagster's instance, as deploy/dagster.yaml has it, and the way to its database."""

    instance: dg.DagsterInstance
    port: int
    owner: Owner

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return execute(self.port, self.owner, statement)

    def connections(self) -> int:
        """Return how many connections there have been to the database: Dagster opens one for each question."""
        return int(self.execute("SELECT sessions FROM pg_stat_database WHERE datname = current_database()")[0][0])

    def columns(self, table: str) -> list[str]:
        query = f"SELECT column_name FROM information_schema.columns WHERE table_name = '{table}' ORDER BY 1"
        return [name for (name,) in self.execute(query)]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    folder, port, owner = tmp_path_factory.mktemp("scale"), free_port(), Owner("dagster", "scale", "dagster")
    reported = {
        "HOST": HOST,
        "PORT": str(port),
        "USERNAME": owner.user,
        "PASSWORD": owner.password,
        "DB": owner.database,
    }
    shutil.copy(DEPLOY / "dagster.yaml", folder)
    with database(port, owner), pytest.MonkeyPatch.context() as patch:
        for name, value in reported.items():
            patch.setenv(f"DAGSTER_PG_{name}", value)
        with dg.DagsterInstance.from_config(str(folder)) as instance:
            yield Storage(instance, port, owner)


def one_run(storage: Storage, spec: TopicTable, partitions: int, resources: dict[str, Any]) -> str:
    """Run a topic as the sensor would, and return the run's id."""
    storage.instance.add_dynamic_partitions(partitions_of(spec.topic).name or "", [str(p) for p in range(partitions)])
    result = dg.materialize(
        build_topic_assets(spec, Presentation("tests", ["team:tests"])),
        instance=storage.instance,
        resources=resources,
        selection=dg.AssetSelection.assets(table_key(spec)).without_checks()
        | dg.AssetSelection.checks(*run_checks(spec)),
        tags={**dict(zip(RANGE, ("0", str(partitions - 1)), strict=True)), TOPIC_TAG: spec.topic},
    )
    assert result.success
    return result.run_id


def events_of(storage: Storage, run_id: str) -> tuple[int, int]:
    """Return how many rows a run has in the event log, and their bytes."""
    query = f"SELECT count(*), sum(pg_column_size(e.*)) FROM event_logs e WHERE run_id = '{run_id}'"
    ((rows, size),) = storage.execute(query)
    return rows, int(size)


def copy_run(storage: Storage, run_id: str, of: str, topics: Sequence[str]) -> None:
    """Add runs that are copies of one, in turn for each topic."""
    storage.execute("CREATE TEMP SEQUENCE IF NOT EXISTS n")
    names = ", ".join(f"'{topic}'" for topic in topics)
    copies = (
        f"SELECT n, md5('run' || n)::uuid::text AS id, (ARRAY[{names}])[n % {len(topics)} + 1] AS topic"
        f" FROM generate_series(1, {RUNS}) AS n"
    )
    for table, changed in TABLES.items():
        columns = [name for name in storage.columns(table) if name != "id"]
        values = [
            f"replace(replace(t.{name}, '{run_id}', c.id), '{of}', c.topic)" if name in changed else f"t.{name}"
            for name in columns
        ]
        quoted = ", ".join(f'"{name}"' for name in columns)
        storage.execute(
            f"INSERT INTO {table} ({quoted}) SELECT {', '.join(values)} FROM {table} t, ({copies}) c"
            f" WHERE t.run_id = '{run_id}'"
        )
    storage.execute("ANALYZE")


def make_tables(catalog: LakeCatalog, specs: Sequence[TopicTable], cluster: KafkaCluster) -> None:
    """Make tables that have read all that their topics have."""
    schema = pa.schema([("id", pa.int64())])

    def look() -> dict[str, Watermarks]:
        answers = cluster.watermarks(spec.topic for spec in specs)
        return {topic: now for topic, now in answers.items() if isinstance(now, Watermarks)}

    Topic.wait_for(lambda: len(look()) == len(specs), 120)
    for topic, now in look().items():
        table = ensure_table(catalog, next(s.identifier for s in specs if s.topic == topic), schema_of(schema))
        table.append(pa.Table.from_pylist([], schema), {POSITION: Position(now.identity, now.end).to_json()})


def test_two_hundred_topics_and_a_thousand_runs(
    storage: Storage,
    new_topic: Callable[..., Topic],
    kafka_resource: KafkaResource,
    catalog_resource: CatalogResource,
    spark_resource: SparkResource,
) -> None:
    _sessions[:] = [spark_resource.spark_session]
    resources = {
        "kafka": kafka_resource,
        "catalog": catalog_resource,
        "registry": RegistryResource(),
        "spark": SharedSpark(catalog=catalog_resource, spark_config={}),
    }
    figures: dict[str, float] = {}
    for partitions in (1, PARTITIONS):
        topic = new_topic(partitions)
        topic.send_ids(range(12), partitions)
        spec = topic.spec()
        run_id = one_run(storage, spec, partitions, resources)
        rows, size = events_of(storage, run_id)
        figures |= {f"rows_of_{partitions}": rows, f"bytes_of_{partitions}": size}
    a_partition = (figures[f"rows_of_{PARTITIONS}"] - figures["rows_of_1"]) / (PARTITIONS - 1)
    assert a_partition == 2, "the plan of each partition, and its materialization"

    names = [f"scale-{number:03}" for number in range(TOPICS)]
    created = topic.admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
    for future in created.values():
        future.result(60)
    specs = [TopicTable(name, "scale", name.replace("-", "_"), schema="id bigint") for name in names]
    cluster, catalog = kafka_resource.cluster(), catalog_resource.open()
    make_tables(catalog, specs, cluster)
    for name in names:
        keys = [str(p) for p in range(PARTITIONS)]
        storage.instance.add_dynamic_partitions(partitions_of(name).name or "", keys)
    copy_run(storage, run_id, spec.topic, names)
    assert storage.instance.get_runs_count() == RUNS + 2
    figures["event_rows"] = storage.execute("SELECT count(*) FROM event_logs")[0][0]
    figures["megabytes"] = storage.execute("SELECT pg_database_size(current_database()) / 1048576")[0][0]

    for kind in ("first", "idle", "busy"):
        if kind == "busy":
            for name in names:
                topic.producer.produce(name, b'{"id": 1}')
            assert topic.producer.flush(60) == 0
        connections, began, used = storage.connections(), time.perf_counter(), time.process_time()
        answers = cluster.watermarks(spec.topic for spec in specs)
        figures[f"{kind}_brokers"] = time.perf_counter() - began
        result = evaluate(
            dg.build_sensor_context(instance=storage.instance), specs, answers, catalog, Pace(10.0), Sharing(3)
        )
        figures[f"{kind}_tick"] = time.perf_counter() - began
        figures[f"{kind}_cpu"] = time.process_time() - used
        figures[f"{kind}_connections"] = storage.connections() - connections
        requests = result.run_requests or () if isinstance(result, dg.SensorResult) else ()
        asked = sum(len(request.asset_selection or ()) for request in requests)
        assert asked == (TOPICS if kind == "busy" else 0)
    print(json.dumps(figures, indent=2))
    # Two for the keys of each topic's partitions. What is asked of the runs is asked for all topics at once.
    for kind in ("idle", "busy"):
        assert figures[f"{kind}_connections"] < 2 * TOPICS + 20
