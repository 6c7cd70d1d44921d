"""The schema registry as a Dagster resource. Secrets come in by environment variables and never show."""

import dagster as dg
from pydantic import Field

from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.kafka.registry_settings import properties_from_env


class RegistryResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A schema registry that speaks Confluent's API, or none.

    What the environment sets (``KAFKA_LAKE_SCHEMA_REGISTRY_URL``, ``KAFKA_LAKE_REGISTRY_*``) is read when a client is
    made, so that it is part of no stored configuration; ``properties`` given here win over it.
    """

    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Properties of confluent-kafka's SchemaRegistryClient, such as url; no secrets, those belong in "
        "KAFKA_LAKE_REGISTRY_* variables.",
    )
    timeout: float = Field(default=10.0, gt=0, description="Seconds that the registry may be silent.")

    def registry(self) -> SchemaRegistry | None:
        """Return a client; None if no ``url`` is set, which is how a deployment without a registry is configured.

        Raises:
            ConfigurationError: If the properties contradict each other.
        """
        properties = {**properties_from_env(), **self.properties}
        return SchemaRegistry(properties, self.timeout) if properties.get("url") else None
