"""Nessie's REST catalog takes branches of Iceberg tables and doesn't keep them: it is refused, and nothing is lost."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from kafka_lake.catalog.branches import StagingBranch, branch_name
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import head_of
from kafka_lake.devstack.servers import EmbeddedObjectStore
from kafka_lake.errors import CatalogRefusedError
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import KafkaResource, SparkResource
from kafka_lake_tests.conftest import Topic
from kafka_lake_tests.contract.counting import connections_of
from kafka_lake_tests.contract.nessie import Nessie

pytestmark = [pytest.mark.integration, pytest.mark.contract]

_REFUSED = "doesn't keep branches of Iceberg tables"


@pytest.fixture(scope="module")
def nessie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nessie]:
    with (
        EmbeddedObjectStore(tmp_path_factory.mktemp("store")) as store,
        Nessie(tmp_path_factory.mktemp("nessie"), store) as running,
    ):
        yield running


def test_ingest_into_nessie_is_refused_and_leaves_no_table(
    nessie: Nessie, new_topic: Callable[..., Topic], kafka_resource: KafkaResource, spark_resource: SparkResource
) -> None:
    topic = new_topic()
    topic.send_ids([1])
    connections = connections_of(nessie.catalog_properties(), kafka_resource, spark_resource)()
    with pytest.raises(CatalogRefusedError, match=_REFUSED):
        ingest(topic.spec(), connections, "run-1")
    assert connections.catalog.table(topic.spec().identifier) is None


def test_branch_that_nessie_drops_is_noticed_before_a_write(nessie: Nessie) -> None:
    catalog, name = LakeCatalog("lake", nessie.catalog_properties()), ("branches", "orders")
    catalog.ensure_namespace(name[0])
    table = catalog.pyiceberg.create_table(name, pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    head = head_of(table)
    assert head is not None
    with pytest.raises(CatalogRefusedError, match=_REFUSED):
        StagingBranch(None, catalog, name, branch_name("run", head), head).create()
    assert catalog.pyiceberg.load_table(name).scan().to_arrow()["id"].to_pylist() == [1, 2]
