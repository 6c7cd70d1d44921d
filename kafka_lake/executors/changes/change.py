"""A change of a keyed row, as a record tells it: plain data."""

from dataclasses import dataclass

UPSERT, READ, DELETE, TRUNCATE, NOTHING = "upsert", "read", "delete", "truncate", "nothing"
"""What a change does: brings a row, brings one that a snapshot has read, takes one away, takes all away; or nothing."""


@dataclass(frozen=True)
class Change:
    """What a record says of a row.

    Args:
        row: The row as JSON text in UTF-8; of a delete, its key columns at least. None if the record doesn't tell.
        order: Where the change is in its source's order; None if only Kafka's offset tells.
        error_class: Why the record is no change; empty if it is one.
        error_message: What is wrong with it.
        at: When it was made, in milliseconds since the epoch; None if the record doesn't tell.
        snapshot: Of a row that a snapshot has read: which of them it is, as the envelope calls it; empty if unknown.
        source: The source's table that it is about, with all that its name has; empty if the envelope tells none.
        old: The row before an update that may have changed the row's key; it has the key columns at least. None if
            the key is the same as before.
        unavailable: Fields of the row whose values weren't sent, since they haven't changed.
        key: The record's key as a row, if the row lacks columns of it.
    """

    does: str
    row: bytes | None
    order: tuple[int, ...] | None
    error_class: str = ""
    error_message: str = ""
    at: int | None = None
    snapshot: str = ""
    source: str = ""
    old: bytes | None = None
    unavailable: tuple[str, ...] = ()
    key: bytes | None = None


def refused(error_class: str, message: str) -> Change:
    """Return what stands for a record that is no change."""
    # A name may be no text that can be written: JSON lets half a surrogate pair be told.
    return Change(
        does="",
        row=None,
        order=None,
        error_class=error_class,
        error_message=message.encode("utf-8", "backslashreplace").decode(),
    )
