"""The settings of Kafka, the schema registry, the catalog and Spark. Each is imported when it is opened."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, PrivateAttr, field_validator

from kafka_lake.common import environment
from kafka_lake.common.environment import KAFKA, own_prefix, own_variables
from kafka_lake.errors import ConfigurationError
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.settings import Duration, OptionalText, Settings, TextMap
from kafka_lake.spec.topic_table import CLUSTER_NAME

if TYPE_CHECKING:
    from kafka_lake.catalog.catalog_properties import CatalogSettings
    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.kafka.cluster import KafkaCluster
    from kafka_lake.kafka.registry import SchemaSource
    from kafka_lake.runtime.context import Connections


class Catalog(BaseModel):
    """The Iceberg catalog of the deployment.

    The environment's settings are read when the catalog is opened, so that secrets are part of no stored
    configuration; ``properties`` given here win over them.
    """

    name: str = Field(default_factory=environment.CATALOG.value)
    properties: dict[str, str] = Field(default_factory=dict)

    def settings(self) -> CatalogSettings:
        """Return the settings with those of the environment.

        Raises:
            ConfigurationError: If its type is unknown, a property is missing, or one can't be passed to Spark. The last
                doesn't apply to a Connect server, which gets the catalog when it starts.
        """
        from kafka_lake.catalog.catalog_properties import CatalogSettings, properties_from_environment

        settings = CatalogSettings(self.name, properties_from_environment(self.name, self.properties))
        if not environment.SPARK_REMOTE.value():
            # Or PyIceberg would go on alone, and a run that needs Spark would fail later.
            settings.for_spark()
        return settings

    def open(self) -> LakeCatalog:
        """Return the catalog; nothing is asked of it yet. Raises as `settings`."""
        from kafka_lake.catalog.lake_catalog import LakeCatalog

        return LakeCatalog(self.name, self.settings().properties)


class Kafka(BaseModel):
    """A Kafka cluster.

    What the environment sets (``KAFKA_LAKE_BOOTSTRAP_SERVERS``, ``KAFKA_LAKE_KAFKA_*``) is read when a client is made,
    so that it is part of no stored configuration; ``properties`` given here win over it. `Cluster` has the meanings.
    """

    properties: dict[str, str] = Field(default_factory=dict)
    timeout: float = 15.0
    read_committed: bool = True
    cluster_name: str | None = None
    retry_attempts: int = 6
    retry_max_seconds: float = 30.0

    @property
    def names_brokers(self) -> bool:
        """Return whether the project names brokers; otherwise the environment may name them."""
        return self.cluster_name is not None or "bootstrap.servers" in self.properties

    def _merged(self) -> dict[str, str]:
        from kafka_lake.kafka.auth.properties import properties_from_env

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
        from kafka_lake.kafka.auth.properties import client_properties
        from kafka_lake.kafka.cluster import KafkaCluster

        with self._naming_own_variables():
            properties = client_properties(self._merged())
        return KafkaCluster(properties, self.timeout, self.read_committed, self.cluster_name)

    def spark_options(self) -> dict[str, str]:
        """Return the options that make Spark's Kafka source read from this cluster.

        Raises:
            ConfigurationError: As `cluster`, and if Java has no equivalent of a property.
        """
        from kafka_lake.kafka.auth.properties import java_properties

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


class Registry(BaseModel):
    """A schema registry that speaks Confluent's API, AWS Glue's, or none.

    What the environment sets (``KAFKA_LAKE_SCHEMA_REGISTRY_URL``, ``KAFKA_LAKE_REGISTRY_*``) is read when a client is
    made, so that it is part of no stored configuration; ``properties`` given here win over it. A cluster with a name
    has variables of its own (``KAFKA_LAKE_REGISTRY__EU__URL``), or shares the registry of those without.
    """

    properties: dict[str, str] = Field(default_factory=dict)
    cluster_name: str | None = None

    def registry(self) -> SchemaSource | None:
        """Return a client; None if no ``url`` is set, which is how a deployment without a registry is configured.

        Raises:
            ConfigurationError: If the properties contradict each other.
        """
        from kafka_lake.kafka.registry import properties_from_env

        own = {**properties_from_env(cluster=self.cluster_name), **self.properties}
        if own.get("url"):
            return self._client(own, self.cluster_name)
        # One registry for all clusters. Its credentials are for no registry that a cluster has of its own.
        shared = {**properties_from_env(), **own}
        return self._client(shared, None) if shared.get("url") else None

    def _client(self, properties: Mapping[str, str], cluster: str | None) -> SchemaSource:
        from kafka_lake.kafka.glue_registry import SCHEME, GlueSchemaRegistry
        from kafka_lake.kafka.registry import SchemaRegistry

        try:
            if properties["url"].startswith(f"{SCHEME}:"):
                return GlueSchemaRegistry(properties)
            return SchemaRegistry(properties, cluster=cluster)
        except ConfigurationError as error:
            raise own_variables(error, cluster) from None


class Spark(BaseModel):
    """Spark, started at the first use.

    With ``SPARK_REMOTE`` set, sessions are Spark Connect sessions on that server, which must know the catalog
    (``kafka-lake up`` starts such a server). Without it Spark runs in this process, on ``$KAFKA_LAKE_SPARK_MASTER``
    (``local[*]`` by default), with the jars of ``ivy.xml``.
    """

    spark_config: dict[str, Any] = Field(default_factory=dict)
    catalog: Catalog
    _session: Any = PrivateAttr(default=None)

    @property
    def spark_session(self) -> Any:
        """Return the session, started at the first use."""
        if self._session is None:
            from kafka_lake.engine.sessions import open_session

            self._session = open_session(self.catalog.open, self.spark_config)
        return self._session

    @property
    def spark_context(self) -> Any:
        """Return the session's context, which those of a Connect server don't have."""
        return self.spark_session.sparkContext

    def live_session(self) -> Any:
        """Return the session, a new one if a Connect server has been restarted and knows the old one no more.

        Raises:
            EngineUnavailableError: If there is a Connect server and it doesn't answer.
        """
        from kafka_lake.engine.sessions import is_known

        self.check()
        if self._session is not None and not is_known(self._session):
            # Its connection would count as a client of the server.
            self.stop()
        return self.spark_session

    def check(self) -> None:
        """Ask whether a Connect server is there, if there is to be one.

        Raises:
            EngineUnavailableError: If nothing accepts connections at its address within seconds.
        """
        from kafka_lake.engine.sessions import await_port

        if remote := environment.SPARK_REMOTE.value():
            await_port(remote)

    def stop(self) -> None:
        """Stop the session, if one was started; the next use starts another."""
        if self._session is not None:
            self._session.stop()
            self._session = None


def build_connections(
    kafka: Kafka,
    catalog: Catalog | None,
    spark: Spark,
    registry: Registry,
) -> Connections:
    """Return what a run works with, from the deployment's settings, and Spark's session by `live_session`.

    Without a catalog, its connection is None: importing what reads it takes longer than asking a broker.
    """
    from kafka_lake.runtime.context import Connections, RetryPolicy

    retry = RetryPolicy(
        attempts=kafka.retry_attempts,
        initial_seconds=min(1.0, kafka.retry_max_seconds),
        max_seconds=kafka.retry_max_seconds,
    )
    return Connections(
        cluster=kafka.cluster(),
        kafka_options=kafka.spark_options(),
        catalog=catalog.open() if catalog else None,  # type: ignore[arg-type]
        spark=spark.live_session,
        retry=retry,
        registry=registry.registry(),
    )


class Cluster(Settings):
    """A Kafka cluster, an Iceberg catalog and a Spark, for all the topics of a deployment."""

    name: OptionalText = Field(
        default=None,
        description="Name of the cluster, if a project has several. It is the `cluster:` of its topics, and part of "
        "the names of its variables.",
        examples=["eu"],
    )
    kafka_properties: TextMap = Field(
        default_factory=dict, description="librdkafka client properties, without secrets."
    )
    registry_properties: TextMap = Field(
        default_factory=dict,
        description="Properties of confluent-kafka's `SchemaRegistryClient`, without secrets.",
    )
    catalog_properties: TextMap = Field(
        default_factory=dict, description="Iceberg catalog properties, without secrets."
    )
    spark_config: TextMap = Field(default_factory=dict, description="Spark settings.")
    read_committed: bool = Field(
        default=True, description="Skip records of aborted transactions, and wait for open ones."
    )
    retry_attempts: int = Field(default=6, ge=1, description="Maximum number of attempts after temporary errors.")
    retry_max_seconds: float = Field(
        default=30.0, gt=0, allow_inf_nan=False, description="Maximum pause between two attempts."
    )
    sensor_interval_seconds: int = Field(
        default=10,
        ge=1,
        description="Seconds between two polls of the offsets. Below 5, the sensor polls several times per tick.",
    )
    catch_up_for: Duration = Field(
        default="1h",
        description="Maximum time that a run of the sensor continues while records arrive; it may end a quarter "
        "earlier. `0s`: the run reads only records that existed when it started.",
    )
    shared_runs: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of concurrent shared runs. Default: twice the code location's cores.",
    )
    sensor_running: bool = Field(default=True, description="Whether Dagster turns the sensors on by default.")
    maintenance_interval_seconds: int = Field(
        default=300,
        ge=1,
        description="Seconds between two ticks of the maintenance sensor.",
    )
    maintenance: Maintenance | None = Field(
        default=None,
        description="Defaults for `maintenance:` of the cluster's topics. A topic's own settings override them, one "
        "by one.",
        examples=[{"expire_after": "30d", "compact_every": 50}],
    )

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(CLUSTER_NAME, name):
            raise ValueError(f"{name!r} can't be the name of a cluster. Use lower-case letters, digits and single _")
        return name

    def connection(self) -> dict[str, Any]:
        """Return the fields of `Kafka`."""
        return {
            "properties": self.kafka_properties,
            "cluster_name": self.name,
            "read_committed": self.read_committed,
            "retry_attempts": self.retry_attempts,
            "retry_max_seconds": self.retry_max_seconds,
        }


def of_cluster(name: str, cluster: str | None) -> str:
    """Return the name of a cluster's resource, sensor or job.

    >>> of_cluster("kafka", "eu"), of_cluster("kafka", None)
    ('kafka_eu', 'kafka')
    """
    return f"{name}_{cluster}" if cluster else name
