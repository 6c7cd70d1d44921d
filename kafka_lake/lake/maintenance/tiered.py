"""What a table tells of its files that were moved to another location: a property, so that it outlives snapshots.

It names each place before the first file is copied there, so that whoever looks for orphans knows it.
"""

import json
import time
from dataclasses import asdict, dataclass

from pyiceberg.table import Table

from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake.lake.positions import head_of

TIERED = "kafka-lake.tiered"
_SHARE, _LONGEST_MS, _SHORTEST_MS = 0.1, 86_400_000, 60_000


@dataclass(frozen=True)
class Tiered:
    """The files of a table that were moved.

    Args:
        places: Folders that have some, or had, the newest last.
        before_ms: Files of which all rows are older than this have been moved; milliseconds since 1970; 0 for none yet.
        field: Id of the column that tells how old a row is; 0 for none yet.
        files: How many there were when they were counted last.
        size: Their bytes.
    """

    places: tuple[str, ...] = ()
    before_ms: int = 0
    field: int = 0
    files: int = 0
    size: int = 0

    def to_json(self) -> str:
        """Return the text that the property has."""
        return json.dumps(asdict(self))


def tiered_of(table: Table) -> Tiered:
    """Return what a table tells of its files that were moved; of none, if the text can't be read."""
    try:
        told = json.loads(table.properties.get(TIERED, "{}"))
        numbers = {name: int(told.get(name, 0)) for name in ("before_ms", "field", "files", "size")}
        if numbers["before_ms"] > time.time() * 1000:
            # A clock was ahead, and nothing would be moved until then, nor compacted.
            numbers["before_ms"] = 0
        return Tiered(places=tuple(map(str, told.get("places", ()))), **numbers)
    except (ValueError, TypeError, AttributeError):
        return Tiered()


def why_tier(table: Table, policy: Maintenance, now_ms: int) -> str:
    """Return why files of a table shall be moved; empty if they needn't yet.

    That is a question of time alone, so that a sensor can ask it: which files are old, only manifests tell.

    Args:
        table: As it was loaded.
        policy: What is asked for.
        now_ms: The time, in milliseconds since 1970.

    Raises:
        ConfigurationError: If ``after`` is no duration.
    """
    limit, last = tier_limit_ms(policy, now_ms), tiered_of(table).before_ms
    if policy.tier is None or limit is None or head_of(table) is None:
        return ""
    pause = min(_LONGEST_MS, max(_SHORTEST_MS, (now_ms - limit) * _SHARE))
    return f"files older than {policy.tier.after}" if limit - last >= pause else ""


def tier_limit_ms(policy: Maintenance, now_ms: int) -> int | None:
    """Return the moment before which files are old, in milliseconds since 1970; None if none are moved."""
    return None if policy.tier is None else max(now_ms - int(policy.tier.after_seconds * 1000), 0)
