"""The checks of a topic's table: rules, `freshness`, `verified` and `no_dead_letters`."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from kafka_lake.common.text import plain, seconds_of
from kafka_lake.orchestration.keys import (
    of_cluster,
    op_name,
    table_key,
)
from kafka_lake.orchestration.resources import CatalogResource, connections_of, resource_keys
from kafka_lake.orchestration.steps import as_failures
from kafka_lake.spec.rule import Rule
from kafka_lake.spec.topic_table import TopicTable


def rule_check_spec(rule: Rule, table: dg.AssetKey) -> dg.AssetCheckSpec:
    """Return the check of a rule; it blocks unless the rule only warns."""
    return dg.AssetCheckSpec(
        rule.check, asset=table, blocking=rule.on_failure != "warn", description=f"Rule: {rule.description}."
    )


FRESHNESS = "freshness"


def build_freshness_check(spec: TopicTable) -> list[dg.AssetChecksDefinition]:
    """Return the check of a table, if it has a `max_age`."""
    if spec.max_age is None:
        return []
    kafka = of_cluster("kafka", spec.cluster)

    @dg.multi_asset_check(
        name=op_name(spec, FRESHNESS),
        specs=[
            dg.AssetCheckSpec(
                FRESHNESS,
                asset=table_key(spec),
                description=f"Warns while a record waits for its row for longer than {spec.max_age}. The sensor "
                f"{of_cluster('kafka_offsets', spec.cluster)} evaluates it, and reports when the result changes.",
            )
        ],
        required_resource_keys={kafka, "catalog"},
    )
    def table_is_fresh(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        from kafka_lake.orchestration.check_results import freshness

        resources: Any = context.resources
        for arrival in freshness(spec.each_topic, getattr(resources, kafka).cluster(), resources.catalog.open()):
            yield dg.AssetCheckResult(check_name=FRESHNESS, asset_key=table_key(spec), **arrival.result_fields)

    return [table_is_fresh]


VERIFIED = "verified"


def build_verification(spec: TopicTable, topic: TopicTable) -> list[dg.AssetChecksDefinition]:
    """Return the check of a table that is verified by a schedule."""
    settings = spec.maintenance.verify
    if settings is None:
        return []
    condition: dg.AutomationCondition[Any] = dg.AutomationCondition.cron_tick_passed(settings.schedule)

    @dg.multi_asset_check(
        name=op_name(spec, VERIFIED),
        specs=[
            dg.AssetCheckSpec(
                VERIFIED,
                asset=table_key(spec),
                description="Every record in Kafka before the table's position is in the table exactly once. An "
                f"automation sensor requests it on the schedule {settings.schedule}.",
                automation_condition=condition,
            )
        ],
        required_resource_keys=resource_keys(spec.cluster),
    )
    def table_is_verified(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        from kafka_lake.verify.run import verify

        begin = None if settings.since is None else datetime.now(UTC) - timedelta(seconds=seconds_of(settings.since))

        def compared(what: str, offsets: int, total: int) -> None:
            context.log.info(f"{what}: {offsets:,} of {total:,} offsets compared")

        with as_failures():
            report = verify(
                topic,
                spec,
                connections_of(context.resources, spec.cluster),
                since="earliest" if begin is None else begin.isoformat(),
                sample=settings.share,
                progress=compared,
            )
        return dg.AssetCheckResult(
            asset_key=table_key(spec),
            check_name=VERIFIED,
            passed=not report.problems,
            description=plain("; ".join(map(str, report.problems))) or None,
            metadata={**report.counts, "seconds": report.seconds, "report": dg.MetadataValue.json(report.document())},
        )

    return [table_is_verified]


NO_DEAD_LETTERS = "no_dead_letters"


def build_dead_letters(
    spec: TopicTable,
) -> dg.AssetChecksDefinition:
    """Return the check of a table that warns of dead letters."""
    remedy = (
        f"Fix the cause, then replay them: `kafka-lake dead-letters {spec.full_topic} --replay`, or the "
        f"job {of_cluster('replay_dead_letters', spec.cluster)}."
    )
    check = dg.AssetCheckSpec(
        NO_DEAD_LETTERS, asset=table_key(spec), description=f"Warns while the table has dead letters. {remedy}"
    )

    # Not by asset_check, which makes the op's name of the key: those of a-b and a_b would be the same.
    @dg.multi_asset_check(name=op_name(spec, NO_DEAD_LETTERS), specs=[check])
    def no_dead_letters(catalog: CatalogResource) -> Iterator[dg.AssetCheckResult]:
        from kafka_lake.orchestration.check_results import dead_letter_result

        yield dg.AssetCheckResult(
            check_name=NO_DEAD_LETTERS, asset_key=table_key(spec), **dead_letter_result(spec, catalog.open())
        )

    return no_dead_letters
