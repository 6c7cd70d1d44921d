"""Which of Kafka's timestamps are times: producers may write any 64-bit number, and -1 where a record has none."""

LAST_MS = 253_402_300_799_999
"""The end of the year 9999, the last that every reader of a table holds."""


def is_time(milliseconds: int) -> bool:
    """Return whether a Kafka timestamp is a time of the years 1970 to 9999.

    Args:
        milliseconds: Since the epoch, as the record has it.

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
