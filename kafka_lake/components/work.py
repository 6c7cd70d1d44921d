"""The work that topics ask for: what is beyond a table's position, and the run that reads it. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import dagster as dg

from kafka_lake.common.offsets import Loss, Position, Watermarks
from kafka_lake.components.freshness import CHECK as FRESHNESS
from kafka_lake.components.keys import TOPIC_TAG, op_name, partition_key, table_key
from kafka_lake.components.partitions import missing_keys
from kafka_lake.components.topic_runs import SETTINGS_TAG, WORK_TAG, settings_fingerprint
from kafka_lake.ingest.finding import CHECKS
from kafka_lake.ingest.plan.append import backlog
from kafka_lake.ingest.topic_table import TopicTable

_RANGE_START = "dagster/asset_partition_range_start"
_RANGE_END = "dagster/asset_partition_range_end"


@dataclass(frozen=True)
class Work:
    """What one topic asks for at one tick.

    Args:
        spec: The topic.
        partitions: Of the topic as it is now.
        new_partitions: Keys that Dagster doesn't know yet, in numeric order.
        behind: Offsets to consume per partition.
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
        interval: Between two polls.
        catch_up: For how long a run continues while records come; 0 for runs that end where the topic ended at first.
    """

    interval: float
    catch_up: float = 0.0

    def run_config(self) -> dict[str, float]:
        """Return it as a run's config has it."""
        return {"catch_up_for": self.catch_up, "poll_every": self.interval}


def work_of(spec: TopicTable, position: Position | None, now: Watermarks, known: Iterable[str]) -> Work:
    """Return what a topic asks for. Pure.

    Args:
        spec: The topic.
        position: Its table's position.
        now: The topic's watermarks.
        known: Partition keys that Dagster has already.
    """
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


@dataclass(frozen=True)
class WorkId:
    """What a run is asked for.

    Args:
        name: By `work_name`.
        fingerprint: Names the work.
        attempts: How many runs have been asked for the same.
    """

    name: str
    fingerprint: str
    attempts: int


def fingerprint(works: Sequence[Work]) -> str:
    """Return what names the work of the topics of a table that have some."""
    return sha256("".join(each.fingerprint for each in works).encode()).hexdigest()[:16]


def request(works: Sequence[Work], known: Sequence[str], pace: Pace, asked: WorkId) -> dg.RunRequest:
    """Return the run of a table: of all its topics that the brokers know.

    Args:
        works: Of the table's topics, those without new records too.
        known: Partition keys that Dagster has, in its order.
        pace: How the run goes on.
        asked: What it is asked for.
    """
    # Dagster orders a range by insertion: the known keys come first, the new ones after them. It keeps those of a topic
    # of the same name that another code location reads from its own cluster, too.
    spec = works[0].spec
    own = {partition_key(work.spec, partition) for work in works for partition in work.partitions}
    keys = [key for key in (*known, *(new for work in works for new in work.new_partitions)) if key in own]
    return dg.RunRequest(
        run_key=f"{asked.name}:{asked.fingerprint}#{asked.attempts}",
        asset_selection=[table_key(each) for each in spec.tables],
        asset_check_keys=run_checks(spec),
        run_config={"ops": {op_name(spec): {"config": pace.run_config()}}},
        tags={
            _RANGE_START: keys[0],
            _RANGE_END: keys[-1],
            TOPIC_TAG: asked.name,
            WORK_TAG: asked.fingerprint,
            SETTINGS_TAG: settings_fingerprint(spec),
        },
    )


def run_checks(spec: TopicTable) -> list[dg.AssetCheckKey]:
    """Return the checks of a run that the sensor asks for: others are steps of their own, and wait for their pools."""
    names = {each.identifier: [*CHECKS, *(rule.check for rule in each.named_rules)] for each in spec.tables}
    if spec.max_age is not None:
        names[spec.identifier].append(FRESHNESS)
    return [dg.AssetCheckKey(table_key(each), name) for each in spec.tables for name in names[each.identifier]]
