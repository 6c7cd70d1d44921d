"""What a run works with, from the resources of a deployment."""

from functools import partial
from typing import Any

from kafka_lake.orchestration.keys import of_cluster
from kafka_lake.orchestration.resources.catalog import CatalogResource
from kafka_lake.orchestration.resources.kafka import KafkaResource, RegistryResource
from kafka_lake.orchestration.resources.spark import SparkResource
from kafka_lake.runtime.context import Connections, RetryPolicy
from kafka_lake.spec.topic_table import TopicTable


def build_connections(
    kafka: KafkaResource,
    catalog: CatalogResource,
    spark: SparkResource,
    registry: RegistryResource,
    kept_session: str = "",
) -> Connections:
    """Return what a run works with, from the deployment's resources, and a session of Spark's by `live_session`."""
    retry = RetryPolicy(
        attempts=kafka.retry_attempts,
        initial_seconds=min(1.0, kafka.retry_max_seconds),
        max_seconds=kafka.retry_max_seconds,
    )
    session = partial(spark.live_session, kept_session)
    return Connections(
        cluster=kafka.cluster(),
        kafka_options=kafka.spark_options(),
        catalog=catalog.open(),
        spark=session,
        retry=retry,
        registry=registry.registry(),
    )


def resource_keys(cluster: str | None) -> set[str]:
    """Return the names of the resources that a run of a cluster's topic needs: the cluster's own, and the shared."""
    return {of_cluster("kafka", cluster), of_cluster("registry", cluster), "catalog", "spark"}


def connections_of(resources: Any, cluster: str | None, kept_session: str = "") -> Connections:
    """Return what `build_connections` does, from the resources of a run that has those of `resource_keys`."""
    kafka, registry = (getattr(resources, of_cluster(kind, cluster)) for kind in ("kafka", "registry"))
    return build_connections(
        kafka, resources.catalog, spark=resources.spark, registry=registry, kept_session=kept_session
    )


def kept_session(spec: TopicTable) -> str:
    """Return the name of the sessions that the runs of topics share; empty for a session of the run's own.

    Code of the users' own may leave settings, views and modules behind, and is another one tomorrow.
    """
    return "" if any(each.transform for each in spec.tables) else "topics"
