"""How large records are at some offsets of a topic, as plain data. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Probe:
    """What was found at some offsets of a partition.

    Args:
        start: The first offset that was looked at.
        offsets: How many were looked at, at least one; those without a record count, with no bytes.
        bytes: Of the keys, values and headers of their records, uncompressed.
    """

    partition: int
    start: int
    offsets: int
    bytes: int
