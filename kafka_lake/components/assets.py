"""A topic's share of the asset graph: the topic itself, its table below it, and the checks of the table."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any
from zlib import crc32

import dagster as dg
from pydantic import Field, TypeAdapter

from kafka_lake.components.alive import alive
from kafka_lake.components.dead_letters import build_dead_letter_assets
from kafka_lake.components.failures import as_failures
from kafka_lake.components.freshness import build_freshness_check
from kafka_lake.components.history import build_history_assets
from kafka_lake.components.keys import of_cluster, op_name, pool_name, table_key, topic_key, work_name
from kafka_lake.components.maintenance import build_maintenance_asset
from kafka_lake.components.metadata import check_result
from kafka_lake.components.partitions import partitions_of
from kafka_lake.components.presentation import Presentation
from kafka_lake.components.reporting import Event, Reporter
from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.components.resources.kafka import KafkaResource
from kafka_lake.components.resources.registry import RegistryResource
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.components.rule_checks import rule_check_spec
from kafka_lake.components.table_page import settings_in, settings_table
from kafka_lake.components.topics_of_a_table import Task, examined, materialize_topics
from kafka_lake.components.yield_slot import yields_slot
from kafka_lake.ingest.commit import Commit
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.continuous.run import ContinuousRun, continuous_run
from kafka_lake.ingest.continuous.schedule import Continuous
from kafka_lake.ingest.finding import CHECKS, GATES
from kafka_lake.ingest.gate import GateFailedError
from kafka_lake.ingest.jobs.replay import Extent
from kafka_lake.ingest.observer import Observer
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.published_rules import examine_rules
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.retry import RetryPolicy, call
from kafka_lake.ingest.run import ingest, logged_run, replay
from kafka_lake.ingest.topic_table import TopicTable

SETTINGS = "topic_settings"
_AS_JSON = TypeAdapter(TopicTable)
_REPORT_SECONDS = 20.0
TABLE_TAG = "kafka_lake/table"
# Of runs that continue: until when they do, and how many commits they have made. A catch-up run first reads all that
# was there when it began. The names are short: Dagster's page of all runs cuts tags off after some thirty letters.
CATCH_UP_TAG = "catch_up"
CONTINUOUS_TAG = "continuous"

_CHECK_DESCRIPTIONS = {
    "row_count": "Rows, dead letters and tombstones together are as many as the records read.",
    "offset_continuity": "The commit starts where the table's position ends; every offset is there once.",
    "schema_evolution": "The schema changed only in ways that Iceberg's rules and the topic's settings allow.",
    "dead_letters": "The number of dead letters is within the topic's limit.",
    "data_loss": "Kafka still had every record that the table lacked. Never blocks: the loss is recorded, the run "
    "continues.",
}


class Mode(Enum):
    """What a materialization does."""

    incremental = "incremental"
    replace = "replace"


class IngestConfig(dg.Config):
    """Run config of a table: how to materialize the chosen partitions."""

    mode: Mode = Field(
        default=Mode.incremental,
        description="incremental: continue where the table ends. replace: read records again that the table has, and "
        "replace their rows by what today's schema and transform give.",
    )
    start: str = Field(
        default="earliest",
        description="For replace: from here on. earliest, an offset, an ISO 8601 time, or by partition as 0:17,1:4.",
    )
    end: str = Field(
        default="latest", description="For replace: up to here, exclusive, and never beyond the table's position."
    )
    keep_missing: bool = Field(
        default=False, description="For replace: keep rows whose records Kafka no longer has, instead of failing."
    )
    catch_up_for: float = Field(
        default=0.0,
        ge=0,
        description="For incremental: continue for at most this many seconds, while records come and no other run "
        "waits in Dagster's queue. With 0 the run ends where the topic ended when it began.",
    )
    poll_every: float = Field(
        default=10.0,
        gt=0,
        description="For catch_up_for: the shortest time between the beginnings of two commits, in seconds.",
    )
    keep_up_for: float | None = Field(
        default=None, ge=0, description="Deprecated: the old name of `catch_up_for`. It still counts if it is set."
    )
    look_every: float | None = Field(
        default=None, gt=0, description="Deprecated: the old name of `poll_every`. It still counts if it is set."
    )

    def task(self) -> Task:
        """Return what a run over the topics of one table does: it ends where they ended when it began."""
        extent = Extent(self.start, self.end, keep_missing=self.keep_missing)
        return Task(extent if self.mode is Mode.replace else None)

    def catch_up(self, run_id: str) -> Continuous | None:
        """Return how a run continues after it has done what it was asked for; None if it doesn't."""
        seconds = self.catch_up_for if self.keep_up_for is None else self.keep_up_for
        if not seconds or self.mode is not Mode.incremental:
            return None
        # Up to a quarter less: else runs that began together would end together, and start together again.
        time_limit = seconds * (1 - crc32(run_id.encode()) / 2**34)
        trigger = min(self.poll_every if self.look_every is None else self.look_every, time_limit)
        return Continuous(
            trigger=trigger,
            time_limit=time_limit,
            idle=0.0,
            compact_every=None,
            report_every=max(_REPORT_SECONDS, trigger),
        )


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
    schemas, commit_slots = registry.registry(), spark.commit_slots()
    return Connections(
        cluster=kafka.cluster(),
        kafka_options=kafka.spark_options(),
        catalog=catalog.open(),
        spark=session,
        retry=retry,
        registry=schemas,
        commit_slots=commit_slots,
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
    """Return the name of the session that the runs of a topic share; empty if each has its own.

    Code of the users' own may leave settings, views and modules behind, and is another one tomorrow.
    """
    return "" if any(each.transform for each in spec.tables) else f"{spec.full_topic} to {'.'.join(spec.identifier)}"


def build_topic_assets(
    spec: TopicTable, shown: Presentation, continuous: Continuous | None = None
) -> list[dg.AssetSpec | dg.AssetsDefinition]:
    """Return the topic as an external asset and its table as a partitioned, checked, materializable one.

    The dead-letter table is an external asset beside it, with a check that warns, and so is the history. Below the
    table is its maintenance. The tables of routes are assets like it, which the same run makes.

    Args:
        spec: The topic's settings.
        shown: How Dagster shows the assets.
        continuous: How a run continues; None for runs that end where the topic ended when they began.
    """
    sources = [
        shown.asset(
            topic_key(each),
            f"Kafka topic {each.full_topic}. The sensor {of_cluster('kafka_offsets', spec.cluster)} polls it."
            + (f" {shown.description}" if shown.description else ""),
            {"kafka"},
        )
        for each in spec.each_topic
    ]
    source, keys = sources[0], [each.key for each in sources]
    told = f"The records of {spec.told}{' that no route takes' if spec.has_routes else ''}."
    settings = settings_table(_AS_JSON.dump_python(spec, mode="json", exclude_defaults=True))
    table = _table(spec, sources, shown, description=shown.description or told, metadata={SETTINGS: settings})
    others = [
        _table(route.to, sources, shown, description=f"The records of Kafka topic {spec.full_topic} {route.when}.")
        for route in spec.every_route
    ]
    checks = [check for each in spec.tables for check in _checks(each)]

    @dg.multi_asset(
        name=op_name(spec),
        specs=[table, *others],
        check_specs=checks,
        partitions_def=partitions_of(work_name(spec)),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
        pool=pool_name(spec),
        required_resource_keys=resource_keys(spec.cluster),
    )
    def ingest_topic(
        context: dg.AssetExecutionContext, config: IngestConfig
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:  # type: ignore[type-arg]
        with as_failures(), alive(context.instance, context.run_id):
            connections = connections_of(context.resources, spec.cluster, kept_session(spec))
            if not context.selected_asset_keys:
                yield from _check_published(context, spec, connections)
            elif spec.is_shared:
                yield from materialize_topics(context, config.task(), spec, connections)
            elif continuous is not None and config.mode is Mode.incremental:
                reporter = Reporter(context, spec, connections)
                with logged_run(spec, connections, context.run_id, _observer(reporter)) as whole:
                    yield from _run_on(reporter, continuous_run(whole, continuous, reporter.chosen))
            elif catch_up := config.catch_up(context.run_id):
                reporter = Reporter(context, spec, connections)
                others_wait = partial(yields_slot, context.instance, context.run_id, table.key)
                with logged_run(spec, connections, context.run_id, _observer(reporter)) as whole:
                    run = continuous_run(whole, catch_up, reporter.chosen, catch_up=True, others_wait=others_wait)
                    yield from _run_on(reporter, run)
            else:
                yield from _materialize(context, config, spec, connections)

    beside = [*build_history_assets(spec, source.key, shown), *build_freshness_check(spec)]
    for each in spec.tables:
        if each.dead_letters == "table":
            beside += build_dead_letter_assets(each, keys, shown)
    # A run of the topic changes all of its tables: what maintains a keyed one waits for that.
    return [*sources, ingest_topic, *beside, *(build_maintenance_asset(each, shown, spec) for each in spec.tables)]


def _table(
    spec: TopicTable,
    sources: Sequence[dg.AssetSpec],
    shown: Presentation,
    *,
    description: str,
    metadata: Mapping[str, Any] = MappingProxyType({}),
) -> dg.AssetSpec:
    return shown.asset(
        table_key(spec),
        description,
        {"iceberg", "spark"},
        deps=sources,
        tags={TABLE_TAG: spec.cluster or ""},
        metadata={**metadata, "dagster/table_name": ".".join(spec.identifier)},
    )


def _checks(spec: TopicTable) -> list[dg.AssetCheckSpec]:
    key = table_key(spec)
    return [
        dg.AssetCheckSpec(name, asset=key, blocking=name in GATES, description=_CHECK_DESCRIPTIONS[name])
        for name in CHECKS
    ] + [rule_check_spec(rule, key) for rule in spec.named_rules]


def _materialize(
    context: dg.AssetExecutionContext, config: IngestConfig, spec: TopicTable, connections: Connections
) -> Iterator[Any]:
    reporter = Reporter(context, spec, connections)

    def tell(commit: Commit, plan: Plan) -> None:
        context.log.info(
            f"Snapshot {commit.snapshot}: {commit.rows} rows, {commit.dead_letters} dead letters, "
            f"{commit.tombstones} tombstones from {commit.records} records; {commit.told_of_others}"
            f"{reporter.committed(plan) or f'{plan.remaining} offsets to go'}."
        )

    observer = Observer(step_done=context.log.debug, on_commit=tell, warn=context.log.warning)
    try:
        if config.mode is Mode.replace:
            extent = Extent(config.start, config.end, reporter.chosen, config.keep_missing)
            report = replay(spec, connections, run_id=context.run_id, extent=extent, observer=observer)
        else:
            report = ingest(spec, connections, run_id=context.run_id, partitions=reporter.chosen, observer=observer)
    except GateFailedError as error:
        yield from reporter.refused(error)
        raise
    yield from reporter.end(report)


def _observer(reporter: Reporter) -> Observer:
    def tell(_: Commit, plan: Plan) -> None:
        # What the log is told goes to the event log, where a line for each commit would be too many: a backlog that
        # takes several of them has such lines.
        if told := reporter.committed(plan):
            reporter.context.log.info(f"{told}.")

    return Observer(on_commit=tell, warn=reporter.context.log.warning)


def _run_on(reporter: Reporter, run: ContinuousRun) -> Iterator[Any]:
    context = reporter.context
    end = datetime.now(UTC) + timedelta(seconds=run.settings.time_limit)
    policy = reporter.connections.retry
    call(policy, context.log.warning, "Tagging the run", lambda: _tag(context, run, end, commits=0))
    # Until all have one, Dagster takes what the run has not materialized yet for in progress.
    silent = set(run.partitions)
    try:
        for report in run.reports():
            context.log.info(
                f"{len(report.commits)} commits, {report.total('rows')} rows, "
                f"{report.total('dead_letters')} dead letters in {report.seconds:.0f} s."
            )
            with suppress(Exception):
                # It is for people alone, and the next report makes up for it.
                _tag(context, run, end, commits=reporter.so_far.figures.commits + len(report.commits))
            if run.ended is None:
                yield from reporter.interval(report, silent)
                silent.clear()
    except Exception as error:
        if run.runner.commits:
            yield from _despite_an_error(reporter, run.runner.report(), silent)
        if isinstance(error, GateFailedError):
            yield from reporter.refused(error)
        raise
    context.log.info(f"The run ends: {run.ended}.")
    if run.stop.requested:
        if report.commits:
            yield from reporter.interval(report, silent)
        raise dg.DagsterExecutionInterruptedError("The run was asked to stop.")
    yield from reporter.end(report)


def _tag(context: dg.AssetExecutionContext, run: ContinuousRun, end: datetime, commits: int) -> None:
    tag = CONTINUOUS_TAG if run.target is None else CATCH_UP_TAG
    context.instance.add_run_tags(context.run_id, {tag: continues_until(end, commits)})


def continues_until(end: datetime, commits: int) -> str:
    """Return what the page of all runs shows of a run that continues.

    Args:
        end: When its time is over, in UTC.
        commits: How many it has made.

    >>> continues_until(datetime(2026, 11, 26, 16, 35), 12)
    'until 16:35Z, 12 commits'
    """
    return f"until {end:%H:%M}Z, {commits:,} commits"


def _despite_an_error(reporter: Reporter, report: RunReport, silent: set[int]) -> list[Event]:
    try:
        return list(reporter.interval(report, silent))
    except Exception as error:
        # What failed the run, a catalog that is gone for instance, must not be hidden by what it fails here.
        reporter.context.log.warning(f"{len(report.commits)} commits are published and can't be reported: {error}")
        return []


def _check_published(
    context: dg.AssetExecutionContext, spec: TopicTable, connections: Connections
) -> Iterator[dg.AssetCheckResult]:
    for each in spec.tables:
        selected = {key.name for key in context.selected_asset_check_keys if key.asset_key == table_key(each)}
        if each is not spec and selected and connections.catalog.table(each.identifier) is None:
            said = "There is no table yet: no record was for it."
            for name in sorted(selected):
                yield dg.AssetCheckResult(check_name=name, asset_key=table_key(each), passed=True, description=said)
            continue
        findings = examined(each, connections) if selected & set(CHECKS) else []
        rules = [rule for rule in each.named_rules if rule.check in selected]
        findings += examine_rules(each, connections, rules)
        for finding in findings:
            if finding.check in selected:
                yield check_result(finding, table_key(each))


def settings_of(metadata: dict[str, Any]) -> TopicTable:
    """Return the settings that an asset's metadata carries, as `build_topic_assets` put them there."""
    return _AS_JSON.validate_python(settings_in(metadata[SETTINGS]))


def topics_of(repository: dg.RepositoryDefinition | None) -> list[TopicTable]:
    """Return the settings of all topics that a code location has, by the keys of their tables.

    The topics of one table follow each other, each with settings of its own.
    """
    if repository is None:
        return []
    by_key = {
        key: metadata
        for assets in repository.assets_defs_by_key.values()
        for key, metadata in assets.metadata_by_key.items()
        if SETTINGS in metadata
    }
    return [each for key in sorted(by_key) for each in settings_of(dict(by_key[key])).each_topic]
