"""Size, time and digest of records. The digest identifies a log. Pure.

A cluster restored from a backup has its old ids and leader epochs, and gives offsets that were used before to other
records. Only the records themselves show it: so a position remembers the last record before it.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DIGEST_LENGTH = 11

LAST_MS = 253_402_300_799_999
"""The end of the year 9999, the last that every reader of a table holds, in milliseconds since the epoch."""


@dataclass(frozen=True)
class LastRecord:
    """The last record before a position that a reader sees; markers and aborted or compacted records are passed over.

    Args:
        digest: The first 8 bytes of the SHA-256 of offset, timestamp, key and value, as base64url without padding.
    """

    offset: int
    digest: str


@dataclass(frozen=True)
class Probe:
    """How large the records at some offsets of a partition are.

    Args:
        start: The first offset that was looked at.
        offsets: How many were looked at, at least one; those without a record count, with no bytes.
        bytes: Of the keys, values and headers of their records, uncompressed.
    """

    partition: int
    start: int
    offsets: int
    bytes: int


def last_record(offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> LastRecord:
    """Return what is remembered of a record; a key or value of None differs from an empty one."""
    sizes = [None if part is None else len(part) for part in (key, value)]
    digest = hashlib.sha256(repr((offset, timestamp_ms, *sizes)).encode())
    digest.update(key or b"")
    digest.update(value or b"")
    return LastRecord(offset, base64.urlsafe_b64encode(digest.digest()[:8]).decode()[:DIGEST_LENGTH])


def differs_at(
    remembered: LastRecord, position: int, seen: Sequence[LastRecord], is_complete: bool = True
) -> int | None:
    """Return the offset of a record that the log didn't have when the position was written; None if there is none.

    >>> old, new = last_record(8, 0, None, b"old"), last_record(8, 0, None, b"new")
    >>> [differs_at(old, 10, seen) for seen in ([old], [new], [], [old, last_record(9, 0, None, b"more")])]
    [None, 8, None, 9]
    """
    for record in seen:
        if record.offset == remembered.offset and record.digest != remembered.digest:
            return record.offset
        if is_complete and remembered.offset < record.offset < position:
            return record.offset
    return None


def to_text(offsets: Mapping[int, int], last: Mapping[int, LastRecord]) -> str:
    """Return the last records before some offsets as compact text; empty if there are none.

    It has an entry for each partition in ascending order: the digest, then how many offsets lie between record and
    position if any do. The entry of a partition without a record is empty.

    >>> to_text({0: 5, 2: 9, 3: 1}, {0: LastRecord(4, "a" * 11), 2: LastRecord(7, "b" * 11)})
    'aaaaaaaaaaa,bbbbbbbbbbb1,'
    """
    entries = [_entry(offsets[partition], last.get(partition)) for partition in sorted(offsets)]
    return ",".join(entries) if any(entries) else ""


def _entry(offset: int, last: LastRecord | None) -> str:
    # A position that was moved back has not read it.
    if last is None or last.offset >= offset:
        return ""
    return f"{last.digest}{offset - 1 - last.offset or ''}"


def from_text(offsets: Mapping[int, int], text: str) -> dict[int, LastRecord]:
    """Parse what `to_text` wrote for the same offsets; raises ValueError if the text is something else.

    >>> from_text({0: 5, 2: 9}, "aaaaaaaaaaa,bbbbbbbbbbb1")[2]
    LastRecord(offset=7, digest='bbbbbbbbbbb')
    """
    if not text:
        return {}
    entries = dict(zip(sorted(offsets), text.split(","), strict=True))
    if any(0 < len(entry) < DIGEST_LENGTH for entry in entries.values()):
        raise ValueError(f"no last records: {text!r}")
    return {
        partition: LastRecord(offsets[partition] - 1 - int(entry[DIGEST_LENGTH:] or 0), entry[:DIGEST_LENGTH])
        for partition, entry in entries.items()
        if entry
    }


def is_time(milliseconds: int) -> bool:
    """Return whether a Kafka timestamp is a time of the years 1970 to 9999: producers may write any 64-bit number.

    >>> is_time(1_767_323_045_123), is_time(1_767_323_045_123_000_000), is_time(-1)
    (True, False, False)
    """
    return 0 <= milliseconds <= LAST_MS


def without_time(count: int) -> str:
    """Return the sentence about records whose Kafka timestamp is null in a table.

    >>> without_time(1)
    '1 record has no Kafka timestamp, or one outside of the years 1970 to 9999: it is null in the table'
    """
    have = "1 record has" if count == 1 else f"{count:,} records have"
    return f"{have} no Kafka timestamp, or one outside of the years 1970 to 9999: it is null in the table"
