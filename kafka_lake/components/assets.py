"""A topic's share of the asset graph: the topic itself, its table below it, and the checks of the table."""

from collections.abc import Iterator
from enum import Enum
from functools import partial
from typing import Any
from zlib import crc32

import dagster as dg
from pydantic import Field

from kafka_lake.components.dead_letters import build_dead_letter_assets, report_dead_letters
from kafka_lake.components.keys import op_name, pool_name, table_key, topic_key
from kafka_lake.components.making_way import makes_way
from kafka_lake.components.metadata import LENGTHY, check_result, partition_metadata, run_metadata, topic_observation
from kafka_lake.errors import AuditFailedError, KafkaLakeError
from kafka_lake.ingest.again import Extent, replay
from kafka_lake.ingest.audit import CHECKS, GATES
from kafka_lake.ingest.continuous import Continuous, Steadily
from kafka_lake.ingest.pipeline import GateFailedError, Run, ingest
from kafka_lake.ingest.plan import Plan
from kafka_lake.ingest.published import examine
from kafka_lake.ingest.report import Commit, RunReport
from kafka_lake.ingest.retry import RetryPolicy
from kafka_lake.ingest.systems import Systems
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.offsets import lag
from kafka_lake.kafka.registry_resource import RegistryResource
from kafka_lake.kafka.resource import KafkaResource
from kafka_lake.lake.resource import CatalogResource
from kafka_lake.spark.resource import SparkResource

SETTINGS = "kafka_lake/topic_table"
_REPORT_SECONDS = 20.0
TABLE_TAG = "kafka_lake/table"

_CHECK_DESCRIPTIONS = {
    "row_count": "Rows, dead letters and tombstones make up the records read.",
    "offset_continuity": "The commit starts where the table's position ends; every offset is there once.",
    "schema_evolution": "The schema changed in ways only that are safe by Iceberg's rules and the topic's policy.",
    "dead_letters": "No more records fit no row than the topic's settings bear.",
    "data_loss": "Kafka still had all that the table lacked. Never blocks: the loss is recorded, the rest goes on.",
}


class Mode(Enum):
    """What a materialization does."""

    incremental = "incremental"
    replace = "replace"


class IngestConfig(dg.Config):
    """Run config of a table: how to materialize the chosen partitions."""

    mode: Mode = Field(
        default=Mode.incremental,
        description="incremental: go on where the table ends. replace: read records again that the table has, and "
        "swap their rows for what today's schema and transform give.",
    )
    start: str = Field(
        default="earliest",
        description="For replace: from here on. earliest, an offset, an ISO 8601 time, or by partition as 0:17,1:4.",
    )
    end: str = Field(
        default="latest", description="For replace: up to here, exclusive, and never beyond the table's position."
    )
    keep_missing: bool = Field(
        default=False, description="For replace: keep rows whose records Kafka no longer has, instead of refusing."
    )
    keep_up_for: float = Field(
        default=0.0,
        ge=0,
        description="For incremental: go on for so many seconds at most while records come and no other run in "
        "Dagster's queue needs its place. With 0 the run ends where the topic ended when it began.",
    )
    look_every: float = Field(
        default=10.0, gt=0, description="For keep_up_for: at most one commit is begun in so many seconds."
    )

    def staying(self, run_id: str) -> Continuous | None:
        """Return how a run goes on after it has done what it was asked for; None if it doesn't."""
        if not self.keep_up_for or self.mode is not Mode.incremental:
            return None
        # Up to a quarter less: else runs that began together would end together, and start together again.
        time_limit = self.keep_up_for * (1 - crc32(run_id.encode()) / 2**34)
        trigger = min(self.look_every, time_limit)
        return Continuous(trigger, time_limit, 0.0, None, max(_REPORT_SECONDS, trigger))


def partitions_of(topic: str) -> dg.DynamicPartitionsDefinition:
    """Return the partitions definition of a topic; its keys are Kafka partition numbers."""
    return dg.DynamicPartitionsDefinition(name=f"kafka/{topic}")


def build_systems(
    kafka: KafkaResource,
    catalog: CatalogResource,
    spark: SparkResource,
    registry: RegistryResource,
    kept_session: str = "",
) -> Systems:
    """Return what a run works with, from the deployment's resources, and a session of Spark's by `live_session`."""
    retry = RetryPolicy(
        attempts=kafka.retry_attempts,
        initial_seconds=min(1.0, kafka.retry_max_seconds),
        max_seconds=kafka.retry_max_seconds,
    )
    session = partial(spark.live_session, kept_session)
    schemas, turns = registry.registry(), spark.turns()
    return Systems(kafka.cluster(), kafka.spark_options(), catalog.open(), session, retry, schemas, turns)


def kept_session(spec: TopicTable) -> str:
    """Return the name of the session that the runs of a topic share; empty if each has its own.

    Code of the users' own may leave settings, views and modules behind, and is another one tomorrow.
    """
    return "" if spec.transform else f"{spec.topic} to {'.'.join(spec.identifier)}"


def build_topic_assets(
    spec: TopicTable,
    owners: list[str],
    group_name: str,
    description: str | None,
    continuous: Continuous | None = None,
) -> list[dg.AssetSpec | dg.AssetsDefinition]:
    """Return the topic as an external asset and its table as a partitioned, checked, materializable one.

    The dead-letter table is an external asset beside it, with a check that warns.

    Args:
        spec: The topic's settings.
        owners: As Dagster shows them.
        group_name: Dagster's asset group.
        description: What the records are.
        continuous: How a run keeps on; None for runs that end where the topic ended when they began.
    """
    source = dg.AssetSpec(
        topic_key(spec),
        group_name=group_name,
        owners=owners,
        description=f"Kafka topic {spec.topic}, observed by the sensor." + (f" {description}" if description else ""),
        kinds={"kafka"},
    )
    table = dg.AssetSpec(
        table_key(spec),
        deps=[source],
        group_name=group_name,
        owners=owners,
        description=description or f"The records of Kafka topic {spec.topic}.",
        kinds={"iceberg", "spark"},
        tags={TABLE_TAG: ""},
        metadata={SETTINGS: dg.MetadataValue.json(_settings(spec)), "dagster/table_name": ".".join(spec.identifier)},
    )
    checks = [
        dg.AssetCheckSpec(name, asset=table.key, blocking=name in GATES, description=_CHECK_DESCRIPTIONS[name])
        for name in CHECKS
    ]

    @dg.multi_asset(
        name=op_name(spec),
        specs=[table],
        check_specs=checks,
        partitions_def=partitions_of(spec.topic),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
        pool=pool_name(spec),
    )
    def ingest_topic(
        context: dg.AssetExecutionContext,
        config: IngestConfig,
        kafka: KafkaResource,
        catalog: CatalogResource,
        spark: SparkResource,
        registry: RegistryResource,
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:  # type: ignore[type-arg]
        systems = build_systems(kafka, catalog, spark, registry, kept_session(spec))
        try:
            if not context.selected_asset_keys:
                yield from _check_published(context, spec, systems)
            elif continuous is not None and config.mode is Mode.incremental:
                yield from _keep_up(context, _steadily(context, continuous, spec, systems), spec, systems)
            elif staying := config.staying(context.run_id):
                steadily = _steadily(context, staying, spec, systems)
                steadily.at_least = steadily.run.now
                steadily.waited_for = partial(makes_way, context.instance, context.run_id, table.key)
                yield from _keep_up(context, steadily, spec, systems)
            else:
                yield from _materialize(context, config, spec, systems)
        except KafkaLakeError as error:
            raise dg.Failure(description=str(error), allow_retries=not isinstance(error, AuditFailedError)) from error

    if spec.dead_letters != "table":
        return [source, ingest_topic]
    return [source, ingest_topic, *build_dead_letter_assets(spec, source.key, owners, group_name)]


def _materialize(
    context: dg.AssetExecutionContext, config: IngestConfig, spec: TopicTable, systems: Systems
) -> Iterator[Any]:
    def tell(commit: Commit, plan: Plan) -> None:
        context.log.info(
            f"Snapshot {commit.snapshot}: {commit.rows} rows, {commit.dead_letters} dead letters, "
            f"{commit.tombstones} tombstones from {commit.records} records; {plan.remaining} offsets to go."
        )

    wanted = {int(key) for key in context.partition_keys}
    step, say, run_id = context.log.debug, context.log.warning, context.run_id
    try:
        if config.mode is Mode.replace:
            extent = Extent(config.start, config.end, frozenset(wanted), config.keep_missing)
            report = replay(spec, systems, run_id, extent, on_commit=tell, on_step=step, say=say)
        else:
            report = ingest(spec, systems, run_id, wanted, on_commit=tell, on_step=step, say=say)
    except GateFailedError as error:
        for finding in error.findings:
            yield check_result(finding, table_key(spec))
        raise
    yield _result(context, report, wanted, spec, systems)


def _result(
    context: dg.AssetExecutionContext, report: RunReport, wanted: set[int], spec: TopicTable, systems: Systems
) -> dg.MaterializeResult:  # type: ignore[type-arg]
    for partition in report.partitions():
        if partition.partition in wanted:
            context.add_asset_metadata(
                partition_metadata(partition), asset_key=table_key(spec), partition_key=str(partition.partition)
            )
    if report.total("dead_letters") and spec.dead_letters == "table":
        report_dead_letters(context.instance, spec, systems.catalog)
    return dg.MaterializeResult(
        asset_key=table_key(spec),
        metadata=run_metadata(report, systems.catalog, spec),
        check_results=[check_result(finding, table_key(spec)) for finding in report.findings()],
    )


def _steadily(context: dg.AssetExecutionContext, settings: Continuous, spec: TopicTable, systems: Systems) -> Steadily:
    wanted = {int(key) for key in context.partition_keys}
    # What the log is told goes to the event log, where a line for each commit would be too many.
    return Steadily(Run(spec, systems, context.run_id, say=context.log.warning), settings, wanted)


def _keep_up(
    context: dg.AssetExecutionContext, steadily: Steadily, spec: TopicTable, systems: Systems
) -> Iterator[Any]:
    wanted = set(steadily.partitions)
    # Until all have one, Dagster takes what the run has not materialized yet for in progress.
    silent = set(wanted)
    try:
        for report in steadily.reports():
            context.log.info(
                f"{len(report.commits)} commits, {report.total('rows')} rows, "
                f"{report.total('dead_letters')} dead letters in {report.seconds:.0f} s."
            )
            if steadily.ended is None:
                yield from _interval(context, report, silent, spec, systems)
                silent.clear()
    except Exception as error:
        if steadily.run.commits:
            yield from _despite_an_error(context, steadily.run.report(), silent, spec, systems)
        for finding in error.findings if isinstance(error, GateFailedError) else ():
            yield check_result(finding, table_key(spec))
        raise
    context.log.info(f"The run ends: {steadily.ended}.")
    if steadily.stop.requested:
        if report.commits:
            yield from _interval(context, report, silent, spec, systems)
        raise dg.DagsterExecutionInterruptedError("The run was asked to stop.")
    yield _result(context, report, wanted, spec, systems)


def _despite_an_error(
    context: dg.AssetExecutionContext, report: RunReport, silent: set[int], spec: TopicTable, systems: Systems
) -> list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    try:
        return list(_interval(context, report, silent, spec, systems))
    except Exception as error:
        # What failed the run, a catalog that is gone for instance, must not be hidden by what it fails here.
        context.log.warning(f"{len(report.commits)} commits are published that can't be told of: {error}")
        return []


def _interval(
    context: dg.AssetExecutionContext, report: RunReport, silent: set[int], spec: TopicTable, systems: Systems
) -> Iterator[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """Give what Dagster shows of a run that goes on: only the partitions that had records, or that were silent yet."""
    touched = {r.partition for commit in report.commits for r in commit.ranges} | silent
    shown = [each for each in report.partitions() if each.partition in touched]
    # The sensor leaves the topic alone while its run goes on.
    yield topic_observation(spec, report.watermarks, lag(report.position, report.watermarks))
    metadata = run_metadata(report, systems.catalog, spec)
    figures = {key: value for key, value in metadata.items() if key not in LENGTHY}
    for each in shown:
        # Dagster takes what describes the table from the newest materialization: once is enough.
        known = metadata if each is shown[-1] else figures
        yield dg.AssetMaterialization(
            table_key(spec), partition=str(each.partition), metadata={**known, **partition_metadata(each)}
        )
    if report.total("dead_letters") and spec.dead_letters == "table":
        report_dead_letters(context.instance, spec, systems.catalog)
    for finding in report.findings():
        result = check_result(finding, table_key(spec))
        yield dg.AssetCheckEvaluation(
            asset_key=table_key(spec),
            check_name=finding.check,
            passed=result.passed,
            metadata=result.metadata,
            severity=result.severity,
            description=result.description,
            blocking=finding.check in GATES,
        )


def _check_published(
    context: dg.AssetExecutionContext, spec: TopicTable, systems: Systems
) -> Iterator[dg.AssetCheckResult]:
    selected = {key.name for key in context.selected_asset_check_keys}
    for finding in examine(spec, systems.catalog, systems.cluster):
        if finding.check in selected:
            yield check_result(finding, table_key(spec))


def _settings(spec: TopicTable) -> dict[str, Any]:
    return {**vars(spec), "properties": dict(spec.properties), "renames": dict(spec.renames)}


def settings_of(metadata: dict[str, Any]) -> TopicTable:
    """Return the settings that an asset's metadata carries, as `build_topic_assets` put them there."""
    value = metadata[SETTINGS]
    carried: Any = value.data if isinstance(value, dg.JsonMetadataValue) else value
    doc = dict(carried)
    doc["partition_by"], doc["sort_by"] = tuple(doc["partition_by"]), tuple(doc["sort_by"])
    return TopicTable(**doc)


def topics_of(repository: dg.RepositoryDefinition | None) -> list[TopicTable]:
    """Return the settings of all topics that a code location has, by the keys of their tables."""
    if repository is None:
        return []
    by_key = {
        key: metadata
        for assets in repository.assets_defs_by_key.values()
        for key, metadata in assets.metadata_by_key.items()
        if SETTINGS in metadata
    }
    return [settings_of(dict(by_key[key])) for key in sorted(by_key)]
