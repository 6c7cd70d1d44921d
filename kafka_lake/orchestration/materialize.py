"""The step of a topic: commits of its tables, alone or in turn with other topics of the run."""

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import dagster as dg

from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.continuous.run import ContinuousRun, Round, Stop, continuous_run
from kafka_lake.ingest.plan.append import is_time
from kafka_lake.ingest.published import examine, examine_rules
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.run import each_topic, ingest, logged_run, replay
from kafka_lake.ingest.topic_runner import AnyRunner, LeftBehindError, runner_of
from kafka_lake.orchestration.assets import IngestConfig, Mode
from kafka_lake.orchestration.check_results import check_result
from kafka_lake.orchestration.keys import CATCH_UP_TAG, CONTINUOUS_TAG, of_cluster, table_key
from kafka_lake.orchestration.reporting import Event, Reporter
from kafka_lake.orchestration.resources import KafkaResource, connections_of, kept_session
from kafka_lake.orchestration.runs import yields_slot
from kafka_lake.runtime.commit import CHECKS, Commit, GateFailedError
from kafka_lake.runtime.context import Connections, Observer, call
from kafka_lake.runtime.plan import Plan, ReplayRange
from kafka_lake.spec.continuous import Continuous
from kafka_lake.spec.topic_table import TopicTable


def fill_tables(
    context: dg.AssetExecutionContext, spec: TopicTable, continuous: Continuous | None, config: IngestConfig
) -> Iterator[Any]:
    """Run the step of a topic: bring its tables up to date, replace rows, or evaluate checks alone."""
    connect = partial(connections_of, context.resources, spec.cluster, kept_session(spec))
    catch_up = config.catch_up(context.run_id)
    together = None
    if catch_up and config.topics > 1:
        kafka: KafkaResource = getattr(context.resources, of_cluster("kafka", spec.cluster))
        together = kafka.once_a_run(lambda: TopicsOfARun(connect()))
    connections = together.connections if together else connect()
    if not context.selected_asset_keys:
        yield from check_published(context, spec, connections)
    elif continuous is not None and config.mode is Mode.incremental:
        reporter = Reporter(context, spec, connections)
        with logged_run(spec, connections, context.run_id, observer_of(reporter)) as whole:
            yield from run_on(reporter, continuous_run(whole, continuous, reporter.partitions))
    elif catch_up and together:
        reporter = Reporter(context, spec, connections)
        report = yield from materialize(reporter, config)
        together.done.append((reporter, report))
        yield from continue_together(context, together, catch_up, config.topics)
    elif not spec.topics and catch_up:
        reporter = Reporter(context, spec, connections)
        others_wait = partial(yields_slot, context.instance, context.run_id)
        with logged_run(spec, connections, context.run_id, observer_of(reporter)) as whole:
            run = continuous_run(whole, catch_up, reporter.partitions, catch_up=True, others_wait=others_wait)
            yield from run_on(reporter, run)
    else:
        yield from materialize(Reporter(context, spec, connections), config)


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
        if error.report.commits or error.report.others:
            yield from reporter.interval(error.report, set())
        yield from reporter.refused(error)
        raise
    except GateFailedError as error:
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


def run_on(reporter: Reporter, run: ContinuousRun) -> Iterator[Any]:
    """Let a run go on for its time, and yield Dagster's events meanwhile and in the end."""
    context = reporter.context
    end = datetime.now(UTC) + timedelta(seconds=run.settings.time_limit)
    policy, name = reporter.connections.retry, CONTINUOUS_TAG if run.target is None else CATCH_UP_TAG
    tag = partial(tag_run, context.instance, context.run_id, end, name=name)
    call(policy, context.log.warning, "Tagging the run", lambda: tag(0))
    # Until all have one, Dagster takes what the run has not materialized yet for in progress.
    silent = set(run.partitions)
    try:
        for report in run.reports():
            context.log.info(
                f"{len(report.commits)} commits, {report.total('rows')} rows, "
                f"{report.total('dead_letters')} dead letters in {report.seconds:.0f} s."
            )
            with suppress(Exception):
                # It is for people alone, and the next report makes up for it.
                tag(reporter.so_far.figures.commits + len(report.commits))
            if run.ended is None:
                yield from reporter.interval(report, silent)
                silent.clear()
    except Exception as error:
        if run.runner.commits:
            yield from _despite_an_error(reporter, run.runner.report(), silent)
        yield from reporter.refused(error)
        raise
    context.log.info(f"The run ends: {run.ended}.")
    if run.stop.requested:
        if report.commits:
            yield from reporter.interval(report, silent)
        raise dg.DagsterExecutionInterruptedError("The run was stopped.")
    yield from reporter.end(report)


def tag_run(instance: dg.DagsterInstance, run_id: str, end: datetime, commits: int, name: str = CATCH_UP_TAG) -> None:
    """Tag a run that continues."""
    instance.add_run_tags(run_id, {name: continues_until(end, commits)})


def continues_until(end: datetime, commits: int) -> str:
    """Return what the page of all runs shows of a run that continues.

    >>> continues_until(datetime(2026, 11, 26, 16, 35), 12)
    'until 16:35Z, 12 commits'
    """
    return f"until {end:%H:%M}Z, {commits:,} commits"


def _despite_an_error(reporter: Reporter, report: RunReport, silent: set[int]) -> list[Event]:
    try:
        return list(reporter.interval(report, silent))
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
            explanation = "There is no table yet: no record was for it."
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


@dataclass
class TopicsOfARun:
    """What the steps of a run over several topics share: they run in one process, one after the other.

    Args:
        done: Topics whose steps have succeeded, and what these did.
    """

    connections: Connections
    done: list[tuple[Reporter, RunReport]] = field(default_factory=list)


def continue_together(
    context: dg.AssetExecutionContext, shared: TopicsOfARun, catch_up: Continuous, topics: int
) -> Iterator[Event]:
    """Continue all topics of a run if this step is the last one; give Dagster's events.

    If a step has failed, or runs in another process, no topic continues: the sensor requests the next run.
    """
    if len(shared.done) < topics:
        return
    instance, end = context.instance, datetime.now(UTC) + timedelta(seconds=catch_up.time_limit)
    began, commits, stop = time.monotonic(), 0, Stop()
    with ExitStack() as runs:
        runners = [_runner(runs, context.run_id, *done, stop=stop) for done in shared.done]
        round_ = Round(
            dict(enumerate(runners)),
            catch_up,
            watermarks=shared.connections.cluster.watermarks,
            stop=stop,
            others_wait=partial(yields_slot, instance, context.run_id),
        )
        tag_run(instance, context.run_id, end, commits)
        for number, report in round_.reports():
            commits += len(report.commits)
            tag_run(instance, context.run_id, end, commits)
            yield from shared.done[number][0].interval(report, set())
    context.log.info(f"The run ends after {commits} more commits in {time.monotonic() - began:.0f} s: {round_.ended}.")
    if stop.requested:
        raise dg.DagsterExecutionInterruptedError("The run was stopped.")


def _runner(runs: ExitStack, run_id: str, reporter: Reporter, report: RunReport, stop: Stop) -> AnyRunner:
    observer = observer_of(reporter)
    context = runs.enter_context(logged_run(reporter.spec, reporter.connections, run_id, observer))
    runner = runner_of(replace(context, sleep=stop.sleep))
    runner.resume_at(report.reached[reporter.spec.topic].position)
    return runner
