"""A table with its unread records as a Dagster resource, for downstream assets."""

from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

from kafka_lake.config.systems import build_connections
from kafka_lake.fresh import Fresh, MaxTail, table_of
from kafka_lake.orchestration.jobs import topics_of_location
from kafka_lake.orchestration.resources import (
    CatalogResource,
    FixedResource,
    KafkaResource,
    RegistryResource,
    SparkResource,
)
from kafka_lake.routing.by_value import find_topic


class FreshTable(FixedResource):
    """A table of a topic of this code location, read with the records that no run has ingested yet.

    Consumer, decoder and unread records are kept until the end of the run.
    """

    table: str = Field(description="Namespace and name of the table, or the topic's name for its own table.")
    kafka: KafkaResource
    registry: RegistryResource
    catalog: CatalogResource
    max_records: int = Field(default=MaxTail.records, description="Maximum number of unread records.")

    _open: Any = PrivateAttr(default=None)

    def read(self, context: dg.AssetExecutionContext) -> Fresh:
        """Read the table; raises as `kafka_lake.fresh.FreshTable.read`.

        Args:
            context: The asset's context, by which the settings of the table are found.
        """
        if self._open is None:
            topic = find_topic(topics_of_location(context), self.table)
            spark = SparkResource(spark_config={}, catalog=self.catalog)
            connections = build_connections(self.kafka, self.catalog, spark=spark, registry=self.registry)
            self._open = table_of(topic, self.table, connections, MaxTail(records=self.max_records))
        fresh: Fresh = self._open.read()
        return fresh

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the consumer."""
        if self._open is not None:
            self._open.close()
