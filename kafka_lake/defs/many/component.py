"""What makes these tables an option: most deployments of the demo don't fill their topics."""

from collections.abc import Sequence

import dagster as dg

from kafka_lake.common.files import home
from kafka_lake.orchestration import DerivedTable, KafkaTopic, KafkaTopics

MARK = "many"
"""The file below the deployment's folder that says that it has them."""


class RoutedTopicTable(KafkaTopic):
    """A KafkaTopic that is left out until `make demo MANY=1` fills its topic."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the topic's assets and checks, or nothing."""
        return super().build_defs(context) if is_there() else dg.Definitions()


class MatchingTopics(KafkaTopics):
    """A KafkaTopics document that is left out until `make demo MANY=1` fills its topics."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the assets and checks of the topics, or nothing."""
        return super().build_defs(context) if is_there() else dg.Definitions()

    def topic_tables(self) -> Sequence[KafkaTopic]:
        """Return the topics, or none."""
        return super().topic_tables() if is_there() else []

    @property
    def is_known(self) -> bool:
        """Return whether the names of the cluster's topics are known, or needn't be."""
        return super().is_known if is_there() else True


class TableOfMany(DerivedTable):
    """A DerivedTable that is left out until `make demo MANY=1` fills what it reads."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the table's asset and checks, or nothing."""
        return super().build_defs(context) if is_there() else dg.Definitions()


def is_there() -> bool:
    """Return whether this deployment fills the topics."""
    return (home() / MARK).exists()
