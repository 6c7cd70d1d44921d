"""The metrics with name, type, labels and meaning. Dashboards depend on names and labels."""

from dataclasses import dataclass
from typing import Literal

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
    "1 if the part's values are current. 0 if the brokers or the catalog didn't return them in time; the part's "
    "metrics are then absent. Parts: `brokers` (offsets), `unread` (oldest unread record), `table`.",
)
SCRAPE_TIME = _gauge("scrape_last_success_timestamp_seconds", "topic table part", "Time of the part's last success.")
COLLECTION_TIME = _gauge("collection_last_success_timestamp_seconds", "", "End of the last collection of all topics.")
COLLECTION_SECONDS = _gauge("collection_duration_seconds", "", "Duration of the last collection.")
COLLECTION_INTERVAL = _gauge("collection_interval_seconds", "", "Pause between two collections.")
TOPICS = _gauge("topics", "", "Topics of the project when the process started.")

LOG_START = _gauge("log_start_offset", "topic table partition", "Oldest offset in Kafka.")
LOG_END = _gauge("log_end_offset", "topic table partition", "Offset of the next record.")
POSITION = _gauge("position_offset", "topic table partition", "Next offset to read into the table.")
LAG = _gauge("lag_records", "topic table partition", "Unread offsets.")
LAG_SECONDS = _gauge("lag_seconds", "topic table partition", "Age of the oldest unread record; 0 if there is none.")
PARTITIONS = _gauge("partitions", "topic table", "Kafka partitions.")

LAST_COMMIT = _gauge(
    "last_commit_timestamp_seconds",
    "topic table",
    "Time of the last commit of a run.",
)
COMMITS = _counter("commits", "topic table", "Commits of runs.")
REFUSED = _counter(
    "refused_commits", "topic table", "Commits that were refused because of another writer, and repeated."
)
RECORDS = _counter("records_read", "topic table", "Records read from Kafka, including those that a replay reads again.")
ROWS = _counter("rows_written", "topic table", "Records that became rows; in an upsert or history table, changes.")
DEAD_LETTERS = _counter("dead_letters", "topic table", "Records that became dead letters.")
TOMBSTONES = _counter("tombstones", "topic table", "Records without a value.")
MOVED = _counter("dead_letters_replayed", "topic table", "Dead letters that a replay moved into the table.")
EXPIRED = _counter("expired_rows", "topic table", "Rows deleted by `row_retention`.")
BYTES_READ = _counter("read_bytes", "topic table", "Bytes of keys, values and headers read.")
STEP_SECONDS = _counter("step_seconds", "topic table step", "Duration of the steps `plan`, `stage` and `audit`.")
WAITING = _gauge("dead_letters_waiting", "topic table", "Rows of the dead-letter table.")
LOST = _gauge(
    "lost_records",
    "topic table reason",
    "Offsets recorded as lost (`retention`) or skipped by a reset (`skipped`). Absent if the number is unknown.",
)
LOSSES = _gauge(
    "losses",
    "topic table reason",
    "Number of losses: `retention`, `truncated`, `replaced`, `partition gone`, `topic recreated` or `skipped`.",
)

# The label `table` is each of the topic's tables here: that with its rows, the dead letters, deletes.
TABLE_ROWS = _gauge("table_rows", "topic table", "Rows in the data files; deleted rows count until compaction.")
TABLE_DELETED_ROWS = _gauge("table_deleted_rows", "topic table", "Deleted rows in the data files.")
TABLE_DELETED_SHARE = _gauge("table_deleted_ratio", "topic table", "Share of deleted rows, from 0 to 1.")
TABLE_FILES = _gauge("table_data_files", "topic table", "Data files.")
TABLE_DELETE_FILES = _gauge("table_delete_files", "topic table", "Position-delete files and deletion vectors.")
TABLE_BYTES = _gauge("table_size_bytes", "topic table", "Size of all files.")
TABLE_FILE_BYTES = _gauge("table_average_file_size_bytes", "topic table", "Average size of a data file.")
TABLE_SNAPSHOTS = _gauge("table_snapshots", "topic table", "Snapshots.")
TABLE_UNCOMPACTED = _gauge("table_commits_since_compaction", "topic table", "Commits since the last compaction.")
TABLE_OVERDUE = _gauge("table_maintenance_overdue", "topic table", "1 if maintenance is long overdue, else 0.")
TABLE_TIME = _gauge(
    "table_last_commit_timestamp_seconds",
    "topic table",
    "Time of the last commit of any writer, including maintenance.",
)
TABLE_COMPACTED = _gauge(
    "table_last_compaction_timestamp_seconds",
    "topic table",
    "Time of the last compaction; absent if no snapshot shows one.",
)

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def reference() -> str:
    """Return the metrics as lists in Markdown, a list for each combination of labels."""
    lists = []
    for labels in dict.fromkeys(metric.labels for metric in METRICS):
        head = "Labels " + ", ".join(f"`{label}`" for label in labels) if labels else "Without labels"
        items = [f"- `{metric.name}`: {metric.help}" for metric in METRICS if metric.labels == labels]
        lists.append("\n".join([f"{head}:", "", *items]))
    return "\n\n".join(lists)
