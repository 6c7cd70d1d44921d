"""Which topics have work, which of them share a run, and the run that does it. Pure."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import dagster as dg

from kafka_lake.common.offsets import Loss, Position, Watermarks
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

FAR_BEHIND = 1_000_000
"""A topic with more pending offsets has a run of its own: other topics would wait for its first step."""

_MOST_OFFSETS = 5_000_000
_TOPICS_PER_RUN = 4


@dataclass(frozen=True)
class Sharing:
    """Which topics share runs.

    Args:
        places: The limit of concurrent shared runs.
        continuous: Tables whose runs continue for hours.
    """

    places: int
    continuous: frozenset[dg.AssetKey] = frozenset()

    def runs_alone(self, spec: TopicTable, pools: Collection[str]) -> bool:
        """Return whether a topic has runs of its own, since other topics would wait for it.

        Args:
            pools: The pools that other runs hold or wait for.
        """
        return (
            table_key(spec) in self.continuous
            # A run reads them one after the other.
            or bool(spec.topics)
            # Each transform has a Spark session of its own.
            or any(table.transform for table in spec.tables)
            or pool_name(spec) in pools
        )


@dataclass(frozen=True)
class Due:
    """A topic, or a table of several topics, with pending records.

    Args:
        alone: Whether it has runs of its own.
        failed: Whether its last run failed: its next failure must not end the run of other topics.
    """

    name: str
    offsets: int
    alone: bool = False
    failed: bool = False

    @property
    def shares(self) -> bool:
        """Return whether it may share a run."""
        return not self.alone and not self.failed and self.offsets <= FAR_BEHIND


def groups(due: Iterable[Due], in_flight: int, places: int) -> list[list[str]]:
    """Return the topics of each run to request, sorted by name.

    A few topics share one run; many are spread over all places but one. The last place is for topics that become due
    later.
    """
    ordered = sorted(due, key=lambda topic: (topic.offsets, topic.name))
    free = places - in_flight
    if free <= 0 or not ordered:
        return []
    made = min(max(1, free - 1), -(-len(ordered) // _TOPICS_PER_RUN))
    shares: list[list[Due]] = [[] for _ in range(made)]
    for topic in ordered:
        share = min(shares, key=lambda topics: (_offsets(topics), len(topics)))
        if _offsets(share) + topic.offsets <= _MOST_OFFSETS:
            share.append(topic)
    return [sorted(topic.name for topic in share) for share in shares]


def _offsets(topics: Iterable[Due]) -> int:
    return sum(topic.offsets for topic in topics)


_RANGE_START = "dagster/asset_partition_range_start"
_RANGE_END = "dagster/asset_partition_range_end"


@dataclass(frozen=True)
class Work:
    """The pending work of a topic at a tick.

    Args:
        new_partitions: Keys that Dagster doesn't know yet, in numeric order.
        losses: Pending records that Kafka no longer has; the run handles them.
        opens: Whether the table has no position and starts at the latest offset: a run must record that offset before
            the first record comes.
        fingerprint: Identifies position and target. The same work requested again gets another attempt number.
    """

    spec: TopicTable
    partitions: tuple[int, ...]
    new_partitions: tuple[str, ...]
    behind: dict[int, int]
    losses: tuple[Loss, ...]
    opens: bool
    fingerprint: str

    @property
    def is_due(self) -> bool:
        """Return whether a run has something to do."""
        return bool(self.offsets or self.losses or self.opens)

    @property
    def offsets(self) -> int:
        """Return how many offsets are to be consumed."""
        return sum(self.behind.values())


@dataclass(frozen=True)
class Pace:
    """How often the sensor and its runs poll topics. Times are in seconds.

    Args:
        catch_up: For how long a run continues while records come; 0 for runs that end where the topic ended at first.
    """

    interval: float
    catch_up: float = 0.0

    def run_config(self) -> dict[str, float]:
        """Return the run config of a step."""
        return {"catch_up_for": self.catch_up, "poll_every": self.interval}


def work_of(spec: TopicTable, position: Position | None, now: Watermarks, known: Iterable[str]) -> Work:
    """Return the pending work of a topic. Pure."""
    from kafka_lake.ingest.plan import backlog

    state = f"{position and position.to_json()}→{sorted(now.end.items())}"
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
    """Return a fingerprint of the work of several topics."""
    lines = [f"{work_name(work.spec)}:{work.fingerprint}" for work in works]
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Table:
    """A table in a run request.

    Args:
        works: The work of each topic that the brokers know, empty or not.
        known: The partition keys in Dagster, in its order.
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
        """Return the keys of its partitions in the order of a range in Dagster: known keys, then new ones.

        Dagster also has the keys of a topic of the same name that another code location reads from its own cluster.
        """
        own = {partition_key(work.spec, partition) for work in self.works for partition in work.partitions}
        keys = (*self.known, *(new for work in self.works for new in work.new_partitions))
        return [key for key in keys if key in own]


def request(tables: Sequence[Table], pace: Pace, work: str, attempt: int, shared: bool) -> dg.RunRequest:
    """Return the run of a table, or of several: each has a step of its own."""
    specs = [table.spec for table in tables]
    config = pace.run_config() | ({"topics": len(specs)} if len(specs) > 1 else {})
    if len(tables) == 1:
        name, keys = tables[0].name, tables[0].keys
        own = {TOPIC_TAG: name, _RANGE_START: keys[0], _RANGE_END: keys[-1]}
    else:
        name = f"{len(tables)} topics"
        own = {TOPIC_TAG: ", ".join(f"{table.name} [{_shown(table.keys)}]" for table in tables)}
    return dg.RunRequest(
        run_key=f"{name}:{work}#{attempt}",
        asset_selection=[table_key(table) for spec in specs for table in spec.tables],
        asset_check_keys=[check for spec in specs for check in run_checks(spec)],
        run_config={"ops": {op_name(spec): {"config": config} for spec in specs}},
        tags={
            **own,
            **{member_tag(table.name): table.name for table in tables},
            **({SHARED_TAG: specs[0].cluster or ""} if shared else {}),
            WORK_TAG: work,
            SETTINGS_TAG: json.dumps({table.name: settings_fingerprint(table.spec) for table in tables}),
        },
    )


def _shown(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]}…{keys[-1]}" if keys else ""


def run_checks(spec: TopicTable) -> list[dg.AssetCheckKey]:
    """Return the checks of a requested run. Other checks are steps of their own and wait for their pools."""
    names = {table.identifier: [*CHECKS, *(rule.check for rule in table.named_rules)] for table in spec.tables}
    if spec.max_age is not None:
        names[spec.identifier].append(FRESHNESS)
    return [dg.AssetCheckKey(table_key(table), name) for table in spec.tables for name in names[table.identifier]]
