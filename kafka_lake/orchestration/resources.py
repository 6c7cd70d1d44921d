"""Dagster resources: Kafka, schema registry, catalog and Spark. Run configuration can't change their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr

from kafka_lake.config.systems import Catalog, Kafka, Registry, Spark, build_connections
from kafka_lake.orchestration.keys import of_cluster

if TYPE_CHECKING:
    from kafka_lake.runtime.context import Connections

T = TypeVar("T")


class FixedResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A resource that takes its values from its definition and the environment alone.

    Dagster lets run configuration override each field of a `ConfigurableResource`. Then a launched run could send the
    deployment's passwords to other brokers, another registry or another catalog. Dagster refuses run configuration for
    these resources before the run starts anything.
    """

    _definition: Any = PrivateAttr(default=None)

    def get_resource_definition(self) -> Any:
        """Return the definition for Dagster, always the same one: its configuration schema is empty."""
        if self._definition is None:
            configurable = super().get_resource_definition()
            schema = configurable.config_schema
            values = schema.default_value if schema.default_provided else {}
            self._definition = configurable.configured(lambda _: values, config_schema={})
        return self._definition


class CatalogResource(FixedResource, Catalog):
    """The Iceberg catalog of the deployment."""


class KafkaResource(FixedResource, Kafka):
    """A Kafka cluster."""

    _of_run: Any = PrivateAttr(default=None)

    def once_a_run(self, make: Callable[[], T]) -> T:
        """Return what the steps of a run share; the first one makes it. Each run has its own resource."""
        if self._of_run is None:
            self._of_run = make()
        found: T = self._of_run
        return found


class RegistryResource(FixedResource, Registry):
    """A schema registry that speaks Confluent's API, or none."""


class SparkResource(FixedResource, Spark, LazyPySparkResource):  # type: ignore[misc]
    """Spark through dagster-pyspark's lazy resource, started at the first use of a run."""

    catalog: CatalogResource

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session, if one was started."""
        self.stop()


def resource_keys(cluster: str | None) -> set[str]:
    """Return the names of the resources that a run of a cluster's topic needs: the cluster's own, and the shared."""
    return {of_cluster("kafka", cluster), of_cluster("registry", cluster), "catalog", "spark"}


def connections_of(resources: Any, cluster: str | None) -> Connections:
    """Return what `build_connections` does, from the resources of a run that has those of `resource_keys`."""
    kafka, registry = (getattr(resources, of_cluster(kind, cluster)) for kind in ("kafka", "registry"))
    return build_connections(kafka, resources.catalog, spark=resources.spark, registry=registry)
