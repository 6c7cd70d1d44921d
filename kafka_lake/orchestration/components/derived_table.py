"""`type: kafka_lake.DerivedTable`: a query over tables becomes a table, its asset and its checks."""

import logging
from collections.abc import Iterator
from typing import Any

import dagster as dg

from kafka_lake.config.derived_table import DerivedTable as DerivedSpec
from kafka_lake.config.project import check_derived, why_not_incremental
from kafka_lake.orchestration.assets import Presentation
from kafka_lake.orchestration.components.base import AssetDocument
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.orchestration.components.kafka_topics import KafkaTopics, documents_of_topics
from kafka_lake.orchestration.derived_assets import build_derived_asset, derived_asset, run_derived
from kafka_lake.orchestration.keys import default_key, key_of, op_name, plain_name, rename
from kafka_lake.orchestration.metadata import document_metadata

log = logging.getLogger(__name__)


class DerivedTable(AssetDocument, DerivedSpec):
    """A table that a query makes of other tables, kept up to date exactly once.

    ``table``, ``from``, ``write`` and a query are needed. A query that doesn't go with ``write``, or an upstream table
    that doesn't, is refused when definitions load. Subclasses may override `get_asset_spec` and `execute`.
    """

    produces = ("asset", "asset_check", "schedule")
    first_fields = frozenset({"table", "from", "join", "write", "sql", "key", "every"})

    def get_asset_spec(self, table: DerivedSpec) -> dg.AssetSpec:
        """Return the table's asset. Its dependencies and kafka_lake's own metadata are added later."""
        return derived_asset(table, self.presentation())

    def execute(self, context: dg.AssetExecutionContext, table: DerivedSpec) -> Iterator[Any]:
        """Bring the table up to date, and give Dagster's events."""
        yield from run_derived(context, table)

    def derived_table(self) -> DerivedSpec:
        """Return the settings as a run takes them."""
        known = self.model_fields_set & DerivedSpec.model_fields.keys()
        spec = DerivedSpec.model_construct(known, **{name: getattr(self, name) for name in DerivedSpec.model_fields})
        rename(default_key(spec.identifier), self._asset(spec).key)
        return spec

    def _asset(self, spec: DerivedSpec) -> dg.AssetSpec:
        return self.translated(self.get_asset_spec(spec), spec)

    def presentation(self) -> Presentation:
        """Return how Dagster shows the table's asset."""
        return Presentation(
            self.group or plain_name(self.namespace),
            self.owners,
            description=self.description,
            tags=self.tags,
            metadata={"settings": document_metadata(self)},
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the table's asset and checks, and its schedule if it has one.

        Raises:
            ConfigurationError: If the settings don't go together with the tables that are read.
        """
        tree = context.component_tree
        topics = [document.topic_table() for document in documents_of_topics(tree)]
        derived = [document.derived_table() for document in tree.get_all_components(DerivedTable)]
        spec = self.derived_table()
        missing = {*spec.upstream.values()} - {*why_not_incremental(topics, derived)}
        if missing and not (
            all(document.every_topic for document in tree.get_all_components(KafkaTopic))
            and all(document.is_known for document in tree.get_all_components(KafkaTopics))
        ):
            # What tells the topics needs definitions that load.
            log.warning(
                "Table %s: from: %s isn't known, nor are all topics that a pattern matches. Run `kafka-lake topics "
                "refresh`.",
                spec.name,
                ".".join(min(missing)),
            )
            return dg.Definitions()
        check_derived(spec, topics, derived)
        asset = build_derived_asset(spec, self.presentation(), self._asset(spec), self.execute)
        return dg.Definitions(assets=[asset], schedules=[_schedule(spec, spec.cron)] if spec.cron else [])


def _schedule(spec: DerivedSpec, cron: str) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=f"{op_name(spec)}__schedule",
        cron_schedule=cron,
        target=dg.AssetSelection.assets(key_of(spec.identifier)),
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
