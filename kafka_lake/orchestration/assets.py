"""A topic's assets: the topic itself, its tables below it, and their checks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import dagster as dg

from kafka_lake.common.text import plain
from kafka_lake.ingest.continuous.run import continuous_run
from kafka_lake.ingest.run import logged_run
from kafka_lake.orchestration.checks import (
    build_dead_letters,
    build_freshness_check,
    build_verification,
    rule_check_spec,
)
from kafka_lake.orchestration.heartbeat import heartbeat
from kafka_lake.orchestration.jobs import build_health_check
from kafka_lake.orchestration.keys import (
    CONTINUOUS_ASSET_TAG,
    TABLE_TAG,
    of_cluster,
    op_name,
    pool_name,
    table_key,
    topic_key,
    work_name,
)
from kafka_lake.orchestration.materialize import (
    IngestConfig,
    Mode,
    TopicsOfARun,
    check_published,
    continue_together,
    materialize,
    observer_of,
    run_on,
)
from kafka_lake.orchestration.metadata import SPEC
from kafka_lake.orchestration.partitions import partitions_of
from kafka_lake.orchestration.reporting import Event, Reporter
from kafka_lake.orchestration.resources import KafkaResource, connections_of, kept_session, resource_keys
from kafka_lake.orchestration.runs import yields_slot
from kafka_lake.orchestration.steps import as_failures, run_choices
from kafka_lake.runtime.commit import CHECKS, GATES
from kafka_lake.spec.continuous import Continuous
from kafka_lake.spec.topic_table import TopicTable


@dataclass(frozen=True)
class Presentation:
    """The presentation of a table: descriptions, owners and tags. It has no effect on runs.

    Args:
        tags: Of each asset, so that Dagster can select by them.
        metadata: Of the table's asset.
    """

    group: str
    owners: Sequence[str] = ()
    description: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def asset(self, key: dg.AssetKey, description: str, kinds: set[str], **more: Any) -> dg.AssetSpec:
        """Return one of the topic's assets."""
        tags = {**self.tags, **more.pop("tags", {})}
        shown: dict[str, Any] = {"group_name": self.group, "owners": list(self.owners), "tags": tags}
        return dg.AssetSpec(key, description=description, kinds=kinds, **shown, **more)


def follow_sources() -> dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey]:
    """Return a condition: an asset is made again once what it is made from has changed, and is never left behind.

    It is `dagster.AutomationCondition.eager()` with one difference. That one regards an asset as current once it
    is made after its source has changed, though it may have read the source before: it would stay stale until the next
    change. Here only a request after the change counts.
    """
    eager, changed = dg.AutomationCondition.eager(), dg.AutomationCondition.any_deps_updated()
    # An evaluation learns together of what the one before asked for and of what has changed since.
    asked = dg.AutomationCondition.newly_requested() & ~changed
    handled = (asked | dg.AutomationCondition.initial_evaluation()).with_label("handled")
    return eager.replace("handled", handled).with_label("follow_sources")


_CHECK_DESCRIPTIONS = {
    "row_count": "Rows, dead letters and tombstones together are as many as the records read.",
    "offset_continuity": "The commit starts where the table's position ends; every offset is there once.",
    "schema_evolution": "The schema changed only in ways that Iceberg's rules and the topic's settings allow.",
    "dead_letters": "The number of dead letters is within the topic's limit.",
    "data_loss": "Kafka still had every record that the table lacked. Never blocks: the loss is recorded, the run "
    "continues.",
}


def build_topic_assets(
    spec: TopicTable,
    shown: Presentation,
    continuous: Continuous | None = None,
    tables: Mapping[tuple[str, str], Presentation] = MappingProxyType({}),
) -> list[dg.AssetSpec | dg.AssetsDefinition]:
    """Return the topic as an external asset and its table as a partitioned, checked, materializable one.

    Checks of the table warn of dead letters, and of a lack of maintenance. Further tables of the topic are assets like
    it, which the same run makes.
    """
    sources = [
        shown.asset(
            topic_key(source),
            f"Kafka topic {source.full_topic}. The sensor {of_cluster('kafka_offsets', spec.cluster)} polls it."
            + (f" {shown.description}" if shown.description else ""),
            {"kafka"},
        )
        for source in spec.each_topic
    ]
    which = f" {spec.where}" if spec.where else " that no other table takes" if spec.has_routes else ""
    text = f"The records of {spec.display_topics}{which}."
    tags = {CONTINUOUS_ASSET_TAG: ""} if continuous else {}
    table = _table(
        spec, sources, shown, description=shown.description or text, metadata={SPEC: spec, **shown.metadata}, tags=tags
    )
    others = [
        _table(
            route.to,
            sources,
            its := tables.get(route.to.identifier, shown),
            description=(its is not shown and its.description)
            or plain(f"The records of Kafka topic {spec.full_topic} {route.when}."),
        )
        for route in spec.every_route
    ]
    checks = [check for table_spec in spec.tables for check in _checks(table_spec)]

    @dg.multi_asset(
        name=op_name(spec),
        specs=[table, *others],
        check_specs=checks,
        partitions_def=partitions_of(work_name(spec)),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
        pool=pool_name(spec),
        required_resource_keys=resource_keys(spec.cluster),
        config_schema=run_choices(IngestConfig),
    )
    def ingest_topic(
        context: dg.AssetExecutionContext,
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult | Event]:  # type: ignore[type-arg]
        config = IngestConfig(**context.op_execution_context.op_config)
        with as_failures(), heartbeat(context.instance, context.run_id):
            connect = partial(connections_of, context.resources, spec.cluster, kept_session(spec))
            catch_up = config.catch_up(context.run_id)
            together = None
            if catch_up and config.topics > 1:
                kafka: KafkaResource = getattr(context.resources, of_cluster("kafka", spec.cluster))
                together = kafka.once_a_run(lambda: TopicsOfARun(connect()))
            connections = together.connections if together else connect()
            if not context.selected_asset_keys:
                yield from check_published(context, spec, connections)
            elif continuous is not None and config.mode is Mode.incremental:
                reporter = Reporter(context, spec, connections)
                with logged_run(spec, connections, context.run_id, observer_of(reporter)) as whole:
                    yield from run_on(reporter, continuous_run(whole, continuous, reporter.partitions))
            elif catch_up and together:
                reporter = Reporter(context, spec, connections)
                report = yield from materialize(reporter, config)
                together.done.append((reporter, report))
                yield from continue_together(context, together, catch_up, config.topics)
            elif not spec.topics and catch_up:
                reporter = Reporter(context, spec, connections)
                others_wait = partial(yields_slot, context.instance, context.run_id)
                with logged_run(spec, connections, context.run_id, observer_of(reporter)) as whole:
                    run = continuous_run(whole, catch_up, reporter.partitions, catch_up=True, others_wait=others_wait)
                    yield from run_on(reporter, run)
            else:
                yield from materialize(Reporter(context, spec, connections), config)

    beside: list[dg.AssetSpec | dg.AssetChecksDefinition] = []
    for table_spec in spec.tables:
        beside += build_freshness_check(table_spec)
        beside += build_verification(table_spec, spec)
        if table_spec.keeps_dead_letters:
            beside.append(build_dead_letters(table_spec))
    # A run of the topic changes all of its tables: what maintains a keyed one waits for that.
    return [*sources, ingest_topic, *beside, *(build_health_check(table_spec, spec) for table_spec in spec.tables)]


def _table(
    spec: TopicTable,
    sources: Sequence[dg.AssetSpec],
    shown: Presentation,
    *,
    description: str,
    metadata: Mapping[str, Any] = MappingProxyType({}),
    tags: Mapping[str, str] = MappingProxyType({}),
) -> dg.AssetSpec:
    return shown.asset(
        table_key(spec),
        description,
        {"iceberg", "spark"},
        deps=sources,
        tags={TABLE_TAG: spec.cluster or "", **tags},
        metadata={**metadata, "dagster/table_name": ".".join(spec.identifier)},
    )


def _checks(spec: TopicTable) -> list[dg.AssetCheckSpec]:
    key = table_key(spec)
    return [
        dg.AssetCheckSpec(name, asset=key, blocking=name in GATES, description=_CHECK_DESCRIPTIONS[name])
        for name in CHECKS
    ] + [rule_check_spec(rule, key) for rule in spec.named_rules]
