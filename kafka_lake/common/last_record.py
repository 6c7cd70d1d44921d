"""The last record before a position, by which a log is recognised that was replaced by an older copy. Pure.

A cluster restored from a backup has its old ids and leader epochs, and gives offsets that were used before to other
records. Only the records themselves tell.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DIGEST_LENGTH = 11


@dataclass(frozen=True)
class LastRecord:
    """The last record before a position that a reader sees; markers and aborted or compacted records are passed over.

    Args:
        digest: The first 8 bytes of the SHA-256 of offset, timestamp, key and value, as base64url without padding.
    """

    offset: int
    digest: str


def last_record(offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> LastRecord:
    """Return what is remembered of a record.

    Args:
        timestamp_ms: Milliseconds since the epoch; -1 if it has no time.
        key: Its key; None differs from an empty one.
        value: Its value; None differs from an empty one.
    """
    sizes = [None if each is None else len(each) for each in (key, value)]
    digest = hashlib.sha256(repr((offset, timestamp_ms, *sizes)).encode())
    digest.update(key or b"")
    digest.update(value or b"")
    return LastRecord(offset, base64.urlsafe_b64encode(digest.digest()[:8]).decode()[:DIGEST_LENGTH])


def differs_at(
    remembered: LastRecord, position: int, seen: Sequence[LastRecord], is_complete: bool = True
) -> int | None:
    """Return the offset of a record that a log had not when the table's position was written; None if there is none.

    Args:
        remembered: The last record before the position.
        position: The next offset of the table.
        seen: The records that a reader sees now from that record's offset on, ascending.
        is_complete: Whether all records between the two were seen when the position was written. A reader of committed
            records sees none there: one that is there now is another log's.

    >>> old, new = last_record(8, 0, None, b"old"), last_record(8, 0, None, b"new")
    >>> [differs_at(old, 10, seen) for seen in ([old], [new], [], [old, last_record(9, 0, None, b"more")])]
    [None, 8, None, 9]
    """
    for each in seen:
        if each.offset == remembered.offset and each.digest != remembered.digest:
            return each.offset
        if is_complete and remembered.offset < each.offset < position:
            return each.offset
    return None


def to_text(offsets: Mapping[int, int], last: Mapping[int, LastRecord]) -> str:
    """Return the compact text of the last records before some offsets; empty if there are none.

    It has an entry for each partition in ascending order: the digest, then how many offsets lie between record and
    position if any do. The entry of a partition without a record is empty.

    >>> to_text({0: 5, 2: 9, 3: 1}, {0: LastRecord(4, "a" * 11), 2: LastRecord(7, "b" * 11)})
    'aaaaaaaaaaa,bbbbbbbbbbb1,'
    """
    entries = [_entry(offsets[p], last.get(p)) for p in sorted(offsets)]
    return ",".join(entries) if any(entries) else ""


def _entry(offset: int, last: LastRecord | None) -> str:
    # A position that was moved back has not read it.
    if last is None or last.offset >= offset:
        return ""
    between = offset - 1 - last.offset
    return f"{last.digest}{between or ''}"


def from_text(offsets: Mapping[int, int], text: str) -> dict[int, LastRecord]:
    """Parse what `to_text` wrote for the same offsets.

    Raises:
        ValueError: If the text is not such a text.

    >>> from_text({0: 5, 2: 9}, "aaaaaaaaaaa,bbbbbbbbbbb1")[2]
    LastRecord(offset=7, digest='bbbbbbbbbbb')
    """
    if not text:
        return {}
    entries = dict(zip(sorted(offsets), text.split(","), strict=True))
    if any(0 < len(entry) < DIGEST_LENGTH for entry in entries.values()):
        raise ValueError(f"no last records: {text!r}")
    return {
        p: LastRecord(offsets[p] - 1 - int(entry[DIGEST_LENGTH:] or 0), entry[:DIGEST_LENGTH])
        for p, entry in entries.items()
        if entry
    }
