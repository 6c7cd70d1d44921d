"""What was done to a table since it exists, in numbers: a property of it, which each publication of a run goes on with.

It is written by the commit that makes rows visible, so it is never ahead of them nor behind, and it outlives snapshots.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pyiceberg.table import Table

TOTALS = "kafka-lake.totals"
STEPS = ("plan", "stage", "audit")
"""Whose time is known when a commit is published: staging is to read, to decode and to write."""


@dataclass(frozen=True)
class Totals:
    """What runs did to a table, or one commit of them.

    Args:
        refused: Publications that another writer's commit refused, and that a run did again.
        records: Read from Kafka, those that a replay read again included.
        rows: Rows that they became; in a keyed table, changes.
        dead_letters: Records among them that became dead letters.
        tombstones: Records among them without a value.
        bytes_read: Of their keys, values and headers.
        moved: Dead letters that became rows.
        rewrites: Commits that did something else than to add rows behind the position.
        expired: Rows that were deleted since they were old.
        seconds: How long the steps took, by name.
    """

    commits: int = 0
    refused: int = 0
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    tombstones: int = 0
    bytes_read: int = 0
    moved: int = 0
    rewrites: int = 0
    expired: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)

    def plus(self, other: "Totals") -> "Totals":
        """Return both together."""
        mine, theirs = asdict(self), asdict(other)
        seconds = {
            step: round(self.seconds.get(step, 0.0) + other.seconds.get(step, 0.0), 3)
            for step in sorted({*self.seconds, *other.seconds})
        }
        return Totals(**{name: mine[name] + theirs[name] for name in mine if name != "seconds"}, seconds=seconds)

    def to_json(self) -> str:
        """Return the text that the property has."""
        return json.dumps(asdict(self), separators=(",", ":"))


def added(table: Table, done: Totals) -> Mapping[str, str]:
    """Return the property of a table with what a commit does added to what it has.

    Args:
        table: As it is before the commit.
    """
    return {TOTALS: (totals_of(table) or Totals()).plus(done).to_json()}


def totals_of(table: Table) -> Totals | None:
    """Return what was done to a table; None if nothing is recorded, or it can't be read: then they begin again."""
    text = table.properties.get(TOTALS)
    if text is None:
        return None
    try:
        told = json.loads(text)
        seconds = {str(step): float(value) for step, value in told.pop("seconds", {}).items()}
        known = {name: int(told.get(name, 0)) for name in Totals.__dataclass_fields__ if name != "seconds"}
    except (ValueError, TypeError, AttributeError):
        return None
    return Totals(**known, seconds=seconds)
