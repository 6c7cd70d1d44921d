"""Some rows of a run's newest commit, as the table's page in Dagster shows them where the topic's settings say so."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import dagster as dg
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table

from kafka_lake.common.markdown import code
from kafka_lake.common.markdown import table as markdown_table
from kafka_lake.common.printable import printable
from kafka_lake.components.table_page import in_a_window
from kafka_lake.executors.writing.report import SAMPLE_CHARACTERS
from kafka_lake.ingest.samples import quoted
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import ancestors, head_of

_LONGEST, _MOST_COLUMNS = 80, 20
_SNAPSHOTS = 20


def sample_rows(spec: TopicTable, table: Table, snapshots: Iterable[int]) -> dg.MetadataValue | None:
    """Return the first rows of the newest file that a run has added.

    Args:
        spec: The topic; its masks hide what they find.
        table: Its table as it is now.
        snapshots: Ids of the run's snapshots, the newest first.

    Returns:
        A table in Markdown, without the metadata column; None if the settings ask for none, or nothing was added.
    """
    if not (spec.samples and spec.sample_rows):
        return None
    file = next((found for each in snapshots for found in _added(table, each)), None)
    if file is None:
        return None
    schema = table.schema()
    fields = [field for field in schema.fields if field.name != spec.metadata_column]
    shown = fields[:_MOST_COLUMNS]
    if not shown:
        return None
    scan = ArrowScan(
        table.metadata, table.io, schema.select(*[f.name for f in shown]), AlwaysTrue(), limit=spec.sample_rows
    )
    rows = scan.to_table([FileScanTask(file)]).to_pylist()
    cells = [[quoted_cell(row[field.name], spec) for field in shown] for row in rows]
    told = markdown_table([code(field.name) for field in shown], cells)
    more = len(fields) - len(shown)
    return in_a_window(f"{told}\n\n… and {more} more columns." if more else told)


def newest_rows(table: Table, columns: Sequence[str], most: int) -> list[dict[str, Any]]:
    """Return some of the rows that came last, those of newer snapshots first; of old snapshots, none are looked for.

    Args:
        table: A table that is appended to.
        most: How many rows at most.
    """
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


def quoted_cell(value: Any, spec: TopicTable) -> str:
    """Return a value as code, in which Markdown and HTML mean nothing; what the topic's masks find is hidden."""
    if value is None:
        return ""
    text = printable(quoted(str(value)[:SAMPLE_CHARACTERS], True, spec.mask))
    return code(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
