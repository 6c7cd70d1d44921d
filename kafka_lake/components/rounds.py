"""A run of several topics: each has a step of its own, and after the last step all of them go on together."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

import dagster as dg

from kafka_lake.components.materialize import observer_of, tag_run
from kafka_lake.components.reporting import Event, Reporter
from kafka_lake.components.yield_slot import yields_slot
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.continuous.round import Round
from kafka_lake.ingest.continuous.run import Stop
from kafka_lake.ingest.continuous.schedule import Continuous
from kafka_lake.ingest.jobs.append import Append
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.run import logged_run
from kafka_lake.ingest.runner import Runner
from kafka_lake.ingest.topic_runner import TopicRunner, runner_of


@dataclass
class TopicsOfARun:
    """What the steps of a run over several topics share. They run in one process, one after the other.

    Args:
        done: The topics whose steps have done what the run was asked for, and what they did.
    """

    connections: Connections
    done: list[tuple[Reporter, RunReport]] = field(default_factory=list)


_runs: dict[str, TopicsOfARun] = {}


def topics_of_run(run_id: str, connect: Callable[[], Connections]) -> TopicsOfARun:
    """Return what the steps of a run share.

    Args:
        connect: Makes the connections, for the first step.
    """
    if run_id not in _runs:
        _runs[run_id] = TopicsOfARun(connect())
    return _runs[run_id]


def go_round(context: dg.AssetExecutionContext, catch_up: Continuous, topics: int) -> Iterator[Event]:
    """Go on with all topics of a run, if this step is the last; give what Dagster is told meanwhile.

    Where a step has failed, or is another process's, none goes on: the sensor asks for the next run.

    Args:
        context: Of the step, which has done what it was asked for.
        catch_up: How long the run goes on.
        topics: How many the run has.

    Raises:
        DagsterExecutionInterruptedError: If the run was asked to stop.
    """
    if len(_runs[context.run_id].done) < topics:
        return
    shared = _runs.pop(context.run_id)
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
        raise dg.DagsterExecutionInterruptedError("The run was asked to stop.")


def _runner(runs: ExitStack, run_id: str, reporter: Reporter, report: RunReport, stop: Stop) -> Runner | TopicRunner:
    observer = observer_of(reporter)
    context = runs.enter_context(logged_run(reporter.spec, reporter.connections, run_id, observer))
    runner = runner_of(replace(context, sleep=stop.sleep), Append)
    if isinstance(runner, Runner):
        runner.position = report.reached[reporter.spec.topic].position
    return runner
