"""The metrics with name, type, labels and meaning. Dashboards depend on names and labels."""

from dataclasses import dataclass
from typing import Literal

from kafka_lake.common.text import table

MAX_PARTITIONS = 1000
"""A topic with more partitions has one sample of its sum."""


@dataclass(frozen=True)
class Metric:
    """A metric of Prometheus. The label ``table`` is the topic's own table, unless its meaning says otherwise.

    Args:
        name: With its unit; of a counter, with ``_total``.
    """

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    help: str


def _gauge(name: str, labels: str, what: str) -> Metric:
    return Metric(f"kafka_lake_{name}", "gauge", tuple(labels.split()), what)


def _counter(name: str, labels: str, what: str) -> Metric:
    return Metric(f"kafka_lake_{name}_total", "counter", tuple(labels.split()), what)


SCRAPE_SUCCESS = _gauge(
    "scrape_success",
    "topic table part",
    "1 if the newest values of this part are there; 0 if the brokers or the catalog did not give them in time. Then "
    "the part's metrics are absent. Parts: brokers (ends), unread (time of the oldest unread record), table.",
)
SCRAPE_TIME = _gauge(
    "scrape_last_success_timestamp_seconds", "topic table part", "When the values of this part were last given."
)
COLLECTION_TIME = _gauge(
    "collection_last_success_timestamp_seconds", "", "When the last collection of all topics ended."
)
COLLECTION_SECONDS = _gauge("collection_duration_seconds", "", "How long that took.")
COLLECTION_INTERVAL = _gauge("collection_interval_seconds", "", "How long the process waits between two collections.")
TOPICS = _gauge("topics", "", "Topics with a table in the project, as the process read it when it started.")

LOG_START = _gauge("log_start_offset", "topic table partition", "Oldest offset that Kafka still has.")
LOG_END = _gauge("log_end_offset", "topic table partition", "Exclusive end: the offset that the next record gets.")
POSITION = _gauge("position_offset", "topic table partition", "Next offset that the table takes.")
LAG = _gauge("lag_records", "topic table partition", "Offsets that the table hasn't taken yet.")
LAG_SECONDS = _gauge(
    "lag_seconds", "topic table partition", "Age of the oldest record that the table hasn't taken yet; 0 if it has all."
)
PARTITIONS = _gauge("partitions", "topic table", "Kafka partitions of the topic.")

LAST_COMMIT = _gauge(
    "last_commit_timestamp_seconds",
    "topic table",
    "When a run last committed to the topic's table, rows or a position.",
)
COMMITS = _counter("commits", "topic table", "Commits by runs.")
REFUSED = _counter("refused_commits", "topic table", "Commits that another writer's refused, and that a run did again.")
RECORDS = _counter(
    "records_read", "topic table", "Records read from Kafka. Records that a replay reads again count again."
)
ROWS = _counter("rows_written", "topic table", "Records among them that became rows; in a keyed table, changes.")
DEAD_LETTERS = _counter("dead_letters", "topic table", "Records among them that became dead letters.")
TOMBSTONES = _counter("tombstones", "topic table", "Records among them without a value.")
MOVED = _counter("dead_letters_replayed", "topic table", "Dead letters that became rows by `kafka-lake replay`.")
EXPIRED = _counter("expired_rows", "topic table", "Rows that were deleted since they were older than `row_retention`.")
BYTES_READ = _counter("read_bytes", "topic table", "Keys, values and headers of the records read.")
STEP_SECONDS = _counter("step_seconds", "topic table step", "Time that the steps of commits took: plan, stage, audit.")
WAITING = _gauge("dead_letters_waiting", "topic table", "Rows of the dead-letter table now.")
LOST = _gauge(
    "lost_records",
    "topic table reason",
    "Offsets that were given up for lost: retention, skipped (by a reset). Absent where the number is unknown.",
)
LOSSES = _gauge(
    "losses",
    "topic table reason",
    "How often offsets were given up for lost: retention, truncated, replaced, partition gone, topic recreated, or "
    "skipped.",
)

# The label `table` is each of the topic's tables here: that with its rows, the dead letters, deletes.
TABLE_ROWS = _gauge("table_rows", "topic table", "Rows in the table's data files; deleted ones count until compaction.")
TABLE_DELETED_ROWS = _gauge("table_deleted_rows", "topic table", "Rows of them that are deleted.")
TABLE_DELETED_SHARE = _gauge("table_deleted_ratio", "topic table", "Share of them that is deleted, from 0 to 1.")
TABLE_FILES = _gauge("table_data_files", "topic table", "Data files.")
TABLE_DELETE_FILES = _gauge("table_delete_files", "topic table", "Files of position deletes or deletion vectors.")
TABLE_BYTES = _gauge("table_size_bytes", "topic table", "Size of all its files.")
TABLE_FILE_BYTES = _gauge("table_average_file_size_bytes", "topic table", "Average size of a file.")
TABLE_SNAPSHOTS = _gauge("table_snapshots", "topic table", "Snapshots in the table's metadata.")
TABLE_UNCOMPACTED = _gauge("table_commits_since_compaction", "topic table", "Commits since the last compaction.")
TABLE_OVERDUE = _gauge(
    "table_maintenance_overdue", "topic table", "1 if maintenance that should have been long ago hasn't been; else 0."
)
TABLE_TIME = _gauge(
    "table_last_commit_timestamp_seconds", "topic table", "When anybody last committed to the table, maintenance too."
)
TABLE_COMPACTED = _gauge(
    "table_last_compaction_timestamp_seconds",
    "topic table",
    "When the table was last compacted; absent if no snapshot has it.",
)

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def reference() -> str:
    """Return the metrics as a table in Markdown."""
    rows = (
        (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.help)
        for metric in METRICS
    )
    return table(("metric", "type", "labels", "meaning"), rows)
