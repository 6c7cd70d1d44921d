"""Who has made a snapshot, and what for: told in its summary by us, and read from it for whoever asks."""

import getpass
import os
import socket
from collections.abc import Iterable
from functools import cache

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.lake.positions import RUN_ID

KIND = "kafka-lake.kind"
"""What a commit is for, as `Plan.kind` has it."""
OFFSETS = "kafka-lake.offsets"
"""The offsets of a commit that leaves the position where it is: ``0:5-9,1:0-3``, both ends inclusive."""
REMOVES = "kafka-lake.removes"
"""The snapshot that takes away the rows that a commit replaces: it can't always tell that itself."""
KEEPS = "kafka-lake.keeps"
"""The snapshot behind which another one puts back the rows that it took away and that Kafka no longer has."""
HOST = "kafka-lake.host"
USER = "kafka-lake.user"
AUTHOR = (RUN_ID, KIND, HOST, USER)
RECONCILE = "reconcile"
"""The kind of a commit that makes a dead-letter table fit its topic's table."""
EXPIRE_ROWS = "expire_rows"
"""The kind of a commit that deletes rows since they are old."""


def removes_mark(snapshot: int | None) -> dict[str, str]:
    """Return what the summary of a snapshot that brings rows tells of one before it that deletes some for its sake.

    Args:
        snapshot: The one that deletes; None if there is none.
    """
    return {} if snapshot is None else {REMOVES: str(snapshot)}


def author_summary(run_id: str, kind: str, ranges: Iterable[OffsetRange] = ()) -> dict[str, str]:
    """Return what a snapshot's summary tells of who makes it: run, host and user, and what the commit is for.

    Args:
        kind: What the commit is for, as `Plan.kind` has it.
        ranges: The offsets that it replaces; none where the position tells them.
    """
    told = ",".join(f"{each.partition}:{each.start}-{each.end - 1}" for each in ranges if len(each))
    return {RUN_ID: run_id, KIND: kind, HOST: _host(), USER: _user()} | ({OFFSETS: told} if told else {})


def offsets_of(text: str) -> list[OffsetRange]:
    """Parse what `author_summary` has written of offsets.

    Raises:
        ValueError: If the text is nothing of the kind.

    >>> offsets_of("0:5-9,1:0-3")
    [OffsetRange(partition=0, start=5, end=10), OffsetRange(partition=1, start=0, end=4)]
    """
    found = []
    for each in filter(None, text.split(",")):
        partition, _, extent = each.partition(":")
        first, _, last = extent.partition("-")
        found.append(OffsetRange(int(partition), int(first), int(last) + 1))
    return found


@cache
def _host() -> str:
    return socket.gethostname()


@cache
def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        # A container's user needn't be in any list of users.
        return str(os.getuid()) if hasattr(os, "getuid") else ""
