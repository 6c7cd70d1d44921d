"""What a run's report looks like on Dagster's pages."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import dagster as dg
from pyiceberg.table import Table

from kafka_lake.common.markdown import code, plain
from kafka_lake.common.markdown import table as markdown_table
from kafka_lake.components.keys import topic_key
from kafka_lake.components.rule_checks import share_metadata
from kafka_lake.components.table_page import about_table, in_a_window
from kafka_lake.ingest.commit import moment
from kafka_lake.ingest.finding import Finding
from kafka_lake.ingest.report import Figures, PartitionReport, RunReport
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.history import schema_history
from kafka_lake.lake.losses import recorded_losses
from kafka_lake.lake.tables.schema_update import sources_of

_SHOWN_CHANGES = 20


def check_result(
    finding: Finding, asset_key: dg.AssetKey, more: Mapping[str, Any] | None = None
) -> dg.AssetCheckResult:
    """Return a gate's finding as an asset check result: what, where and how many.

    Args:
        more: Metadata of the result beside the finding's facts.
    """
    metadata: dict[str, Any] = {key: _plain(value) for key, value in finding.facts.items()}
    metadata |= {**share_metadata(finding), **(more or {})}
    if finding.changes:
        # Notes about a commit that was refused have neither time nor snapshot; a table has the same columns throughout.
        lines = [{"when": "", **asdict(note)} for note in finding.changes]
        metadata["changes"] = dg.MetadataValue.table([dg.TableRecord({"snapshot": "", **line}) for line in lines])
    return dg.AssetCheckResult(
        asset_key=asset_key,
        check_name=finding.check,
        passed=finding.passed,
        severity=dg.AssetCheckSeverity.WARN if finding.warns else dg.AssetCheckSeverity.ERROR,
        description=plain("; ".join(finding.problems)) or None,
        metadata=metadata,
    )


def partition_metadata(report: PartitionReport) -> dict[str, int]:
    """Return the metadata of one Kafka partition's materialization."""
    return {
        "start_offset": report.start,
        "end_offset": report.end,
        "rows_added": report.rows,
        "lag_after": report.lag,
    }


def figures_metadata(figures: Figures) -> dict[str, Any]:
    """Return the figures of a run, or of a part of it, as Dagster plots them."""
    metadata: dict[str, Any] = {
        "rows_added": figures.rows,
        "records_read": figures.records,
        "bytes_read": figures.bytes_read,
        "dead_letters": figures.dead_letters,
        "tombstones": figures.tombstones,
        # Aborted transactions, transaction markers, and what compaction removed.
        "invisible_offsets": figures.invisible,
        "commits": figures.commits,
        "files_added": figures.files,
        "bytes_added": figures.size,
        "duration_seconds": round(figures.seconds, 3),
        "records_per_second": round(figures.records / max(figures.seconds, 1e-9)),
    }
    if figures.untimed:
        metadata["records_without_timestamp"] = figures.untimed
    if ages := figures.waited:
        metadata |= {
            "age_of_oldest_record_seconds": round(ages.oldest, 3),
            "age_of_newest_record_seconds": round(ages.newest, 3),
        }
    return metadata


def history_metadata(table: Table | None) -> dict[str, dict[str, Any]]:
    """Return, by check, what earlier runs found that should stay in sight: changes of the schema, and losses."""
    found: dict[str, dict[str, Any]] = {}
    if table and (changes := schema_changes(table)):
        found["schema_evolution"] = {"schema_changes": dg.MetadataValue.table(changes)}
    if table and (losses := recorded_losses(table)):
        lines = [f"- {plain(str(loss))}" for loss in losses[:_SHOWN_CHANGES]]
        found["data_loss"] = {"recorded_losses": len(losses), "losses": dg.MetadataValue.md("\n".join(lines))}
    return found


def table_metadata(report: RunReport, table: Table | None, catalog: LakeCatalog, spec: TopicTable) -> dict[str, Any]:
    """Return what describes a table, and the dead letters of a report.

    Args:
        table: The table as it is now; None if there is none.
    """
    lags = report.lags()
    metadata: dict[str, Any] = {
        "dagster/table_name": f"{catalog.name}.{report.table}",
        "lag": sum(lags.values()),
        **({f"lag_of_{topic}": each for topic, each in lags.items()} if spec.topics else {}),
    }
    if classes := report.classes():
        lines = [(c.name, str(c.count), c.place, code(c.message), code(c.value)) for c in classes]
        head = ("class", "records", "sample", "reason", "value")
        metadata["dead_letter_classes"] = in_a_window(markdown_table(head, lines))
    if table and table.current_snapshot():
        metadata |= about_table(table, catalog, spec.identifier)
        if changes := schema_changes(table):
            metadata["schema_changes"] = dg.MetadataValue.table(changes)
        if spec.transform is None:
            metadata["dagster/column_lineage"] = column_lineage(spec, table)
    return metadata


def schema_changes(table: Table) -> list[dg.TableRecord]:
    """Return the newest changes of a table's schema since it was made, the newest first, as a run's page shows them."""
    lines = [
        {
            "when": moment(version.committed_at),
            "column": change.column,
            "what": change.kind,
            "before": change.before,
            "after": change.after,
            "snapshot": str(version.snapshot_id or ""),
        }
        for version in reversed(schema_history(table)[1:])
        for change in version.changes
    ]
    return [dg.TableRecord(line) for line in lines[:_SHOWN_CHANGES]]


def column_lineage(spec: TopicTable, table: Table) -> dg.TableColumnLineage:
    """Return which field of the topic's records feeds which column of its table.

    Args:
        spec: A topic without a transform: what a transform does to columns, nobody can tell.
        table: Its table, which remembers the fields whose names are no column's.
    """
    sources, topics = sources_of(table), [topic_key(each) for each in spec.each_topic]
    fields = [f.name for f in table.schema().fields if f.name != spec.metadata_column]
    return dg.TableColumnLineage(
        {
            name: [dg.TableColumnDep(asset_key=topic, column_name=sources.get(name, name)) for topic in topics]
            for name in fields
        }
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else str(value)
