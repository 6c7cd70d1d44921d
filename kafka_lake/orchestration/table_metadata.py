"""What Dagster's pages show of tables and runs."""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

import dagster as dg
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from kafka_lake.catalog.history import recorded_losses, schema_history
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import ancestors, has_origin, head_of, live_row_count, positions_in, summary_of
from kafka_lake.catalog.tables import sources_of
from kafka_lake.common.offsets import place
from kafka_lake.common.text import code, plain, printable, readable
from kafka_lake.common.text import table as markdown_table
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.formats.redaction import quoted
from kafka_lake.formats.task.error_classes import SAMPLE_CHARACTERS
from kafka_lake.ingest.report import Figures, PartitionReport, RunReport
from kafka_lake.orchestration.how_to_read import how_to_read_page
from kafka_lake.orchestration.keys import topic_key
from kafka_lake.orchestration.metadata import in_a_window, records, table_name
from kafka_lake.runtime.commit import moment
from kafka_lake.spec.topic_table import TopicTable

_ORIGIN = "The row's Kafka record: topic, partition, offset and time."


def about_table(table: Table, catalog: LakeCatalog, identifier: tuple[str, str]) -> dict[str, Any]:
    """Return the metadata of a table's page; nothing while it has no snapshot."""
    newest = table.current_snapshot()
    if newest is None:
        return {}
    return {
        "last_commit": dg.MetadataValue.timestamp(newest.timestamp_ms / 1000),
        **_totals(newest),
        # As text: snapshot ids are larger than what a browser's numbers hold.
        "snapshot_id": str(newest.snapshot_id),
        "dagster/row_count": live_row_count(table),
        "dagster/uri": table.location(),
        "how_to_read": dg.MetadataValue.md(how_to_read_page(catalog.name, identifier, catalog.properties)),
        "dagster/column_schema": dg.TableSchema(columns=[_column(field) for field in table.schema().fields]),
    }


def _totals(newest: Snapshot) -> dict[str, int]:
    """Return files and bytes of a table, as far as its newest snapshot has them."""
    summary = summary_of(newest)
    found = {"files_in_table": summary.get("total-data-files"), "bytes_in_table": summary.get("total-files-size")}
    return {name: int(text) for name, text in found.items() if text is not None}


def _column(field: NestedField) -> dg.TableColumn:
    return dg.TableColumn(
        field.name,
        readable(str(field.field_type)),
        description=plain(field.doc or "") or (_ORIGIN if has_origin(field.field_type) else None),
        constraints=dg.TableColumnConstraints(nullable=not field.required),
    )


_SNAPSHOTS = 20


def newest_rows(table: Table, columns: Sequence[str], most: int) -> list[dict[str, Any]]:
    """Return some of the rows that came last, those of newer snapshots first; of old snapshots, none are looked for."""
    rows: list[dict[str, Any]] = []
    schema = table.schema().select(*columns)
    for snapshot in islice(ancestors(table, head_of(table)), _SNAPSHOTS):
        for file in _added(table, snapshot.snapshot_id):
            if len(rows) >= most:
                return rows
            scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue(), limit=most - len(rows))
            rows += scan.to_table([FileScanTask(file)]).to_pylist()
    return rows


def _added(table: Table, snapshot_id: int) -> Iterator[DataFile]:
    """Give the data files that a snapshot has added."""
    snapshot = table.snapshot_by_id(snapshot_id)
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if manifest.added_snapshot_id != snapshot_id or manifest.content != ManifestContent.DATA:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot_id:
                yield entry.data_file


_LONGEST = 80


def quoted_cell(value: Any, spec: TopicTable) -> str:
    """Return a value as code, in which Markdown and HTML mean nothing; what the topic's masks find is hidden."""
    if value is None:
        return ""
    text = printable(quoted(str(value)[:SAMPLE_CHARACTERS], True, spec.mask))
    return code(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


_SHOWN_CHANGES = 20


_SHOWN_COMMITS = 100


def partition_metadata(report: PartitionReport, at: float | None = None) -> dict[str, Any]:
    """Return the metadata of one Kafka partition's materialization.

    Offsets are text: Dagster would draw numbers as a line over the partitions, which means nothing.

    Args:
        at: The time of the last commit that moved the partition's position, in seconds since 1970.
    """
    return {
        "start_offset": str(report.start),
        "end_offset": str(report.end),
        "lag_after": str(report.lag),
        "dagster/partition_row_count": report.rows,
        **({} if at is None else {"last_commit": dg.MetadataValue.timestamp(at)}),
    }


def _line(part: PartitionReport, has_topics: bool) -> dict[str, Any]:
    # Dagster's page cuts off what is on the right.
    topic = {"topic": part.topic} if has_topics else {}
    return {**topic, "partition": part.partition, "rows": part.rows, "lag": part.lag, "end": part.end}


def last_commits(table: Table | None) -> dict[tuple[str, int], float]:
    """Return when the newest snapshots last moved the position of each topic's partitions, in seconds since 1970."""
    snapshots = islice(ancestors(table, head_of(table)), _SHOWN_COMMITS) if table else ()
    commits = [(s.timestamp_ms / 1000, positions) for s in snapshots if (positions := positions_in(summary_of(s)))]
    found: dict[tuple[str, int], float] = {}
    for (at, positions), (_, before) in pairwise([*commits, (0.0, {})][:_SHOWN_COMMITS]):
        for topic, position in positions.items():
            known = before[topic].offsets if topic in before else {}
            moved = [p for p, offset in position.offsets.items() if offset != known.get(p, 0)]
            found = {(topic, p): at for p in moved} | found
    return found


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
    if figures.decoded_singly:
        # By values that no fast decoder takes as they are: see docs/formats.md.
        metadata["records_decoded_singly"] = figures.decoded_singly
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
    """Return what describes a table, and the partitions and dead letters of a report."""
    lags = report.lags()
    metadata: dict[str, Any] = {
        **table_name(spec.identifier),
        "lag": sum(lags.values()),
        "by_partition": records(_line(part, bool(spec.topics)) for part in report.partitions()),
        **({f"lag_of_{topic}": lag for topic, lag in lags.items()} if spec.topics else {}),
    }
    if classes := report.classes():
        lines = [
            (c.name, str(c.count), f"{place(c.topic, c.partition)} offset {c.offset}", code(c.message), code(c.value))
            for c in classes
        ]
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
    """Return which field of the topic's records feeds which column of its table."""
    sources, topics = sources_of(table), [topic_key(topic_spec) for topic_spec in spec.each_topic]
    fields = [f.name for f in table.schema().fields if f.name != METADATA_COLUMN]
    return dg.TableColumnLineage(
        {
            name: [dg.TableColumnDep(asset_key=topic, column_name=sources.get(name, name)) for topic in topics]
            for name in fields
        }
    )
