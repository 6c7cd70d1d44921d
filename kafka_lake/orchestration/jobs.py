"""The jobs: maintenance of tables, with the check `table_health`, and the replay of dead letters."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from kafka_lake.common.text import code, plain
from kafka_lake.common.text import table as markdown_table
from kafka_lake.errors import ConfigurationError
from kafka_lake.orchestration.heartbeat import heartbeat
from kafka_lake.orchestration.keys import (
    MAINTENANCE_TAG,
    TABLE_TAG,
    maintenance_pool,
    of_cluster,
    op_name,
    partition_key,
    table_key,
)
from kafka_lake.orchestration.metadata import topics_of
from kafka_lake.orchestration.resources import connections_of, resource_keys
from kafka_lake.orchestration.steps import as_failures, run_choices
from kafka_lake.spec.topic_table import TopicTable

if TYPE_CHECKING:
    from kafka_lake.maintenance.maintain import Due, Maintained
    from kafka_lake.runtime.context import Connections

TABLE_HEALTH = "table_health"
JOB = "maintain_tables"
_MIB = 2**20


class MaintenanceConfig(dg.Config):
    """Run config of maintenance."""

    everything: bool = Field(
        default=False,
        description="Compact and expire all of the topic's tables, due or not.",
    )


def build_maintenance_job(cluster: str | None = None) -> Any:
    """Return the job that maintains a cluster's tables where they need it."""
    return dg.define_asset_job(
        of_cluster(JOB, cluster),
        selection=_HealthChecks(cluster),
        tags={MAINTENANCE_TAG: "all tables"},
        description="Compacts small files, and expires old snapshots and rows, by the tables' `maintenance:` settings. "
        f"The check `{TABLE_HEALTH}` of each table reports what was done.",
    )


class _HealthChecks(dg.AssetSelection):
    """The checks `table_health` of a cluster's tables, whichever there are once all definitions are loaded."""

    def __init__(self, cluster: str | None) -> None:
        self._cluster = cluster or ""

    def resolve_inner(self, asset_graph: Any, allow_missing: bool) -> set[dg.AssetKey]:
        return set()

    def resolve_checks_inner(self, asset_graph: Any, allow_missing: bool) -> set[dg.AssetCheckKey]:
        every = {
            asset_check_key for asset_check_key in asset_graph.asset_check_keys if asset_check_key.name == TABLE_HEALTH
        }
        return {
            asset_key
            for asset_key in every
            if asset_graph.get(asset_key.asset_key).tags.get(TABLE_TAG) == self._cluster
        }


def health_check_key(spec: TopicTable) -> dg.AssetCheckKey:
    """Return the key of the check whose runs maintain a table, and the tables beside it."""
    return dg.AssetCheckKey(table_key(spec), TABLE_HEALTH)


def build_health_check(spec: TopicTable, topic: TopicTable) -> dg.AssetChecksDefinition:
    """Return the check of a table that maintains it, and the tables beside it, in runs of the job."""
    key = table_key(spec)
    check = dg.AssetCheckSpec(
        TABLE_HEALTH,
        asset=key,
        description="Warns if the table's maintenance is long overdue. The sensor "
        f"{of_cluster('kafka_maintenance', spec.cluster)} requests runs of the job {of_cluster(JOB, spec.cluster)}, "
        "which compacts small files of the table and of its dead letters, and expires old snapshots"
        f"{' and rows' if spec.maintenance.row_retention else ''}. The result reports what was done.",
    )

    @dg.multi_asset_check(
        name=op_name(spec, TABLE_HEALTH),
        specs=[check],
        # A table whose rows change has one writer at a time; others don't hinder each other.
        pool=maintenance_pool(spec, topic),
        required_resource_keys={"catalog", "spark"},
        config_schema=run_choices(MaintenanceConfig),
    )
    def maintain_tables(context: dg.AssetCheckExecutionContext) -> Iterator[Any]:
        from kafka_lake.maintenance.maintain import Tables, due, maintain, summary_line

        config = MaintenanceConfig(**context.op_execution_context.op_config)
        resources: Any = context.resources
        with as_failures(), heartbeat(context.instance, context.run.run_id):
            tables = Tables(resources.catalog.open(), resources.spark.live_session)
            done: Sequence[Maintained] = ()
            if MAINTENANCE_TAG in context.run.tags:
                done = maintain(
                    spec,
                    tables,
                    config.everything,
                    notify=lambda table: context.log.info(f"{summary_line(table)}."),
                    run_id=context.run.run_id,
                )
                if not done:
                    context.log.info(f"{'.'.join(spec.identifier)} needs nothing.")
            found = due(spec, tables)
            metadata = _metadata(spec, found, done)
            if done:
                # The page of the table shows it among its events.
                context.op_execution_context.log_event(dg.AssetObservation(key, metadata=metadata))
            yield _verdict(key, found, metadata)

    return maintain_tables


def _metadata(spec: TopicTable, tables: "Sequence[Due]", done: "Sequence[Maintained]") -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if health := next((table.needs.health for table in tables if table.identifier == spec.identifier), None):
        metadata = {
            "data_files": health.data_files,
            "average_file_mib": round(health.average_size / _MIB, 2),
            "delete_files": health.delete_files,
            "deleted_rows": health.deleted_rows,
            "snapshots": health.snapshots,
        }
    if done:
        lines = [_figures(result) for result in done]
        metadata["done"] = dg.MetadataValue.md(
            markdown_table(tuple(lines[0]), (tuple(line.values()) for line in lines))
        )
        for result in done:
            # Dagster plots numbers over time.
            if result.identifier == spec.identifier and result.rows is not None:
                metadata["rows_expired"] = result.rows
        metadata["seconds"] = round(sum(result.seconds for result in done), 1)
    return metadata


def _figures(done: "Maintained") -> dict[str, str]:
    """Return what was done to a table, by heading: before and after."""
    return {
        "table": code(".".join(done.identifier)),
        "data files": f"{done.before.data_files:,} → {done.after.data_files:,}",
        "delete files": f"{done.before.delete_files:,} → {done.after.delete_files:,}",
        "snapshots": f"{done.before.snapshots:,} → {done.after.snapshots:,}",
        "rows expired": "" if done.rows is None else f"{done.rows:,}",
        "seconds": f"{done.seconds:.1f}",
    }


def health_check(spec: TopicTable, tables: "Sequence[Due]") -> dg.AssetCheckEvaluation:
    """Return the result of the check `table_health` without a run of maintenance, which may never come."""
    result = _verdict(table_key(spec), tables, _metadata(spec, tables, ()))
    from kafka_lake.orchestration.check_results import evaluation

    return evaluation(result)


def _verdict(
    key: dg.AssetKey, tables: "Sequence[Due]", more: Mapping[str, Any] = MappingProxyType({})
) -> dg.AssetCheckResult:
    problems = [f"{table.name}: {problem}" for table in tables if (problem := table.needs.overdue)]
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=TABLE_HEALTH,
        passed=not problems,
        severity=dg.AssetCheckSeverity.WARN,
        description=plain("; ".join(problems)) or None,
        metadata=dict(more),
    )


class ReplayConfig(dg.Config):
    """Which dead letters to decode again."""

    topic: str = Field(description="The Kafka topic.")
    where: str = Field(
        default="",
        description="SQL condition on the dead-letter table, such as error_class = 'wrong_type'. Empty: "
        "all dead letters.",
    )


def build_replay_job(cluster: str | None = None) -> dg.JobDefinition:
    """Return the job for the topics of a cluster, by the cluster's name."""

    @dg.op(
        name=of_cluster("decode_again", cluster),
        required_resource_keys=resource_keys(cluster),
        config_schema=run_choices(ReplayConfig),
        out=dg.Out(dg.Nothing),
    )
    def replay(context: dg.OpExecutionContext) -> Iterator[Any]:
        config = ReplayConfig(**context.op_config)
        with as_failures(allow_retries=False):
            connections = connections_of(context.resources, cluster)
            for topic_spec in _chosen(context, cluster, config.topic):
                for spec in topic_spec.tables:
                    yield from _replay(context, spec, connections, config.where)
        yield dg.Output(None)

    @dg.job(
        name=of_cluster("replay_dead_letters", cluster),
        description="Decodes a topic's dead letters again and moves those that fit into its table, exactly once.",
        executor_def=dg.in_process_executor,
    )
    def replay_dead_letters() -> None:
        replay()

    return replay_dead_letters


def _replay(
    context: dg.OpExecutionContext, spec: TopicTable, connections: "Connections", where: str
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    from kafka_lake.ingest.run import replay_dead_letters
    from kafka_lake.orchestration.check_results import dead_letter_evaluation
    from kafka_lake.runtime.context import Observer

    observer = Observer(step_done=context.log.debug, warn=context.log.warning)
    done = replay_dead_letters(spec, connections, run_id=context.run_id, where=where or None, observer=observer)
    context.log.info(
        f"Topic {spec.topic}: {done.moved} dead letters are rows of table {'.'.join(spec.identifier)} now, "
        f"{done.remaining} of the examined ones remain."
    )
    for partition in done.report.partitions():
        if partition.rows:
            # What lies downstream notices: the table's partitions have new rows.
            yield dg.AssetMaterialization(
                table_key(spec),
                partition=partition_key(spec, partition.partition),
                metadata={"dagster/partition_row_count": partition.rows, "from": "dead letters"},
            )
    yield dead_letter_evaluation(spec, connections.catalog)


def topics_of_location(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> list[TopicTable]:
    """Return the settings of all tables in the code location that the run belongs to."""
    return topics_of(context.repository_def)


def _chosen(context: dg.OpExecutionContext, cluster: str | None, topic: str) -> list[TopicTable]:
    specs = [spec for spec in topics_of_location(context) if spec.cluster == cluster]
    chosen = [spec for spec in specs if spec.topic == topic]
    if not chosen:
        known = ", ".join(sorted({spec.topic for spec in specs})) or "none"
        raise ConfigurationError(
            f"Topic {topic} has no table in this project; the topics are: {known}.", "Name one of them."
        )
    return chosen
