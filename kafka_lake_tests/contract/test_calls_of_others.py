"""What a commit asks of other catalogs than REST, by their servers' own accounts, and of the object store."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kafka_lake.common.processes import HOST, free_port
from kafka_lake.devstack.sources import Owner
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.contract.counting import connections_of, counted_glue, counted_store
from kafka_lake_tests.contract.hive import LOG
from kafka_lake_tests.contract.postgres import database, execute
from kafka_lake_tests.written_by import by

pytestmark = [pytest.mark.integration, pytest.mark.contract, pytest.mark.in_contract]

NewTopic = Callable[..., Topic]
Systems = Callable[[Mapping[str, str]], Callable[[], Connections]]

_OWNER = Owner("counted", "counted-secret", "counted")
_REQUESTS = {("rest", True): 9, ("rest", False): 13, ("sql", True): 22, ("sql", False): 28}
"""The most that a run of one commit may ask of the object store, by the catalog's type and whether Arrow writes."""

_STATEMENT = re.compile(r"LOG:  (?:statement|execute [^:]*): ((?:.|\n\t)*)")


@pytest.fixture
def systems(kafka_resource: KafkaResource, spark_resource: SparkResource) -> Systems:
    return lambda properties: connections_of(properties, kafka_resource, spark_resource)


def _second_run(
    topic: Topic, arrow: bool, systems: Callable[[], Connections], seen: Callable[[], list[Any]]
) -> list[Any]:
    """Return what was seen of a run of one commit, the second one of its table."""
    spec = topic.spec(**by(arrow))
    topic.send_ids([1, 2, 3])
    ingest(spec, systems(), "run-1")
    topic.send_ids([4])
    connections, before = systems(), len(seen())
    ingest(spec, connections, "run-2")
    found = seen()[before:]
    View(connections.catalog, spec).assert_exactly_once(topic.ledger)
    return found


@pytest.fixture
def statements() -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """A database's address, and a function that gives all statements that were executed in it."""
    port = free_port()
    with database(port, _OWNER) as server:
        execute(port, _OWNER, f"ALTER ROLE {_OWNER.user} SET log_statement = 'all'")

        def seen() -> list[str]:
            return [" ".join(statement.split()) for statement in _STATEMENT.findall(server.log.read_text())]

        yield f"postgresql+psycopg2://{_OWNER.user}:{_OWNER.password}@{HOST}:{port}/{_OWNER.database}", seen


@pytest.mark.pairs("postgres_files")
@pytest.mark.parametrize(("arrow", "loads"), [(True, 7), (False, 16)])
def test_statements_at_a_database(
    new_topic: NewTopic,
    systems: Systems,
    statements: tuple[str, Callable[[], list[str]]],
    tmp_path: Path,
    arrow: bool,
    loads: int,
) -> None:
    uri, seen = statements
    properties = {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}"}
    found = _second_run(new_topic(), arrow, systems(properties), seen)
    of_a_table = re.compile("(UPDATE|FROM) iceberg_tables .*table_name")
    kinds = Counter(statement.split()[0] for statement in found if of_a_table.search(statement))
    assert kinds["UPDATE"] == 3
    assert 0 < kinds["SELECT"] <= loads, found


@pytest.mark.pairs("glue_s3")
@pytest.mark.parametrize(("arrow", "loads"), [(True, 7), (False, 15)])
def test_operations_of_glue(
    new_topic: NewTopic, systems: Systems, catalog_resource: Any, arrow: bool, loads: int
) -> None:
    with counted_glue(catalog_resource.properties["glue.endpoint"]) as asked:
        properties = {**catalog_resource.properties, "glue.endpoint": asked.uri}
        found = _second_run(new_topic(), arrow, systems(properties), lambda: list(asked.seen))
    kinds = Counter(operation for _, operation in found)
    assert kinds["UpdateTable"] == 3
    assert 0 < kinds["GetTable"] <= loads, found


@pytest.mark.pairs("hive_files")
@pytest.mark.parametrize(("arrow", "loads"), [(True, 7), (False, 15)])
def test_calls_of_a_metastore(
    new_topic: NewTopic, systems: Systems, catalog_resource: Any, lake_home: Path, arrow: bool, loads: int
) -> None:
    def seen() -> list[str]:
        return re.findall(r"cmd=(?:source:\S+ )?(\w+)", (lake_home / "hive" / LOG).read_text())

    kinds = Counter(_second_run(new_topic(), arrow, systems(catalog_resource.properties), seen))
    assert kinds["alter_table"] == 3
    assert 0 < kinds["get_table"] <= loads, kinds


@pytest.mark.pairs("rest_s3", "postgres_s3")
@pytest.mark.parametrize("arrow", [True, False])
def test_requests_to_the_object_store(
    new_topic: NewTopic, systems: Systems, catalog_resource: Any, arrow: bool
) -> None:
    with counted_store(catalog_resource.properties["s3.endpoint"]) as asked:
        properties = {**catalog_resource.properties, "s3.endpoint": asked.uri}
        found = _second_run(new_topic(), arrow, systems(properties), lambda: list(asked.seen))
    most = _REQUESTS[catalog_resource.properties["type"], arrow]
    # A data file, a manifest, a list of manifests, and where the server doesn't do it, the table's metadata.
    assert most // 4 < len(found) <= most, "\n".join(map(str, found))
