"""The check `freshness`: does a record wait too long for its row? By lag, so that a quiet topic is fresh.

The sensor tells Dagster when that changes, and the check can be run by itself.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from kafka_lake.common.durations import seconds_of
from kafka_lake.common.offsets import Position, Watermarks, in_topic, lag
from kafka_lake.components.keys import freshness_op_name, of_cluster, table_key
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.oldest import Place, arrival_times, unread
from kafka_lake.lake.all_positions import all_positions
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import position_in

CHECK = "freshness"
_SECONDS = 5.0


@dataclass(frozen=True)
class Freshness:
    """How long a topic's oldest record waits that its table lacks.

    Args:
        spec: The table; its `max_age` is set.
        age: For how many seconds the oldest one does, by its Kafka timestamp; 0 if none does.
    """

    spec: TopicTable
    offsets: int
    age: float

    @property
    def is_fresh(self) -> bool:
        """Return whether that is within the limit."""
        return self.age <= seconds_of(str(self.spec.max_age))

    @property
    def told(self) -> dict[str, Any]:
        """Return what a result of the check says."""
        limit = f"freshness_limit is {self.spec.max_age}"
        waits = f"the oldest record that the table lacks is {self.age:.0f} s old, and {limit}"
        return {
            "passed": self.is_fresh,
            "severity": dg.AssetCheckSeverity.WARN,
            "description": None if self.is_fresh else f"{self.offsets} offsets wait; {waits}.",
            "metadata": {"age_of_oldest_unread_seconds": round(self.age, 3), "lag": self.offsets},
        }


def freshness(specs: Sequence[TopicTable], cluster: KafkaCluster, catalog: LakeCatalog) -> list[Freshness]:
    """Return how fresh tables are; without those of which that can't be told now.

    Args:
        specs: Tables of one cluster whose `max_age` is set.
        cluster: Has them. A record is read of each partition that has unread ones.

    Raises:
        KafkaError: If the cluster doesn't answer.
    """
    if not specs:
        return []
    answers = cluster.watermarks(spec.topic for spec in specs)
    positions = all_positions(catalog, [spec.identifier for spec in specs])
    places: dict[tuple[tuple[str, str], str], list[Place]] = {}
    for spec in specs:
        now, of_table = answers[spec.topic], positions[spec.identifier]
        if isinstance(now, Watermarks) and not isinstance(of_table, Exception):
            places[spec.identifier, spec.full_topic] = _unread(
                spec, now, position_in(of_table, spec.topic, spec.topics)
            )
    wanted = {place for each in places.values() for place in each}
    came, now_seconds = arrival_times(cluster, wanted, _SECONDS), time.time()
    found, untold = [], set[tuple[str, str]]()
    for spec in specs:
        its_places = places.get((spec.identifier, spec.full_topic))
        if its_places is None or any(place not in came for place in its_places):
            untold.add(spec.identifier)
            continue
        waiting = [at for place in its_places if (at := came[place]) is not None]
        now, of_table = answers[spec.topic], positions[spec.identifier]
        assert isinstance(now, Watermarks), "it has places"
        assert not isinstance(of_table, Exception), "it has places"
        position = position_in(of_table, spec.topic, spec.topics)
        offsets = sum(lag(in_topic(position, now), now).values()) if waiting else 0
        found.append(Freshness(spec, offsets, max(0.0, now_seconds - min(waiting)) if waiting else 0.0))
    return _by_table([each for each in found if each.spec.identifier not in untold])


def _by_table(found: Sequence[Freshness]) -> list[Freshness]:
    """Return one for each table: of several topics, all that waits, and the oldest."""
    tables: dict[tuple[str, str], Freshness] = {}
    for each in found:
        known = tables.get(each.spec.identifier)
        if known is not None:
            each = Freshness(known.spec, known.offsets + each.offsets, max(known.age, each.age))
        tables[each.spec.identifier] = each
    return list(tables.values())


def _unread(spec: TopicTable, now: Watermarks, position: Position | None) -> list[Place]:
    if position is None and spec.start != "earliest":
        # Which records are the table's, its first run says.
        return []
    return list(unread(now, position).values())


def changes(
    specs: Sequence[TopicTable], cluster: KafkaCluster, catalog: LakeCatalog, cursor: str | None
) -> tuple[list[dg.AssetCheckEvaluation], str | None]:
    """Return results of the check where they differ from those that were told last, and what is told by then.

    Args:
        specs: Topics of one cluster; their tables without a `freshness_limit` are left out.
        cursor: What was told, as this function gave it; None if nothing was.
    """
    timed = [table for spec in specs for table in spec.tables if table.max_age is not None]
    if not timed:
        return [], cursor
    before = _from(cursor)
    now = {".".join(each.spec.identifier): each for each in freshness(timed, cluster, catalog)}
    events = [
        dg.AssetCheckEvaluation(asset_key=table_key(each.spec), check_name=CHECK, blocking=False, **each.told)
        for name, each in now.items()
        if before.get(name) is not each.is_fresh
    ]
    known = {".".join(spec.identifier) for spec in timed}
    told = {name: each for name, each in before.items() if name in known}
    told |= {name: each.is_fresh for name, each in now.items()}
    return events, json.dumps({"fresh": told})


def _from(cursor: str | None) -> Mapping[str, bool]:
    try:
        found = json.loads(cursor or "{}")["fresh"]
    except (ValueError, KeyError, TypeError):
        # Of another version.
        return {}
    return found if isinstance(found, dict) else {}


def build_freshness_check(spec: TopicTable) -> list[dg.AssetChecksDefinition]:
    """Return the check of a table, if it has a `max_age`."""
    if spec.max_age is None:
        return []
    kafka = of_cluster("kafka", spec.cluster)

    @dg.multi_asset_check(
        name=freshness_op_name(spec),
        specs=[
            dg.AssetCheckSpec(
                CHECK,
                asset=table_key(spec),
                description=f"Warns while a record waits for its row for longer than {spec.max_age}. The sensor "
                f"{of_cluster('kafka_offsets', spec.cluster)} looks, and tells when that changes.",
            )
        ],
        required_resource_keys={kafka, "catalog"},
    )
    def table_is_fresh(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        resources: Any = context.resources
        for each in freshness(spec.each_topic, getattr(resources, kafka).cluster(), resources.catalog.open()):
            yield dg.AssetCheckResult(check_name=CHECK, asset_key=table_key(spec), **each.told)

    return [table_is_fresh]
