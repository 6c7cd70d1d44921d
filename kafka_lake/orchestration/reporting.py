"""What a run reports to Dagster: figures of each partition, the table as a whole, and checks over the whole run.

A partition's materialization has the partition's own figures only, since Dagster plots them by partition. Figures of
the whole run or table are in one more materialization, without a partition, and in the checks. Dagster keeps one result
of a check for each run, and plots results over time: so a result covers the whole run so far.

In a run of a backfill, the last of its partitions has these figures: Dagster marks a backfill as failed if a run of it
reports a materialization without a partition of an asset that has partitions.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import dagster as dg
from pyiceberg.table import Table

from kafka_lake.catalog.positions import live_row_count
from kafka_lake.common.text import code
from kafka_lake.common.text import table as markdown_table
from kafka_lake.error_classification import headline, is_transient
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.report import PartitionReport, Progress, Reached, RunReport, RunSoFar, merged
from kafka_lake.ingest.run import Chosen
from kafka_lake.ingest.topic_runner import LeftBehindError
from kafka_lake.maintenance.maintain import due
from kafka_lake.orchestration.check_results import check_result, dead_letter_evaluation, evaluation, with_all_rules
from kafka_lake.orchestration.checks import NO_DEAD_LETTERS
from kafka_lake.orchestration.jobs import health_check, health_check_key
from kafka_lake.orchestration.keys import partition_key, partitions_in, table_key, topic_key, work_name
from kafka_lake.orchestration.metadata import last_reports, topic_materialization
from kafka_lake.orchestration.partitions import is_for_partitions, register_partitions
from kafka_lake.orchestration.table_metadata import (
    figures_metadata,
    history_metadata,
    last_commits,
    partition_metadata,
    table_metadata,
)
from kafka_lake.runtime.commit import GATES, CheckFailedError, Finding
from kafka_lake.runtime.context import Connections, RetryPolicy, call
from kafka_lake.runtime.plan import Plan
from kafka_lake.spec.topic_table import TopicTable

T = TypeVar("T")

BACKFILL_TAG = "dagster/backfill"
"""Tag of the runs of a backfill, which Dagster sets: the backfill."""

Event = dg.AssetMaterialization | dg.AssetCheckEvaluation


@dataclass
class Reporter:
    """Reports one run to Dagster.

    Args:
        keys: What Dagster calls the partitions that the run is for; None for all that the topic has.
        chosen: The topics among them, each with its Kafka partitions.
        is_side: Whether it reports the table of a route.
        sides: Report the tables of the topic's routes.
    """

    context: dg.AssetExecutionContext
    spec: TopicTable
    connections: Connections
    is_side: bool = False
    sides: tuple["Reporter", ...] = field(init=False)
    keys: frozenset[str] | None = field(init=False)
    chosen: Chosen = field(init=False)
    _topics: dict[str, TopicTable] = field(init=False)
    so_far: RunSoFar = field(init=False, default_factory=RunSoFar)
    progress: Progress = field(init=False, default_factory=lambda: Progress(time.monotonic()))

    def __post_init__(self) -> None:
        others = self.spec.tables[1:]
        self.sides = tuple(Reporter(self.context, other, self.connections, is_side=True) for other in others)
        self.keys = frozenset(self.context.partition_keys) if is_for_partitions(self.context) else None
        self._topics = {topic_spec.topic: topic_spec for topic_spec in self.spec.each_topic}
        chosen = [(topic, partitions_in(topic, self.keys) if self.keys else None) for topic in self._topics.values()]
        self.chosen = [(topic_spec, partitions) for topic_spec, partitions in chosen if partitions != frozenset()]
        if not self.chosen:
            raise ConfigurationError(
                f"Table {'.'.join(self.spec.identifier)}: there is no partition {min(self.keys or ())} of "
                f"{self.spec.display_topics}. Kafka's partitions are numbers.",
                "Choose a partition that the sensor added, and delete this one in Dagster.",
            )

    @property
    def partitions(self) -> frozenset[int] | None:
        """Return the chosen Kafka partitions of the first topic; None for all that it has."""
        return self.chosen[0][1]

    def committed(self, plan: Plan) -> str:
        """Take note of a published commit, and return how far the run is; empty where nothing is left."""
        self.progress = self.progress.plus(plan, time.monotonic())
        return self.progress.line()

    def interval(self, report: RunReport, silent: set[int]) -> Iterator[Event]:
        """Give what Dagster shows of a run that goes on."""
        table = self._take(report, patiently=False)
        yield from self._events(report, table, self._touched(report, silent))
        for side in self.sides:
            its = report.of(side.spec.identifier)
            if its.commits or silent:
                yield from side.interval(its, silent)

    def _touched(self, report: RunReport, silent: set[int]) -> set[str]:
        """Return the keys of the partitions to report."""
        touched = {(commit.topic, r.partition) for commit in report.commits for r in commit.ranges}
        return {self._key(*place) for place in (*touched, *((self.spec.topic, partition) for partition in silent))}

    def _key(self, topic: str, partition: int) -> str:
        return partition_key(self._topics[topic], partition)

    def _by_key(self, report: RunReport) -> dict[str, PartitionReport]:
        """Return what was done by partition, by Dagster's keys."""
        return {self._key(partition.topic, partition.partition): partition for partition in report.partitions()}

    def _events(self, report: RunReport, table: Table | None, keys: Collection[str]) -> Iterator[Event]:
        yield from self._partitions(report, table, keys)
        yield self._of_the_table(report, table)
        yield from self._tell_again(report)
        for result in self._checks(self.so_far.findings, table):
            yield evaluation(result, str(result.check_name) in self._blocking)

    def end(self, report: RunReport) -> Iterator[Any]:
        """Give the step's result and what Dagster shows of a run that ends."""
        yield from self._end(report)
        for side in self.sides:
            yield from side._end(report.of(side.spec.identifier))

    def _end(self, report: RunReport) -> Iterator[Any]:
        key, table = table_key(self.spec), self._take(report, patiently=True)
        if not self._is_selected:
            # The run makes all tables, whichever of them it was asked for.
            yield from self._events(report, table, self.keys or self._by_key(report).keys())
            return
        checks = self._checks(self.so_far.findings, table)
        if self.keys is None:
            # Dagster doesn't know which partitions the run is for: its own event has none.
            yield from self._partitions(report, table)
            yield dg.MaterializeResult(asset_key=key, metadata=self._whole(report, table), check_results=checks)
            yield from self._tell_again(report)
            return
        for partition, metadata in self._by_partition(report, table).items():
            if partition in self.keys:
                self.context.add_asset_metadata(metadata, asset_key=key, partition_key=partition)
        yield dg.MaterializeResult(asset_key=key, check_results=checks)
        # The newest one is what Dagster's page of the table shows.
        yield self._of_the_table(report, table)
        yield from self._tell_again(report)

    def refused(self, error: Exception) -> list[dg.AssetCheckResult]:
        """Return the results of the checks that refused commits."""
        errors = error.errors.values() if isinstance(error, LeftBehindError) else (error,)
        every = {side.spec.identifier: side for side in (self, *self.sides)}
        found: dict[tuple[str, str], list[Finding]] = {}
        for cause in errors:
            if isinstance(cause, CheckFailedError):
                found.setdefault(cause.table or self.spec.identifier, []).extend(cause.findings)
        results = [(every.get(table, self), findings) for table, findings in found.items()]
        return [result for its, findings in results if its._is_selected for result in its._refused(findings)]

    @property
    def _is_selected(self) -> bool:
        several = self.is_side or self.sides
        return not several or table_key(self.spec) in self.context.selected_asset_keys

    def _refused(self, findings: Sequence[Finding]) -> list[dg.AssetCheckResult]:
        checks = {finding.check for finding in findings}
        every = merged([*self.so_far.findings, *findings])
        return [check_result(result, table_key(self.spec)) for result in every if result.check in checks]

    def _take(self, report: RunReport, patiently: bool) -> Table | None:
        """Mark a report as made, and return the table as it is now; None if it can't be had."""
        self.so_far = self.so_far.plus(report)
        spec, catalog = self.spec, self.connections.catalog
        if not self.is_side:
            self._tell_of_topics(report, patiently)
        return self._attempt("its table", lambda: catalog.table(spec.identifier), patiently)

    def _tell_again(self, report: RunReport) -> Iterator[dg.AssetCheckEvaluation]:
        """Give the checks that other runs make, as they stand: to Dagster, a materialization makes results old.

        They are results of this run, since Dagster takes those of the newest materialization's run for new.
        """
        instance, spec, catalog = self.context.instance, self.spec, self.connections.catalog
        if _last_result(instance, health_check_key(spec)) is not None:
            health = self._attempt("its health", self._health, patiently=True)
            if health is not None:
                yield health
        if not spec.keeps_dead_letters:
            return
        last = _last_result(instance, dg.AssetCheckKey(table_key(spec), NO_DEAD_LETTERS))
        if last is None or report.total("dead_letters"):
            evaluate = partial(dead_letter_evaluation, spec, catalog)
            last = self._attempt("its dead letters", evaluate, patiently=True)
        if last is not None:
            yield last

    def _health(self) -> dg.AssetCheckEvaluation:
        return health_check(self.spec, due(self.spec, self.connections))

    def _tell_of_topics(self, report: RunReport, patiently: bool) -> None:
        instance = self.context.instance
        for topic, its in report.reached.items():
            spec, partitions = self._topics[topic], its.watermarks.partitions
            key_of = partial(partition_key, spec)
            register = partial(register_partitions, instance, work_name(spec), partitions, key=key_of)
            self._attempt("its partitions", register, patiently)
            # The sensor leaves the topic alone while its run goes on, and its page would show the lag from before.
            self._attempt("its topic", partial(self._report_topic, spec, its), patiently)

    def _report_topic(self, spec: TopicTable, its: Reached) -> None:
        instance, now = self.context.instance, its.watermarks
        before = last_reports(instance, [spec]).get(topic_key(spec))
        rate = before.rate(sum(now.end.values()), time.time()) if before else None
        instance.report_runless_asset_event(topic_materialization(spec, now, its.lag, rate))

    def _attempt(self, what: str, tell: Callable[[], T], patiently: bool) -> T | None:
        """Return the result of an action; None after a temporary error, since the commits are published anyway."""
        policy = self.connections.retry if patiently else RetryPolicy(attempts=1)
        try:
            return call(policy, self.context.log.warning, f"Topic {self.spec.topic}, reporting {what}", tell)
        except Exception as error:
            if not is_transient(error):
                raise
            self.context.log.warning(
                f"Topic {self.spec.topic}: all commits are published, but {what} can't be reported now: "
                f"{headline(error)}"
            )
            return None

    def _by_partition(self, report: RunReport, table: Table | None) -> dict[str, dict[str, Any]]:
        times, parts = last_commits(table), self._by_key(report)
        return {key: partition_metadata(part, times.get((part.topic, part.partition))) for key, part in parts.items()}

    def _partitions(
        self, report: RunReport, table: Table | None, keys: Collection[str] | None = None
    ) -> Iterator[dg.AssetMaterialization]:
        for key, metadata in self._by_partition(report, table).items():
            if keys is None or key in keys:
                yield dg.AssetMaterialization(table_key(self.spec), partition=key, metadata=metadata)

    def _of_the_table(self, report: RunReport, table: Table | None) -> dg.AssetMaterialization:
        about = self._whole(report, table)
        if self.keys is None or BACKFILL_TAG not in self.context.run.tags:
            return dg.AssetMaterialization(table_key(self.spec), metadata=about)
        own = {key: figures for key, figures in self._by_partition(report, table).items() if key in self.keys}
        last = next(reversed(own), self.context.partition_keys[-1])
        return dg.AssetMaterialization(table_key(self.spec), partition=last, metadata={**about, **own.get(last, {})})

    def _whole(self, report: RunReport, table: Table | None) -> dict[str, Any]:
        figures = figures_metadata(report.figures())
        if not self.is_side and self.spec.has_routes:
            figures |= _of_routes(report, [side.spec for side in self.sides])
        about = table_metadata(report, table, self.connections.catalog, self.spec)
        return {**about, **figures}

    def _checks(self, findings: Sequence[Finding], table: Table | None) -> list[dg.AssetCheckResult]:
        more = {
            "row_count": figures_metadata(self.so_far.figures)
            | ({"rows_in_table": live_row_count(table)} if table else {}),
            **history_metadata(table),
        }
        key = table_key(self.spec)
        every = with_all_rules(findings, self.spec.named_rules)
        return [check_result(result, key, more.get(result.check)) for result in every]

    @property
    def _blocking(self) -> frozenset[str]:
        return GATES | {rule.check for rule in self.spec.named_rules if rule.on_failure != "warn"}


def _last_result(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """Return the last result of a check, as a new one; None if there is none, or a run is about to give one."""
    record = instance.get_latest_asset_check_evaluation_record(key)
    last = record.event.asset_check_evaluation if record and record.event else None
    return last and evaluation(last)


def _of_routes(report: RunReport, tables: Sequence[TopicTable]) -> dict[str, Any]:
    """Return what a run did to the tables of a topic's routes, for the page of the topic's own table."""
    known = [table_spec.identifier for table_spec in tables]
    made = sorted(table for table, its in report.others.items() if its.commits and table not in known)
    found = {identifier: report.of(identifier) for identifier in (*known, *made)}
    lines = [
        (code(".".join(table)), f"{its.total('rows'):,}", f"{its.total('dead_letters'):,}")
        for table, its in found.items()
    ]
    # Dagster cuts the table off where its cells are wide.
    text = [markdown_table(("table", "rows", "dead letters"), lines)]
    if made:
        names = ", ".join(code(".".join(identifier)) for identifier in made)
        text.append(f"No asset yet: {names}. Run `kafka-lake topics refresh`.")
    without = report.total("without_table")
    return {
        "records_of_other_tables": sum(its.total("records") for its in found.values()),
        "records_ignored": report.total("ignored"),
        **({"records_without_a_table": without} if without else {}),
        "routes": dg.MetadataValue.md("\n\n".join(text)),
    }
