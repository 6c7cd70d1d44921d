"""What `kafka-lake doctor` finds out about a REST catalog: whether it refuses stale commits."""

from collections.abc import Callable, Iterator

import pytest
from pyiceberg.schema import Schema

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.cli.commands import doctor
from kafka_lake.cli.commands.doctor import CheckResult
from kafka_lake.devstack.servers import EmbeddedObjectStore
from kafka_lake_tests.contract.counting import Requests, counted

pytestmark = [pytest.mark.integration, pytest.mark.contract]

Examine = Callable[[], CheckResult]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedObjectStore]:
    with EmbeddedObjectStore(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def server(store: EmbeddedObjectStore) -> Iterator[Requests]:
    with counted(store.catalog_uri) as found:
        yield found


@pytest.fixture
def catalog(store: EmbeddedObjectStore) -> LakeCatalog:
    return LakeCatalog("lake", store.catalog_properties())


@pytest.fixture
def examine(store: EmbeddedObjectStore, server: Requests, monkeypatch: pytest.MonkeyPatch) -> Examine:
    """Return a function that gives what the doctor says about the catalog behind the proxy."""
    for part in ("check_java", "check_jars", "check_brokers", "check_warehouse", "check_spark"):
        monkeypatch.setattr(doctor, part, lambda *_: "not examined here")
    monkeypatch.delenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", raising=False)
    monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    for key, value in {**store.catalog_properties(), "uri": server.uri}.items():
        name = key.replace(".", "__").replace("-", "_").upper()
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)

    def examined() -> CheckResult:
        found = {check.part: check for check in doctor.check_all(lambda _: None)}
        return found["Catalog"]

    return examined


def test_without_a_table_nothing_is_tested(examine: Examine, server: Requests) -> None:
    found = examine()
    assert found.passed, found
    assert "refusal of stale commits not tested: it has no table" in found.message
    assert server.kinds()["commit"] == 0


@pytest.mark.parametrize("careless", [False, True])
def test_a_table_that_is_there_is_used(
    examine: Examine, server: Requests, catalog: LakeCatalog, careless: bool
) -> None:
    namespace = f"shop_{careless}".lower()
    catalog.ensure_namespace(namespace)
    catalog.pyiceberg.create_table((namespace, "orders"), Schema())
    server.careless = careless
    found = examine()
    assert found.passed is not careless
    assert f"tested on {'table ' if careless else ''}{namespace}.orders" in found.message
    assert server.kinds()["commit"] == 1
    catalog.pyiceberg.purge_table((namespace, "orders"))
    catalog.pyiceberg.drop_namespace(namespace)
