"""What makes the tables of the shop's database an option: most deployments of the demo have no database."""

import dagster as dg

from kafka_lake.common.files import home
from kafka_lake.orchestration import KafkaTopic

DATABASE = "postgres"
"""The folder of the demo's database, below the deployment's."""


class CapturedTopicTable(KafkaTopic):
    """A KafkaTopic that is left out as long as this deployment has no database: `make demo CDC=1` makes one."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the topic's assets and checks, or nothing."""
        return super().build_defs(context) if (home() / DATABASE).is_dir() else dg.Definitions()
