"""What a side table's newest commit says of its share: by which conditions, and from which offsets on.

A side table may be further than its topic. Whether it has all that it shall have there depends on the routes by then.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka_lake.common.offsets import Position
from kafka_lake.ingest.decode.by_schema.names import SchemaNames
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.routes.share import counted
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import POSITION, TableState, ancestors, head_of, summary_of

GIVEN = "kafka-lake.route"
"""In a side table's snapshot that has a position: `Given`, as JSON."""


@dataclass(frozen=True)
class Given:
    """What a side table has been given up to its position.

    Args:
        conditions: Which records are meant, as `conditions_of` has it; empty if nothing tells.
        since: From which offset on, by partition, it has all of them up to its position, and no others.
    """

    conditions: str = ""
    since: Mapping[int, int] = field(default_factory=dict)

    def by(self, conditions: str) -> Mapping[int, int]:
        """Return from which offset on the table has what certain conditions give it."""
        return self.since if self.conditions == conditions else {}

    def marks(self) -> dict[str, str]:
        """Return it as a snapshot's summary has it."""
        since = {str(partition): offset for partition, offset in sorted(self.since.items())}
        return {GIVEN: json.dumps({"conditions": self.conditions, "since": since}, separators=(",", ":"))}


def conditions_of(spec: TopicTable, number: int, names: SchemaNames) -> str:
    """Return a text that is another one if the records of a route may be others.

    The first route that holds counts. With ``all_matches`` those before don't matter, nor do other values of
    ``route_by``. Where routes go by schemas, the ids matter that the registry doesn't know: it may, later.

    Args:
        spec: The topic's settings, with the values that have a table.
        number: Of the route among all of them, from 0 on.
        names: Of the records' schemas, as routes see them.
    """
    before = () if spec.all_matches else spec.routes[:number]
    whens = [*(each.when for each in before), spec.when_of(number)]
    told: list[Sequence[object]] = [(each.source, each.values, each.schema) for each in whens]
    if any(each.schema for each in whens):
        told.append(sorted(start.hex() for start, name in names.items() if name is None))
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def given_of(state: TableState | None) -> Given:
    """Return what the newest snapshot with a position says; nothing is certain if it says nothing, or can't be read."""
    summaries = map(summary_of, ancestors(state.table, head_of(state.table))) if state else iter(())
    return parsed(next((summary.get(GIVEN) for summary in summaries if POSITION in summary), None))


def parsed(text: str | None) -> Given:
    """Return what a summary tells."""
    try:
        told: Any = json.loads(text or "{}")
        return Given(str(told["conditions"]), {int(p): int(o) for p, o in told["since"].items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return Given()


def given_after(plan: Plan, own: Position | None, before: Given, conditions: str) -> Given:
    """Return what holds for a side table after it has been given its share of a plan that reads on.

    Args:
        plan: Of the topic.
        own: The table's position before; None if it had none.
        before: What held then.
        conditions: Today's.
    """
    reached, known = counted(own, plan), before.by(conditions)
    # Between its position and the topic's, routes may have been other ones.
    since = {p: offset for p, offset in known.items() if reached.get(p, 0) >= plan.after.offsets.get(p, 0)}
    for each in plan.ranges:
        beyond = reached.get(each.partition, 0) > each.end
        if not beyond or known.get(each.partition, each.start + 1) <= each.start:
            since[each.partition] = each.start
        else:
            # What lies beyond this plan is still as other routes have left it.
            since.pop(each.partition, None)
    return Given(conditions, since)
