"""Which due topics share a run. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import dagster as dg

from kafka_lake.components.keys import pool_name, table_key
from kafka_lake.ingest.topic_table import TopicTable

FAILED = "its last run failed"
"""Why a topic has a run of its own: whatever made that fail must not end the runs of other topics."""

FAR_BEHIND = 1_000_000
"""A topic with more pending offsets has a run of its own: its first turn would keep the others waiting."""

_MOST_OFFSETS = 5_000_000
_TOPICS_PER_RUN = 4


@dataclass(frozen=True)
class Sharing:
    """Which topics share runs.

    Args:
        places: How many such runs there may be at once.
        continuous: Tables whose runs continue for hours.
    """

    places: int
    continuous: frozenset[dg.AssetKey] = frozenset()

    def why_alone(self, spec: TopicTable, failures: int, pools: Collection[str]) -> str:
        """Return why a topic has a run of its own; empty if it may share one.

        Args:
            failures: How many of its last runs failed.
            pools: Those that other runs have or wait for: a run waits until it has all of its pools.
        """
        if failures:
            return FAILED
        if table_key(spec) in self.continuous:
            return "its runs continue for hours"
        if spec.topics:
            return "its table has several topics, which a run reads one after the other"
        if any(each.transform for each in spec.tables):
            return "its transform has a Spark session of its own"
        return "another run has its pool, or waits for it" if pool_name(spec) in pools else ""


@dataclass(frozen=True)
class Due:
    """A topic, or a table of several, that has something to read.

    Args:
        offsets: How many offsets are pending.
        alone: Why it has a run of its own; empty if it may share one.
    """

    name: str
    offsets: int
    alone: str = ""

    @property
    def shares(self) -> bool:
        """Return whether it may share a run."""
        return not self.alone and self.offsets <= FAR_BEHIND


def groups(due: Iterable[Due], in_flight: int, places: int) -> list[list[str]]:
    """Return the topics of each run to request, sorted by name.

    A few topics share one run, more are dealt to all places but one. The last place is for topics that become due
    while the other runs go on.

    Args:
        due: The topics that share runs; `Due.shares` holds for each of them.
        in_flight: How many runs with shared topics there are.
        places: How many of them there may be, at least 1.

    Returns:
        No run if all places are taken. A topic that fits into no run is left out: it is due again at the next tick.
    """
    ordered = sorted(due, key=lambda each: (each.offsets, each.name))
    free = places - in_flight
    if free <= 0 or not ordered:
        return []
    made = min(max(1, free - 1), -(-len(ordered) // _TOPICS_PER_RUN))
    shares: list[list[Due]] = [[] for _ in range(made)]
    for each in ordered:
        share = min(shares, key=lambda its: (sum(other.offsets for other in its), len(its)))
        if sum(other.offsets for other in share) + each.offsets <= _MOST_OFFSETS:
            share.append(each)
    return [sorted(each.name for each in share) for share in shares]
