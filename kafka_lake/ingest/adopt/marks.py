"""What other writers note in snapshots and control topics: Kafka Connect's Iceberg sink, Structured Streaming."""

import json
from collections.abc import Iterable, Mapping
from uuid import UUID

from pyiceberg.table import Table

from kafka_lake.errors import TableError
from kafka_lake.kafka.sample import Record
from kafka_lake.lake.positions import ancestors, head_of, summary_of

_SINK = "kafka.connect.offsets."
_QUERY = "spark.sql.streaming.queryId"


def control_offsets(table: Table, groups: Iterable[str]) -> tuple[str, str, dict[int, int]] | None:
    """Return up to where a sink's control topic is in ``main``, by its snapshots' ``kafka.connect.offsets.…``.

    A coordinator that has restarted notes only the partitions that gave it something since. So all of the history
    counts, and of each partition what is farthest.

    Args:
        groups: Consumer groups that the connector may have.

    Returns:
        The control topic, the group, and the offsets; None if no snapshot has any of these groups.

    Raises:
        TableError: If the offsets can't be read.
    """
    found: dict[int, int] = {}
    known: tuple[str, str] | None = None
    for snapshot in ancestors(table, head_of(table)):
        for key, text in summary_of(snapshot).items():
            named = next(((key, each) for each in groups if key.startswith(_SINK) and key.endswith(f".{each}")), None)
            if named is None or (known is not None and _split(*named) != known):
                continue
            known = _split(*named)
            for partition, offset in _numbers(table, key, text).items():
                found[partition] = max(offset, found.get(partition, 0))
    return None if known is None else (*known, found)


def sinks_of(table: Table) -> list[str]:
    """Return what ``kafka.connect.offsets.…`` the snapshots of any branch have, without that beginning."""
    keys = {key for each in table.metadata.snapshots for key in summary_of(each) if key.startswith(_SINK)}
    return sorted(key.removeprefix(_SINK) for key in keys)


def filled_by(table: Table) -> str | None:
    """Return who has filled a table from a topic, as far as ``main``'s history tells; None if nobody is named."""
    for snapshot in ancestors(table, head_of(table)):
        summary = summary_of(snapshot)
        sink = next((key for key in summary if key.startswith(_SINK)), None)
        if sink is not None:
            return f"the Iceberg sink of Kafka Connect ({sink})"
        if _QUERY in summary:
            return f"the Structured Streaming query {summary[_QUERY]}"
    return None


def _split(key: str, group: str) -> tuple[str, str]:
    return key.removeprefix(_SINK).removesuffix(f".{group}"), group


def _numbers(table: Table, key: str, text: str) -> Mapping[int, int]:
    try:
        return {int(p): int(o) for p, o in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise TableError(
            f"Table {'.'.join(table.name())}: the snapshot property {key} holds no offsets.",
            "Nothing was changed. Name the offsets with --from-offsets.",
        ) from error


_WITHOUT_FILES = (b"StartCommit", b"DataComplete", b"CommitToTable", b"CommitComplete")
_FILES = b"DataWritten"


def first_uncommitted(events: Iterable[Record], table: str, uuid: UUID) -> Record | None:
    """Return the first event that may announce files of a table; None if the sink has finished.

    A task of the sink announces its files on the control topic and commits its offsets to the connector's group in one
    Kafka transaction. The coordinator commits the files to the table later, and notes in the snapshot up to which
    offset of the control topic it has read: meanwhile the group is ahead of the table.

    Each event has the schema of its payload in it, and so the payload's name; an announcement has the name and the id
    of its table. An event that isn't understood may announce anything.

    Args:
        events: What the control topic holds beyond what the table's snapshots name.
        table: The table's name without its namespace.
    """
    return next((event for event in events if _may_announce(event.value or b"", table.encode(), uuid.bytes)), None)


def _may_announce(event: bytes, table: bytes, uuid: bytes) -> bool:
    if _FILES in event:
        return table in event or uuid in event
    return not any(payload in event for payload in _WITHOUT_FILES)
