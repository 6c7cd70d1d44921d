"""Maintenance of a topic's tables in the asset graph: an asset below the table, whose runs compact and expire."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import dagster as dg
from pydantic import Field

from kafka_lake.common.markdown import table as markdown_table
from kafka_lake.components.alive import alive
from kafka_lake.components.failures import as_failures
from kafka_lake.components.keys import (
from kafka_lake.common.markdown import code, plain
    MAINTENANCE_TAG,
    maintenance_key,
    maintenance_op_name,
    maintenance_pool,
    of_cluster,
    table_key,
)
from kafka_lake.components.presentation import Presentation
from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.ingest.maintenance.maintain import Maintained, maintain, sentence
from kafka_lake.ingest.maintenance.needed import Due, due
from kafka_lake.ingest.maintenance.tables import Tables
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.maintenance.leftovers import dangling_deletes
from kafka_lake.lake.maintenance.planning import Planning

CHECK = "table_health"
_MIB = 2**20


class MaintenanceConfig(dg.Config):
    """Run config of maintenance."""

    everything: bool = Field(
        default=False,
        description="Compact all of the topic's tables and expire all that may, though none needs it yet.",
    )


def build_maintenance_asset(spec: TopicTable, shown: Presentation, topic: TopicTable) -> dg.AssetsDefinition:
    """Return the asset whose materialization maintains a topic's tables, and their check.

    Args:
        spec: The topic's settings.
        shown: How Dagster shows the asset.
        topic: The settings of the topic, whose runs fill the tables; others for the table of a route.
    """
    key = maintenance_key(spec)
    asset = shown.asset(
        key,
        f"Small files of table {'.'.join(spec.identifier)} and of the tables beside it are compacted, and old "
        f"snapshots{' and rows' if spec.maintenance.keep_rows else ''} expire"
        f"{', and old files are moved' if spec.maintenance.tier else ''}, where it is needed; sensor "
        f"{of_cluster('kafka_maintenance', spec.cluster)} asks for it.",
        {"iceberg", "spark"},
        deps=[table_key(spec)],
        tags={MAINTENANCE_TAG: spec.cluster or ""},
    )
    check = dg.AssetCheckSpec(
        CHECK, asset=key, description="Warns if a table has gone far too long without the maintenance that it needs."
    )

    @dg.multi_asset(
        name=maintenance_op_name(spec),
        specs=[asset],
        check_specs=[check],
        can_subset=True,
        # A table whose rows change has one writer at a time; others don't hinder each other.
        pool=maintenance_pool(spec, topic),
        required_resource_keys={"catalog", "spark"},
    )
    def maintain_tables(context: dg.AssetExecutionContext, config: MaintenanceConfig) -> Iterator[Any]:
        resources: Any = context.resources
        with as_failures(), alive(context.instance, context.run_id):
            tables = _tables(resources.catalog, resources.spark, context.run_id)
            if context.selected_asset_keys:
                done = maintain(spec, tables, config.everything, lambda each: context.log.info(f"{sentence(each)}."))
                if not done:
                    context.log.info("No table needs anything.")
                yield dg.MaterializeResult(key, metadata=_metadata(spec, tables, done))
            yield _verdict(key, due(spec, tables), _leftovers(spec, tables))

    return maintain_tables


def _tables(catalog: CatalogResource, spark: SparkResource, run_id: str) -> Tables:
    return Tables(catalog.open(), lambda: spark.live_session(""), run_id)


def _metadata(spec: TopicTable, tables: Tables, done: Sequence[Maintained]) -> dict[str, Any]:
    found = {each.identifier: each.needs.health for each in due(spec, tables)}
    metadata: dict[str, Any] = {}
    if health := found.get(spec.identifier):
        metadata = {
            "data_files": health.data_files,
            "average_file_mib": round(health.average_size / _MIB, 2),
            "delete_files": health.delete_files,
            "deleted_rows": health.deleted_rows,
            "snapshots": health.snapshots,
        }
        if health.tiered_files:
            metadata |= {"tiered_files": health.tiered_files, "tiered_mib": round(health.tiered_size / _MIB, 1)}
    if done:
        lines = [_figures(each) for each in done]
        metadata["done"] = dg.MetadataValue.md(
            markdown_table(tuple(lines[0]), (tuple(each.values()) for each in lines))
        )
        for each in done:
            if each.identifier == spec.identifier:
                metadata |= _numbers(each)
        metadata["seconds"] = round(sum(each.seconds for each in done), 1)
    return metadata


def _figures(done: Maintained) -> dict[str, str]:
    """Return what was done to a table, by heading: before and after."""
    before, after = done.planning_before or Planning(0, 0), done.planning_after or Planning(0, 0)
    measured = before.seconds is not None and after.seconds is not None
    return {
        "table": code(".".join(done.identifier)),
        "data files": f"{done.before.data_files:,} → {done.after.data_files:,}",
        "delete files": f"{done.before.delete_files:,} → {done.after.delete_files:,}",
        "manifests": f"{before.manifests:,} → {after.manifests:,}",
        "planning": f"{before.seconds:.2f} → {after.seconds:.2f} s" if measured else "",
        "snapshots": f"{done.before.snapshots:,} → {done.after.snapshots:,}",
        "rows expired": "" if done.rows is None else f"{done.rows.rows:,}",
        "files moved": "" if done.moved is None else f"{done.moved.files:,}, {done.moved.size / _MIB:,.1f} MiB",
        "orphan files": "" if done.orphans is None else f"{done.orphans:,}",
        "seconds": f"{done.seconds:.1f}",
    }


def _numbers(done: Maintained) -> dict[str, Any]:
    """Return what Dagster plots over time of the topic's own table."""
    found: dict[str, Any] = {}
    if done.planning_after is not None:
        found["manifests"] = done.planning_after.manifests
        if done.planning_after.seconds is not None:
            found["planning_seconds"] = round(done.planning_after.seconds, 3)
    if done.moved is not None:
        found |= {"files_moved": done.moved.files, "mib_moved": round(done.moved.size / _MIB, 1)}
    if done.rows is not None:
        found["rows_expired"] = done.rows.rows
    return found


def health_check(spec: TopicTable, tables: Sequence[Due]) -> dg.AssetCheckEvaluation:
    """Return the result of the check `table_health`, for the sensor to report: a run of maintenance may never come."""
    result = _verdict(maintenance_key(spec), tables)
    return dg.AssetCheckEvaluation(
        asset_key=maintenance_key(spec),
        check_name=CHECK,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
    )


def _leftovers(spec: TopicTable, tables: Tables) -> dict[str, Any]:
    """Return what the check shows beside its verdict: manifests are read for it, so the sensor doesn't."""
    found = ((name, tables.catalog.table(name)) for name in spec.identifiers)
    counted = {name: dangling_deletes(table) for name, table in found if table is not None}
    lacking = {".".join(name) for name, number in counted.items() if number is None}
    told = {"delete_files_without_data_file": sum(filter(None, counted.values()))}
    return told | ({"delete_files_not_counted_of": ", ".join(sorted(lacking))} if lacking else {})


def _verdict(
    key: dg.AssetKey, tables: Sequence[Due], leftovers: Mapping[str, Any] = MappingProxyType({})
) -> dg.AssetCheckResult:
    held = [f"{each.name}: {text}" for each in tables if (text := each.needs.health.held_by)]
    problems = [f"{each.name}: {problem}" for each in tables if (problem := each.needs.overdue)]
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=CHECK,
        passed=not problems,
        severity=dg.AssetCheckSeverity.WARN,
        description=plain("; ".join(problems)) or None,
        metadata={**more, **({"old_files_held_by": "; ".join(held)} if held else {})},
    )
