"""The step of a topic: commits of its tables, alone or in turn with other topics of the run."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import dagster as dg

from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.continuous import ContinuousRun, Feed, Stop, feed_of
from kafka_lake.ingest.plan import is_time
from kafka_lake.ingest.published import examine, examine_rules
from kafka_lake.ingest.report import Reached, RunReport
from kafka_lake.ingest.run import each_topic, ingest, logged_run, replay
from kafka_lake.ingest.topic_runner import LeftBehindError
from kafka_lake.orchestration.assets import IngestConfig, Mode
from kafka_lake.orchestration.check_results import check_result
from kafka_lake.orchestration.keys import CATCH_UP_TAG, CONTINUOUS_TAG, of_cluster, table_key
from kafka_lake.orchestration.reporting import Event, Reporter
from kafka_lake.orchestration.resources import KafkaResource, connections_of
from kafka_lake.orchestration.runs import yields_slot
from kafka_lake.runtime.commit import CHECKS, CheckFailedError, Commit
from kafka_lake.runtime.context import Connections, Observer, call
from kafka_lake.runtime.plan import Plan, ReplayRange
from kafka_lake.spec.continuous import Continuous
from kafka_lake.spec.topic_table import TopicTable


@dataclass
class RunTopics:
    """The topics of a run that catches up, whose steps run in one process, one after the other.

    Args:
        done: Topics whose steps have succeeded, and where these ended.
    """

    connections: Connections
    done: list[tuple[Reporter, Reached]] = field(default_factory=list)


def fill_tables(
    context: dg.AssetExecutionContext, spec: TopicTable, continuous: Continuous | None, config: IngestConfig
) -> Iterator[Any]:
    """Run the step of a topic: bring its tables up to date, replace rows, or evaluate checks alone."""
    connect = partial(connections_of, context.resources, spec.cluster)
    catch_up = None if spec.topics else config.catch_up(context.run_id)
    if not context.selected_asset_keys:
        yield from check_published(context, spec, connect())
    elif continuous is not None and config.mode is Mode.incremental:
        yield from run_continuously(Reporter(context, spec, connect()), continuous)
    elif catch_up is not None:
        kafka: KafkaResource = getattr(context.resources, of_cluster("kafka", spec.cluster))
        run = kafka.once_a_run(lambda: RunTopics(connect()))
        reporter = Reporter(context, spec, run.connections)
        report = yield from materialize(reporter, config)
        run.done.append((reporter, report.reached[spec.topic]))
        if len(run.done) == config.topics:
            yield from go_on_together(context, run, catch_up)
    else:
        yield from materialize(Reporter(context, spec, connect()), config)


def materialize(reporter: Reporter, config: IngestConfig) -> Generator[Any, None, RunReport]:
    """Bring a topic's tables up to date, or replace rows, and yield Dagster's events."""
    context, connections = reporter.context, reporter.connections

    def tell(commit: Commit, plan: Plan) -> None:
        context.log.info(
            f"Snapshot {commit.snapshot}, topic {commit.topic}: {commit.rows} rows, {commit.dead_letters} dead "
            f"letters, {commit.tombstones} tombstones from {commit.records} records; "
            f"{reporter.committed(plan) or f'{plan.remaining} offsets remain'}."
        )

    def run(topic: TopicTable, partitions: frozenset[int] | None) -> RunReport:
        if config.mode is Mode.replace:
            replay_range = ReplayRange(config.start, config.end, partitions, config.keep_missing)
            return replay(topic, connections, run_id=context.run_id, replay_range=replay_range, observer=observer)
        return ingest(topic, connections, run_id=context.run_id, partitions=partitions, observer=observer)

    observer = Observer(step_done=context.log.debug, on_commit=tell, warn=context.log.warning)
    _refuse_offsets(config, reporter)
    try:
        report = each_topic(reporter.chosen, context.run_id, run, context.log.warning)
    except LeftBehindError as error:
        if error.report.has_commits:
            yield from reporter.interval(error.report, set())
        yield from reporter.refused(error)
        raise
    except CheckFailedError as error:
        yield from reporter.refused(error)
        raise
    yield from reporter.end(report)
    return report


def _refuse_offsets(config: IngestConfig, reporter: Reporter) -> None:
    """Refuse to read several topics again from the same offset on."""
    given = [config.start, config.end] if config.mode is Mode.replace and len(reporter.chosen) > 1 else []
    if offsets := [text for text in given if text[:1].isdigit() and not is_time(text)]:
        topics = [topic_spec.topic for topic_spec, _ in reporter.chosen]
        raise ConfigurationError(
            f"Table {'.'.join(reporter.spec.identifier)}: {offsets[0]} is an offset, and partitions of "
            f"{len(topics)} topics are chosen: {', '.join(topics)}.",
            "Choose partitions of one topic, or give a time.",
        )


def observer_of(reporter: Reporter) -> Observer:
    """Return the callback that logs a run that continues."""

    def tell(_: Commit, plan: Plan) -> None:
        # What the log is told goes to the event log, where a line for each commit would be too many: a backlog that
        # takes several of them has such lines.
        if progress := reporter.committed(plan):
            reporter.context.log.info(f"{progress}.")

    return Observer(on_commit=tell, warn=reporter.context.log.warning)


def run_continuously(reporter: Reporter, settings: Continuous) -> Iterator[Any]:
    """Let a run of one topic go on for hours, and yield Dagster's events meanwhile and at the end."""
    context, stop = reporter.context, Stop()
    with logged_run(reporter.spec, reporter.connections, context.run_id, observer_of(reporter)) as whole:
        feed = feed_of(whole, stop, reporter.partitions)
        run = ContinuousRun([feed], settings, stop)
        # Until all have one, Dagster takes what the run has not materialized yet for in progress.
        silent = set(feed.partitions)
        try:
            for _, report in tagged([reporter], run, CONTINUOUS_TAG):
                if run.ended is not None and not stop.requested:
                    yield from reporter.end(report)
                elif report.has_commits:
                    yield from reporter.interval(report, silent)
                    silent.clear()
        except Exception as error:
            report = error.report if isinstance(error, LeftBehindError) else feed.runner.report()
            yield from _despite_an_error(reporter, report, silent)
            yield from reporter.refused(error)
            raise


def go_on_together(context: dg.AssetExecutionContext, topics: RunTopics, settings: Continuous) -> Iterator[Event]:
    """Let a run go on with all of its topics after the last step, and yield Dagster's events.

    If a step has failed, or runs in another process, no topic goes on: the sensor requests the next run.
    """
    stop, feeds = Stop(), list[Feed]()
    with ExitStack() as runs:
        for reporter, reached in topics.done:
            log = logged_run(reporter.spec, topics.connections, context.run_id, observer_of(reporter))
            partitions = reporter.partitions or reached.watermarks.partitions
            feeds.append(feed_of(runs.enter_context(log), stop, partitions, reached.position))
        others_wait = partial(yields_slot, context.instance, context.run_id)
        run = ContinuousRun(feeds, settings, stop, others_wait)
        for reporter, report in tagged([reporter for reporter, _ in topics.done], run, CATCH_UP_TAG):
            yield from reporter.interval(report, set())


def tagged(reporters: Sequence[Reporter], run: ContinuousRun, name: str) -> Iterator[tuple[Reporter, RunReport]]:
    """Run, tag the run with its end and its commits, and yield the report of each topic in intervals and at the end."""
    context = reporters[0].context
    end = datetime.now(UTC) + timedelta(seconds=run.settings.time_limit)

    def tag(new: int) -> None:
        commits = new + sum(reporter.so_far.figures.commits for reporter in reporters)
        context.instance.add_run_tags(context.run_id, {name: continues_until(end, commits)})

    call(reporters[0].connections.retry, context.log.warning, "Tagging the run", partial(tag, 0))
    for number, report in run.reports():
        context.log.info(
            f"{len(report.commits)} commits, {report.total('rows')} rows, "
            f"{report.total('dead_letters')} dead letters in {report.seconds:.0f} s."
        )
        with suppress(Exception):
            # It is for people alone, and the next report makes up for it.
            tag(len(report.commits))
        yield reporters[number], report
    context.log.info(f"The run ends: {run.ended}.")
    if run.stop.requested:
        raise dg.DagsterExecutionInterruptedError("The run was stopped.")


def continues_until(end: datetime, commits: int) -> str:
    """Return what the page of all runs shows of a run that continues.

    >>> continues_until(datetime(2026, 11, 26, 16, 35), 12)
    'until 16:35Z, 12 commits'
    """
    return f"until {end:%H:%M}Z, {commits:,} commits"


def _despite_an_error(reporter: Reporter, report: RunReport, silent: set[int]) -> list[Event]:
    try:
        return list(reporter.interval(report, silent)) if report.has_commits else []
    except Exception as error:
        # What failed the run, a catalog that is gone for instance, must not be hidden by what it fails here.
        reporter.context.log.warning(f"{len(report.commits)} commits are published and can't be reported: {error}")
        return []


def check_published(
    context: dg.AssetExecutionContext, spec: TopicTable, connections: Connections
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of the selected checks on what is published."""
    for table in spec.tables:
        selected = {key.name for key in context.selected_asset_check_keys if key.asset_key == table_key(table)}
        if table is not spec and selected and connections.catalog.table(table.identifier) is None:
            explanation = "No table yet: no record matched it."
            for name in sorted(selected):
                yield dg.AssetCheckResult(
                    check_name=name, asset_key=table_key(table), passed=True, description=explanation
                )
            continue
        findings = examine(table, connections.catalog, connections.cluster) if selected & set(CHECKS) else []
        rules = [rule for rule in table.named_rules if rule.check in selected]
        findings += examine_rules(table, connections, rules)
        for finding in findings:
            if finding.check in selected:
                yield check_result(finding, table_key(table))
