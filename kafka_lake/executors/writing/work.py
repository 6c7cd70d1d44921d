"""What a task that writes must know."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_lake.executors.writing.refused import Places
from kafka_lake.executors.writing.rules import RuleTest


@dataclass(frozen=True)
class Work:
    """What a task must know.

    Args:
        metadata: The table's metadata as JSON; snapshots may be left out.
        io: Properties of the file system, credentials among them; not shown in its repr.
        decoding: What `decoder_of` makes a decoder of.
        topic: The topic's name, for the metadata column.
        topic_id: Its id; None if the brokers have none to tell.
        metadata_column: Struct that says where a row came from; None for none.
        withheld: Whether large records come without what makes them large; they are left out then.
        refused: Records that become no row although they decode.
        reasons: Why not: error classes and messages.
        tests: The table's rules of single rows.
        group_bytes: Bytes of Arrow columns that become one row group, where the table has no partitions.
        file_bytes: Bytes of them that become one data file; for each of the table's partitions in them, if it has any.
    """

    metadata: str
    io: Mapping[str, str] = field(repr=False)
    decoding: Mapping[str, Any]
    topic: str
    topic_id: str | None
    metadata_column: str | None
    withheld: bool = False
    refused: Places = field(default_factory=dict)
    reasons: tuple[tuple[str, str], ...] = ()
    tests: tuple[RuleTest, ...] = ()
    group_bytes: int = 32 << 20
    file_bytes: int = 512 << 20
