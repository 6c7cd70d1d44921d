"""What makes the deliveries an option: without a schema registry they can't be read."""

import dagster as dg

from kafka_lake.kafka.registry import properties_from_env
from kafka_lake.orchestration import KafkaTopic


class RegistryTopicTable(KafkaTopic):
    """A KafkaTopic that is left out as long as the environment names no schema registry."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the topic's assets and checks, or nothing."""
        return super().build_defs(context) if "url" in properties_from_env() else dg.Definitions()
