"""The schema registry as a Dagster resource. Secrets come in by environment variables and never show."""

from collections.abc import Mapping

from pydantic import Field

from kafka_lake.common.cluster_variables import own_variables
from kafka_lake.components.resources.fixed import FixedResource
from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.kafka.registry_settings import properties_from_env


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
        own = {**properties_from_env(cluster=self.cluster_name), **self.properties}
        if own.get("url"):
            return self._client(own, self.cluster_name)
        # One registry for all clusters. Its credentials are for no registry that a cluster has of its own.
        shared = {**properties_from_env(), **own}
        return self._client(shared, None) if shared.get("url") else None

    def _client(self, properties: Mapping[str, str], cluster: str | None) -> SchemaRegistry:
        try:
            return SchemaRegistry(properties, self.timeout, cluster)
        except ConfigurationError as error:
            raise own_variables(error, cluster) from None
