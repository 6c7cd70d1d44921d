"""`type: kafka_lake.DerivedTable`: a query over tables becomes a table, its asset and its checks."""

import logging

import dagster as dg

from kafka_lake.components.derived_assets import build_derived_asset
from kafka_lake.components.derived_problems import Project, check_derived
from kafka_lake.components.derived_settings import DerivedSettings
from kafka_lake.components.from_document import FromDocument
from kafka_lake.components.has_topics import HasTopics
from kafka_lake.components.kafka_topic import KafkaTopic
from kafka_lake.components.keys import key_of, op_name_of
from kafka_lake.derive.derived_table import NEWS
from kafka_lake.derive.derived_table import DerivedTable as Settings
from kafka_lake.errors import ConfigurationError

log = logging.getLogger(__name__)


class DerivedTable(FromDocument, DerivedSettings):
    """A table that a query makes of other tables, kept up to date exactly once.

    ``table``, ``from``, ``write`` and a query are needed. A query that doesn't go with ``write``, or an upstream table
    that doesn't, is refused when definitions load.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the table's asset and checks, and its schedule if it has one.

        Raises:
            ConfigurationError: If the settings don't go together, or with the tables that are read.
        """
        tree = context.component_tree
        documents, many = tree.get_all_components(KafkaTopic), tree.get_all_components(HasTopics)
        topics = [
            *(each for each in documents if each.every_topic),
            *(topic for each in many for topic in each.topic_tables()),
        ]
        project = Project(
            [table for each in topics for table in each.topic_table(each._place.parent).tables],
            [each.derived_table() for each in tree.get_all_components(DerivedTable)],
        )
        spec = self.derived_table()
        missing = [".".join(each) for each in spec.upstream.values() if project.why_not_incremental(each) is None]
        if missing and not (all(each.every_topic for each in documents) and all(each.is_known for each in many)):
            # What tells the topics needs definitions that load.
            log.warning(
                "Table %s: from: %s isn't known, nor are all topics that a pattern matches. Run `kafka-lake topics "
                "refresh`.",
                spec.name,
                missing[0],
            )
            return dg.Definitions()
        check_derived(spec, project)
        asset = build_derived_asset(spec, self.presentation())
        return dg.Definitions(assets=[asset], schedules=[_schedule(spec)] if spec.at_most_every is None else [])


def _schedule(spec: Settings) -> dg.ScheduleDefinition:
    try:
        return dg.ScheduleDefinition(
            name=f"{op_name_of(spec.identifier)}__schedule",
            cron_schedule=spec.every,
            target=dg.AssetSelection.assets(key_of(spec.identifier)),
            default_status=dg.DefaultScheduleStatus.RUNNING,
        )
    except dg.DagsterInvalidDefinitionError as error:
        raise ConfigurationError(
            f"Table {spec.name}: every: {spec.every!r} is neither {NEWS} nor a duration nor a cron expression.",
            "Write 5m for at most once in five minutes, or five fields, as in '0 * * * *' for each hour.",
        ) from error
