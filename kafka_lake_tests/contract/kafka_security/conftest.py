"""A broker with every kind of security, a token endpoint, and clients that are configured by environment variables."""

import uuid
from collections.abc import Callable, Iterator, Mapping

import pytest

from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake_tests.contract.kafka_security.broker import SecureBroker, running_broker
from kafka_lake_tests.contract.kafka_security.certificates import Authority
from kafka_lake_tests.contract.kafka_security.modes import SECRET, Clients
from kafka_lake_tests.contract.kafka_security.token_server import TokenServer

Secured = Callable[[Mapping[str, str]], Connections]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def token_server() -> Iterator[TokenServer]:
    with TokenServer({"reader-oauth": SECRET}) as server:
        yield server


@pytest.fixture(scope="session")
def secure_broker(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, token_server: TokenServer
) -> Iterator[SecureBroker]:
    users = dict.fromkeys(("reader", "rotated", "stranger"), SECRET)
    with running_broker(tmp_path_factory.mktemp("secure"), authority, users, token_server.address) as broker:
        yield broker


@pytest.fixture(scope="session")
def clients(secure_broker: SecureBroker, token_server: TokenServer) -> Clients:
    return Clients(secure_broker, token_server.address)


@pytest.fixture
def topic(secure_broker: SecureBroker) -> str:
    """Return the name of a new topic of two partitions, on which nobody has a right yet."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    secure_broker.create(name)
    return name


@pytest.fixture
def secured(
    monkeypatch: pytest.MonkeyPatch, catalog_resource: CatalogResource, spark_resource: SparkResource
) -> Secured:
    """Return a function that sets properties as environment variables, and returns a run's connections with them."""

    def connections(properties: Mapping[str, str]) -> Connections:
        for name, value in properties.items():
            variable = f"KAFKA_LAKE_KAFKA_{name.upper().replace('.', '_')}"
            monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS" if name == "bootstrap.servers" else variable, value)
        kafka = KafkaResource()
        spark = lambda: spark_resource.spark_session  # noqa: E731
        return Connections(kafka.cluster(), kafka.spark_options(), catalog_resource.open(), spark)

    return connections
