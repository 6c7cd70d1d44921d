"""A topic's assets: the topic itself, its tables below it, and their checks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any
from zlib import crc32

import dagster as dg
from pydantic import Field

from kafka_lake.common.text import plain
from kafka_lake.orchestration.checks import (
    build_dead_letters,
    build_freshness_check,
    build_verification,
    rule_check_spec,
)
from kafka_lake.orchestration.heartbeat import heartbeat
from kafka_lake.orchestration.jobs import build_health_check
from kafka_lake.orchestration.keys import (
    CONTINUOUS_ASSET_TAG,
    TABLE_TAG,
    default_key,
    default_topic_key,
    of_cluster,
    op_name,
    pool_name,
    table_key,
    work_name,
)
from kafka_lake.orchestration.metadata import SPEC, table_address
from kafka_lake.orchestration.partitions import partitions_of
from kafka_lake.orchestration.resources import resource_keys
from kafka_lake.orchestration.steps import as_failures, run_choices
from kafka_lake.runtime.commit import CHECKS, GATES
from kafka_lake.spec.continuous import Continuous
from kafka_lake.spec.topic_table import TopicTable

_REPORT_SECONDS = 20.0


class Mode(Enum):
    """What a materialization does."""

    incremental = "incremental"
    replace = "replace"


class IngestConfig(dg.Config):
    """Run config of a table: how to materialize the chosen partitions."""

    mode: Mode = Field(
        default=Mode.incremental,
        description="`incremental` continues at the table's position. `replace` reads records again and replaces "
        "their rows, with the current schema and transform.",
    )
    start: str = Field(
        default="earliest",
        description="Start of `replace`: `earliest`, an offset, an ISO 8601 time, or offsets by partition "
        "(`0:17,1:4`).",
    )
    end: str = Field(default="latest", description="End of `replace`, exclusive; at most the table's position.")
    keep_missing: bool = Field(
        default=False, description="With `replace`: keep rows whose records expired from Kafka, instead of failing."
    )
    catch_up_for: float = Field(
        default=0.0,
        ge=0,
        description="With `incremental`: maximum number of seconds to go on while records arrive and no queued run "
        "needs its place. 0: the run reads only records that existed when it started.",
    )
    poll_every: float = Field(
        default=10.0,
        gt=0,
        description="With `catch_up_for`: minimum seconds between the starts of two commits.",
    )
    topics: int = Field(
        default=1,
        ge=1,
        description="With `catch_up_for`: number of topics in the run.",
    )

    def catch_up(self, run_id: str) -> Continuous | None:
        """Return how a run continues after it has done what it was asked for; None if it doesn't."""
        seconds = self.catch_up_for
        if not seconds or self.mode is not Mode.incremental:
            return None
        # Up to a quarter less: else runs that began together would end together, and start together again.
        time_limit = seconds * (1 - crc32(run_id.encode()) / 2**34)
        trigger = min(self.poll_every, time_limit)
        return Continuous(
            trigger=trigger,
            time_limit=time_limit,
            idle=0.0,
            compact_every=None,
            report_every=max(_REPORT_SECONDS, trigger),
        )


@dataclass(frozen=True)
class Presentation:
    """The presentation of a table: descriptions, owners and tags. It has no effect on runs.

    Args:
        tags: Of each asset, so that Dagster can select by them.
        metadata: Of the table's asset.
    """

    group: str
    owners: Sequence[str] = ()
    description: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def asset(self, key: dg.AssetKey, description: str | None, kinds: set[str], **more: Any) -> dg.AssetSpec:
        """Return an asset."""
        shown: dict[str, Any] = {"group_name": self.group, "owners": list(self.owners), "tags": self.tags}
        return dg.AssetSpec(key, description=description, kinds=kinds, **shown, **more)

    def topic(self, spec: TopicTable) -> dg.AssetSpec:
        """Return the asset of a topic."""
        text = f"Kafka topic {spec.full_topic}. The sensor {of_cluster('kafka_offsets', spec.cluster)} polls it."
        return self.asset(default_topic_key(spec), " ".join(filter(None, (text, self.description))), {"kafka"})

    def table(self, spec: TopicTable) -> dg.AssetSpec:
        """Return the asset of a topic's table."""
        return self.asset(default_key(spec.identifier), self.description, {"iceberg", "spark"}, metadata=self.metadata)


_CHECK_DESCRIPTIONS = {
    "row_count": "Rows + dead letters + tombstones = records read.",
    "offset_continuity": "The commit starts at the table's position, and has every offset once.",
    "schema_evolution": "The schema changed only in ways that Iceberg's rules and the topic's settings allow.",
    "dead_letters": "The number of dead letters is within the topic's limit.",
    "data_loss": "Kafka hadn't lost any unread record. Never blocks: the run continues and records the loss.",
}


def build_topic_assets(
    spec: TopicTable,
    shown: Presentation,
    continuous: Continuous | None = None,
    *,
    asset_of: Callable[[TopicTable], dg.AssetSpec] | None = None,
    topic_of: Callable[[TopicTable], dg.AssetSpec] | None = None,
    execute: Callable[[dg.AssetExecutionContext, TopicTable], Iterator[Any]] | None = None,
) -> list[dg.AssetSpec | dg.AssetsDefinition]:
    """Return the topic as an external asset and its tables as partitioned, checked, materializable ones.

    Checks of the tables warn of dead letters, and of a lack of maintenance. One run makes all tables of the topic.

    Args:
        asset_of: Gives the asset of a table; by default `shown` does.
        topic_of: Gives the asset of a topic; by default `shown` does.
        execute: Gives the events of a run instead of `run_topic`.
    """
    run = execute or partial(run_topic, continuous=continuous)
    sources = [(topic_of or shown.topic)(source) for source in spec.each_topic]
    records = f" {spec.where}" if spec.where else " that no other table takes" if spec.has_routes else ""
    texts = {spec.identifier: f"The records of {spec.display_topics}{records}."}
    texts |= {
        route.to.identifier: plain(f"The records of Kafka topic {spec.full_topic} {route.when}.")
        for route in spec.every_route
    }
    assets = []
    for table in spec.tables:
        asset = (asset_of or shown.table)(table)
        asset = asset.replace_attributes(deps=sources, description=asset.description or texts[table.identifier])
        own = {SPEC: spec} if table is spec else {}
        tags = {CONTINUOUS_ASSET_TAG: ""} if continuous and table is spec else {}
        assets.append(
            asset.merge_attributes(
                metadata={**_beside(table), **table_address(table.identifier), **own},
                tags={TABLE_TAG: spec.cluster or "", **tags},
            )
        )
    checks = [check for table_spec in spec.tables for check in _checks(table_spec)]

    @dg.multi_asset(
        name=op_name(spec),
        specs=assets,
        check_specs=checks,
        partitions_def=partitions_of(work_name(spec)),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
        pool=pool_name(spec),
        required_resource_keys=resource_keys(spec.cluster),
        config_schema=run_choices(IngestConfig),
    )
    def ingest_topic(context: dg.AssetExecutionContext) -> Iterator[Any]:
        with as_failures(), heartbeat(context.instance, context.run_id):
            yield from run(context, spec)

    beside: list[dg.AssetSpec | dg.AssetChecksDefinition] = []
    for table_spec in spec.tables:
        beside += build_freshness_check(table_spec)
        beside += build_verification(table_spec, spec)
        if table_spec.keeps_dead_letters:
            beside.append(build_dead_letters(table_spec))
    # A run of the topic changes all of its tables: what maintains a keyed one waits for that.
    return [*sources, ingest_topic, *beside, *(build_health_check(table_spec, spec) for table_spec in spec.tables)]


def run_topic(
    context: dg.AssetExecutionContext, spec: TopicTable, continuous: Continuous | None = None
) -> Iterator[Any]:
    """Do what a run of a topic is for, and give Dagster's events."""
    from kafka_lake.orchestration.materialize import fill_tables

    yield from fill_tables(context, spec, continuous, IngestConfig(**context.op_execution_context.op_config))


def _beside(spec: TopicTable) -> dict[str, str]:
    """Return the names of the tables beside a table; they have no assets."""
    names = {"dead_letter_table": spec.keeps_dead_letters and spec.dead_letter_table}
    names["deletes_table"] = spec.deletes_table in spec.identifiers and spec.deletes_table
    return {name: ".".join(table) for name, table in names.items() if table}


def _checks(spec: TopicTable) -> list[dg.AssetCheckSpec]:
    key = table_key(spec)
    return [
        dg.AssetCheckSpec(name, asset=key, blocking=name in GATES, description=_CHECK_DESCRIPTIONS[name])
        for name in CHECKS
    ] + [rule_check_spec(rule, key) for rule in spec.named_rules]
