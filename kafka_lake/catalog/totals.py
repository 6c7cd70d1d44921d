"""Running totals of a table: a table property that each publication updates in the same commit as its rows."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pyiceberg.table import Table

TOTALS = "kafka-lake.totals"
STEPS = ("plan", "stage", "audit")
"""Steps with a known duration when a commit is published; ``stage`` reads, decodes and writes."""


@dataclass(frozen=True)
class Totals:
    """Numbers of one commit, or of all commits of a table.

    Args:
        refused: Publications that were repeated because another commit came first.
        records: Read from Kafka, replays included.
        rows: In an upsert table, change events.
        tombstones: Records without a value.
        bytes_read: Of keys, values and headers.
        moved: Dead letters that became rows.
        rewrites: Commits that did more than append new rows.
        expired: Rows deleted by row retention.
        seconds: Durations of the steps.
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
        left, right = asdict(self), asdict(other)
        seconds = {
            step: round(self.seconds.get(step, 0.0) + other.seconds.get(step, 0.0), 3)
            for step in sorted({*self.seconds, *other.seconds})
        }
        return Totals(**{name: left[name] + right[name] for name in left if name != "seconds"}, seconds=seconds)

    def to_json(self) -> str:
        """Return the text that the property has."""
        return json.dumps(asdict(self), separators=(",", ":"))


def added(table: Table, done: Totals) -> Mapping[str, str]:
    """Return the property with the numbers of a commit added; ``table`` is loaded before the commit."""
    return {TOTALS: (totals_of(table) or Totals()).plus(done).to_json()}


def totals_of(table: Table) -> Totals | None:
    """Return a table's totals; None if the property is missing or can't be read, so that they begin again."""
    text = table.properties.get(TOTALS)
    if text is None:
        return None
    try:
        content = json.loads(text)
        seconds = {str(step): float(value) for step, value in content.pop("seconds", {}).items()}
        counts = {name: int(content.get(name, 0)) for name in Totals.__dataclass_fields__ if name != "seconds"}
    except (ValueError, TypeError, AttributeError):
        return None
    return Totals(**counts, seconds=seconds)
