"""Kafka and the schema registry as Dagster resources. Secrets come from environment variables and are never shown."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import Field, PrivateAttr

from kafka_lake.common.environment import KAFKA, own_prefix, own_variables
from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.auth.properties import client_properties, java_properties, properties_from_env
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.kafka.registry import properties_from_env as registry_properties_from_env
from kafka_lake.orchestration.resources import FixedResource

T = TypeVar("T")


class KafkaResource(FixedResource):
    """A Kafka cluster.

    What the environment sets (``KAFKA_LAKE_BOOTSTRAP_SERVERS``, ``KAFKA_LAKE_KAFKA_*``) is read when a client is made,
    so that it is part of no stored configuration; ``properties`` given here win over it.
    """

    properties: dict[str, str] = Field(
        default_factory=dict,
        description="librdkafka client properties; no secrets, those belong in KAFKA_LAKE_KAFKA_* variables.",
    )
    timeout: float = Field(default=15.0, description="Seconds that one request to the brokers may take.")
    read_committed: bool = Field(
        default=True, description="Leave out aborted and open transactions (Kafka's isolation.level)."
    )

    cluster_name: str | None = Field(
        default=None, description="The cluster's name, which is in the names of its variables; null for the only one."
    )
    retry_attempts: int = Field(
        default=6,
        ge=1,
        description="Attempts of a run at what fails for a temporary reason: brokers, catalog, storage.",
    )
    retry_max_seconds: float = Field(default=30.0, ge=0, description="Longest pause between two attempts.")

    _of_run: Any = PrivateAttr(default=None)

    def once_a_run(self, make: Callable[[], T]) -> T:
        """Return what the steps of a run share; the first one makes it. Each run has its own resource."""
        if self._of_run is None:
            self._of_run = make()
        found: T = self._of_run
        return found

    @property
    def names_brokers(self) -> bool:
        """Return whether the project says which brokers are meant; otherwise the environment does, or nothing."""
        return self.cluster_name is not None or "bootstrap.servers" in self.properties

    def _merged(self) -> dict[str, str]:
        found = {**properties_from_env(cluster=self.cluster_name), **self.properties}
        if not found.get("bootstrap.servers"):
            raise ConfigurationError(
                f"There is no address for the brokers of Kafka cluster {self.cluster_name}.",
                f"Set {own_prefix(KAFKA, self.cluster_name)}BOOTSTRAP_SERVERS, or bootstrap.servers under "
                "kafka_properties: in its YAML document.",
            )
        return found

    def cluster(self) -> KafkaCluster:
        """Return a client for questions about topics and offsets.

        Raises:
            ConfigurationError: If properties are missing, or contradict each other.
        """
        with self._naming_own_variables():
            properties = client_properties(self._merged())
        return KafkaCluster(properties, self.timeout, self.read_committed, self.cluster_name)

    def spark_options(self) -> dict[str, str]:
        """Return the options that make Spark's Kafka source read from this cluster.

        Raises:
            ConfigurationError: As `cluster`, and if Java has no equivalent of a property.
        """
        with self._naming_own_variables():
            options = {f"kafka.{name}": value for name, value in java_properties(self._merged()).items()}
        # By Java's own default, a topic that is deleted while Spark reads it is made anew; not so by librdkafka's.
        options.setdefault("kafka.allow.auto.create.topics", "false")
        options["kafka.isolation.level"] = "read_committed" if self.read_committed else "read_uncommitted"
        return options

    @contextmanager
    def _naming_own_variables(self) -> Iterator[None]:
        try:
            yield
        except ConfigurationError as error:
            raise own_variables(error, self.cluster_name) from error.__cause__


class RegistryResource(FixedResource):
    """A schema registry that speaks Confluent's API, or none.

    What the environment sets (``KAFKA_LAKE_SCHEMA_REGISTRY_URL``, ``KAFKA_LAKE_REGISTRY_*``) is read when a client is
    made, so that it is part of no stored configuration; ``properties`` given here win over it. A cluster with a name
    has variables of its own (``KAFKA_LAKE_REGISTRY__EU__URL``), or shares the registry of those without.
    """

    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Properties of confluent-kafka's SchemaRegistryClient, such as url; no secrets, those belong in "
        "KAFKA_LAKE_REGISTRY_* variables.",
    )
    cluster_name: str | None = Field(
        default=None, description="Name of the Kafka cluster whose registry it is; null for the only one."
    )
    timeout: float = Field(default=10.0, gt=0, description="Seconds to wait for the registry's answer.")

    def registry(self) -> SchemaRegistry | None:
        """Return a client; None if no ``url`` is set, which is how a deployment without a registry is configured.

        Raises:
            ConfigurationError: If the properties contradict each other.
        """
        own = {**registry_properties_from_env(cluster=self.cluster_name), **self.properties}
        if own.get("url"):
            return self._client(own, self.cluster_name)
        # One registry for all clusters. Its credentials are for no registry that a cluster has of its own.
        shared = {**registry_properties_from_env(), **own}
        return self._client(shared, None) if shared.get("url") else None

    def _client(self, properties: Mapping[str, str], cluster: str | None) -> SchemaRegistry:
        try:
            return SchemaRegistry(properties, self.timeout, cluster)
        except ConfigurationError as error:
            raise own_variables(error, cluster) from None
