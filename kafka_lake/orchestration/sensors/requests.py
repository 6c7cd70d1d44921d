"""Which topics have work, which of them share a run, and the run that does it. Pure."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import dagster as dg

from kafka_lake.common.offsets import Loss, Position, Watermarks
from kafka_lake.ingest.plan.append import backlog
from kafka_lake.orchestration.checks import FRESHNESS
from kafka_lake.orchestration.keys import (
    SHARED_TAG,
    TOPIC_TAG,
    member_tag,
    op_name,
    partition_key,
    pool_name,
    table_key,
    work_name,
)
from kafka_lake.orchestration.partitions import missing_keys
from kafka_lake.orchestration.runs import SETTINGS_TAG, WORK_TAG, settings_fingerprint
from kafka_lake.runtime.commit import CHECKS
from kafka_lake.spec.topic_table import TopicTable

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
    """

    places: int
    continuous: frozenset[dg.AssetKey] = frozenset()

    def why_alone(self, spec: TopicTable, failures: int, pools: Collection[str]) -> str:
        """Return why a topic has a run of its own; empty if it may share one."""
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


_RANGE_START = "dagster/asset_partition_range_start"
_RANGE_END = "dagster/asset_partition_range_end"


@dataclass(frozen=True)
class Work:
    """What one topic asks for at one tick.

    Args:
        new_partitions: Keys that Dagster doesn't know yet, in numeric order.
        losses: What Kafka no longer has of what the table lacks; the run says what comes of it.
        opens: Whether the table has no position and begins at the latest offset: a run must say which that is before
            the first record comes.
        fingerprint: Names the work: position and target. The same work asked for again gets another attempt number.
    """

    spec: TopicTable
    partitions: tuple[int, ...]
    new_partitions: tuple[str, ...]
    behind: dict[int, int]
    losses: tuple[Loss, ...]
    opens: bool
    fingerprint: str

    @property
    def offsets(self) -> int:
        """Return how many offsets are to be consumed."""
        return sum(self.behind.values())


@dataclass(frozen=True)
class Pace:
    """How often topics are polled, by the sensor and by the runs that it asks for. Times are in seconds.

    Args:
        catch_up: For how long a run continues while records come; 0 for runs that end where the topic ended at first.
    """

    interval: float
    catch_up: float = 0.0

    def run_config(self) -> dict[str, float]:
        """Return it as the config of a step has it."""
        return {"catch_up_for": self.catch_up, "poll_every": self.interval}


def work_of(spec: TopicTable, position: Position | None, now: Watermarks, known: Iterable[str]) -> Work:
    """Return what a topic asks for. Pure."""
    state = f"{position.to_json() if position else ''}→{sorted(now.end.items())}"
    due = backlog(position, now, now.low, accept_losses=True)
    behind = {r.partition: len(r) for r in due.ranges}
    missing = tuple(missing_keys(known, now.partitions, partial(partition_key, spec)))
    opens = position is None and spec.start == "latest" and bool(now.partitions)
    return Work(
        spec=spec,
        partitions=tuple(now.partitions),
        new_partitions=missing,
        behind=behind,
        losses=due.losses,
        opens=opens,
        fingerprint=sha256(state.encode()).hexdigest()[:16],
    )


def fingerprint(works: Sequence[Work]) -> str:
    """Return what names the work of topics that have some."""
    told = [f"{work_name(each.spec)}:{each.fingerprint}" for each in works]
    return sha256("\n".join(told).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Table:
    """A table of which a run is requested.

    Args:
        works: Of all its topics that the brokers know, those without new records too.
        known: Partition keys that Dagster has, in its order.
    """

    works: Sequence[Work]
    known: Sequence[str]

    @property
    def spec(self) -> TopicTable:
        """Return the settings of its first topic."""
        return self.works[0].spec

    @property
    def name(self) -> str:
        """Return its name by `work_name`."""
        return work_name(self.spec)

    @property
    def keys(self) -> list[str]:
        """Return the keys of its partitions as Dagster orders a range: the known ones come first, the new ones after.

        Dagster keeps those of a topic of the same name that another code location reads from its own cluster, too.
        """
        own = {partition_key(work.spec, partition) for work in self.works for partition in work.partitions}
        keys = (*self.known, *(new for work in self.works for new in work.new_partitions))
        return [key for key in keys if key in own]


def request(tables: Sequence[Table], pace: Pace, asked: str, attempt: int, shared: bool) -> dg.RunRequest:
    """Return the run of a table, or of several: each has a step of its own."""
    specs = [each.spec for each in tables]
    config = pace.run_config() | ({"topics": len(specs)} if len(specs) > 1 else {})
    if len(tables) == 1:
        name, keys = tables[0].name, tables[0].keys
        own = {TOPIC_TAG: name, _RANGE_START: keys[0], _RANGE_END: keys[-1]}
    else:
        name = f"{len(tables)} topics"
        own = {TOPIC_TAG: ", ".join(f"{each.name} [{_shown(each.keys)}]" for each in tables)}
    return dg.RunRequest(
        run_key=f"{name}:{asked}#{attempt}",
        asset_selection=[table_key(each) for spec in specs for each in spec.tables],
        asset_check_keys=[check for spec in specs for check in run_checks(spec)],
        run_config={"ops": {op_name(spec): {"config": config} for spec in specs}},
        tags={
            **own,
            **{member_tag(each.name): each.name for each in tables},
            **({SHARED_TAG: specs[0].cluster or ""} if shared else {}),
            WORK_TAG: asked,
            SETTINGS_TAG: json.dumps({each.name: settings_fingerprint(each.spec) for each in tables}),
        },
    )


def _shown(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]}…{keys[-1]}" if keys else ""


def run_checks(spec: TopicTable) -> list[dg.AssetCheckKey]:
    """Return the checks of a run that the sensor asks for: others are steps of their own, and wait for their pools."""
    names = {each.identifier: [*CHECKS, *(rule.check for rule in each.named_rules)] for each in spec.tables}
    if spec.max_age is not None:
        names[spec.identifier].append(FRESHNESS)
    return [dg.AssetCheckKey(table_key(each), name) for each in spec.tables for name in names[each.identifier]]
