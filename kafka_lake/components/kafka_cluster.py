"""`type: kafka_lake.KafkaCluster`: the resources that all topics share, and the one sensor that watches them."""

import dagster as dg
from pydantic import ConfigDict, Field, field_validator

from kafka_lake.common.durations import seconds_of
from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.kafka_topic_table import KafkaTopicTable, refuse_shared_tables
from kafka_lake.components.replay_job import replay_dead_letters
from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.components.resources.kafka import KafkaResource
from kafka_lake.components.resources.registry import RegistryResource
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.components.sensor import build_sensor
from kafka_lake.components.text import Properties, Text


class KafkaCluster(dg.Component, dg.Model, dg.Resolvable):
    """A Kafka cluster, an Iceberg catalog and a Spark, for all the topics of this deployment.

    All have defaults for the embedded set-up and are configured by environment variables; what is given here wins.
    Secrets belong in environment variables only.
    """

    model_config = ConfigDict(extra="forbid")

    kafka_properties: Properties = Field(default_factory=dict, description="librdkafka client properties; no secrets.")
    registry_properties: Properties = Field(
        default_factory=dict,
        description="Properties of confluent-kafka's SchemaRegistryClient, such as url; no secrets.",
    )
    catalog_properties: Properties = Field(
        default_factory=dict, description="Iceberg's standard catalog properties; no secrets."
    )
    spark_config: Properties = Field(default_factory=dict, description="Spark settings.")
    read_committed: bool = Field(default=True, description="Leave out the records of aborted and open transactions.")
    retry_attempts: int = Field(default=6, ge=1, description="Attempts at what fails for a temporary reason.")
    retry_max_seconds: float = Field(default=30.0, gt=0, description="Longest wait between two attempts.")
    sensor_interval_seconds: int = Field(
        default=10,
        ge=1,
        description="Seconds between two polls of the offsets. Under 5, which is the daemon's own interval, the sensor "
        "polls several times in a tick.",
    )
    keep_up_for: Text = Field(
        default="5m",
        description="A run that the sensor requested continues for at most this long, while records come and no other "
        "run waits in Dagster's queue. 0s: it ends where the topic ended when the run began.",
    )
    sensor_running: bool = Field(default=True, description="Whether the sensor is on without being switched on.")

    @field_validator("keep_up_for")
    @classmethod
    def _duration(cls, text: str) -> str:
        try:
            seconds_of(text)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return text

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return resources, executor, sensor and job.

        Raises:
            ConfigurationError: If two topics have a table in common.
        """
        refuse_shared_tables(context.component_tree.get_all_components(KafkaTopicTable))
        catalog = CatalogResource(properties=self.catalog_properties)
        return dg.Definitions(
            resources={
                "kafka": KafkaResource(
                    properties=self.kafka_properties,
                    read_committed=self.read_committed,
                    retry_attempts=self.retry_attempts,
                    retry_max_seconds=self.retry_max_seconds,
                ),
                "registry": RegistryResource(properties=self.registry_properties),
                "catalog": catalog,
                "spark": SparkResource(spark_config=self.spark_config, catalog=catalog),
            },
            # One JVM or one Connect session a run: steps in processes of their own would start one each.
            executor=dg.in_process_executor,
            sensors=[
                build_sensor(self.sensor_interval_seconds, self.sensor_running, seconds_of(self.keep_up_for)),
            ],
            jobs=[replay_dead_letters],
        )
