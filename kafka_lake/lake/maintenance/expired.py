"""What a table tells of the rows that expired from it last: a property, so that it outlives snapshots. Pure."""

import json
from dataclasses import dataclass, field

from pyiceberg.table import Table

from kafka_lake.common.offsets import Positions, positions_from_json, positions_to_json
from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake.lake.positions import ancestors, head_of

EXPIRED = "kafka-lake.expired-rows"
_SHARE, _LONGEST_MS, _SHORTEST_MS = 0.1, 86_400_000, 60_000


@dataclass(frozen=True)
class Expired:
    """The last expiry of rows.

    Args:
        before_ms: Rows whose time was before this moment are gone; milliseconds since 1970.
        by: The column that told their time.
        sequence: Sequence number of the snapshot; 0 in a table of format version 1.
        positions: The table's, which its rows may not prove any more.
    """

    before_ms: int
    by: str
    sequence: int = 0
    positions: Positions = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the text that the property has."""
        told = {"before": self.before_ms, "by": self.by, "sequence": self.sequence}
        return json.dumps(told | ({"positions": positions_to_json(self.positions.values())} if self.positions else {}))


def expired_of(table: Table) -> Expired | None:
    """Return what a table tells of its last expiry of rows; None if there was none, or the text can't be read."""
    try:
        told = json.loads(table.properties.get(EXPIRED, "null"))
        if told is None:
            return None
        positions = positions_from_json(told["positions"]) if "positions" in told else {}
        return Expired(int(told["before"]), str(told["by"]), int(told["sequence"]), positions)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def proven_positions(table: Table) -> Positions:
    """Return the positions that a table had when rows expired from it; none if ``main`` may not follow that commit.

    They count where no snapshot has a position: other programs have expired them all. If the history that is left has
    an older snapshot, that commit was rolled back.
    """
    found = expired_of(table)
    if found is None or not found.sequence:
        return {}
    history = [each.sequence_number or 0 for each in ancestors(table, head_of(table))]
    follows = found.sequence in history or (bool(history) and min(history) > found.sequence)
    return found.positions if follows else {}


def limit_ms(policy: Maintenance, now_ms: int) -> int | None:
    """Return the moment before which rows expire, in milliseconds since 1970; None if none do.

    Raises:
        ConfigurationError: If `keep_rows` is no duration.
    """
    age = policy.keep_rows_seconds
    # Nothing is before the year 1.
    return None if age is None else max(now_ms - int(age * 1000), -62_135_596_800_000)


def why_expire(table: Table, policy: Maintenance, now_ms: int, by: str) -> str:
    """Return why rows of a table shall expire; empty if they needn't yet.

    That is a question of time alone, so that a sensor can ask it: which rows are old, only files tell.

    Args:
        now_ms: The time, in milliseconds since 1970.
        by: The column that tells how old a row is.

    Raises:
        ConfigurationError: If `keep_rows` is no duration.
    """
    limit, last = limit_ms(policy, now_ms), expired_of(table)
    if limit is None or head_of(table) is None:
        return ""
    pause = min(_LONGEST_MS, max(_SHORTEST_MS, (now_ms - limit) * _SHARE))
    if last is not None and last.by == by and limit - last.before_ms < pause:
        return ""
    return f"rows older than {policy.keep_rows}"
