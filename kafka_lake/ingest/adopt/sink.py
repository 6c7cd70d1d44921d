"""Whether the Iceberg sink for Kafka Connect has left files of a table without their commit.

A task writes data files, announces them on the control topic, and commits its offsets to the connector's consumer
group, all in one Kafka transaction. The coordinator commits the files to the table later, and notes in the snapshot up
to which offset of the control topic it has read. So the group is ahead of the table while announced files wait.
Source: ``org.apache.iceberg.connect`` of Apache Iceberg 1.12.
"""

from collections.abc import Iterable
from uuid import UUID

from kafka_lake.kafka.sample import Record

_WITHOUT_FILES = (b"StartCommit", b"DataComplete", b"CommitToTable", b"CommitComplete")
_FILES = b"DataWritten"


def first_uncommitted(events: Iterable[Record], table: str, uuid: UUID) -> Record | None:
    """Return the first event that may announce files of a table; None if the sink has finished.

    Each event has the schema of its payload in it, and so the payload's name; an announcement has the name and the id
    of its table. An event that isn't understood may announce anything.

    Args:
        events: What the control topic holds beyond what the table's snapshots name.
        table: The table's name without its namespace.
        uuid: The table's id.
    """
    return next((event for event in events if _may_announce(event.value or b"", table.encode(), uuid.bytes)), None)


def _may_announce(event: bytes, table: bytes, uuid: bytes) -> bool:
    if _FILES in event:
        return table in event or uuid in event
    return not any(payload in event for payload in _WITHOUT_FILES)
