"""Dagster's runs of topics: which are in flight, which failed lately, and whether one yields its slot."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from itertools import takewhile

import dagster as dg
from pydantic import TypeAdapter

from kafka_lake.common.files import dagster_home
from kafka_lake.orchestration.heartbeat import end_dead
from kafka_lake.orchestration.keys import MEMBER_TAG, SHARED_TAG, YIELD_TAG, member_tag, op_name, table_key, work_name
from kafka_lake.spec.topic_table import TopicTable

WORK_TAG = ".dagster/kafka_lake_work"
"""Tag of runs that the sensor requests: a fingerprint of the work. Dagster's pages don't show tags with this prefix."""

SETTINGS_TAG = ".dagster/kafka_lake_settings"
"""Tag of runs that the sensor requests: a fingerprint of each topic's settings and this package's version, as JSON."""

IN_FLIGHT = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]

_STARTING = (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING)
_AS_JSON = TypeAdapter(TopicTable)
_FAILED = ("FAILURE", "IN_PROGRESS")
_COUNTED_FAILURES = 12
FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 1800.0
_LONGEST_BESIDE_OTHERS = 60.0
_CLOCKS_DIFFER = 3600.0


@dataclass(frozen=True)
class InFlight:
    """The queued and running runs of this code location.

    Args:
        topics: The id of the run that fills a topic's tables, by `work_name`.
        pools: The pools that runs hold or wait for.
        shared: The ids of the cluster's shared runs, oldest first.
        starting: Whether a shared run is starting.
        yielding: Whether a shared run is tagged to end.
        outdated: The ids of runs with outdated settings.
    """

    topics: Mapping[str, str]
    pools: frozenset[str]
    shared: tuple[str, ...]
    starting: bool
    yielding: bool
    outdated: tuple[str, ...] = ()


def in_flight(context: dg.SensorEvaluationContext, specs: Sequence[TopicTable]) -> InFlight:
    """Return the runs in flight; ends runs that died with their process."""
    # By the selected assets, not by tags: runs launched in the UI have none of these tags.
    every = context.instance.get_runs(dg.RunsFilter(statuses=IN_FLIGHT))
    own = list(_of_this_location(context, end_dead(context.instance, every)))
    stuck = _cancel_stuck(context.instance, own)
    runs = [run for run in own if run.run_id not in stuck]
    making = {key: run.run_id for run in runs for key in run.asset_selection or ()}
    topics: dict[str, str] = {}
    for spec in specs:
        name = work_name(spec)
        keys = [making[key] for key in map(table_key, spec.tables) if key in making]
        tagged = [run.run_id for run in runs if run.tags.get(member_tag(name)) == name]
        if ids := [*tagged, *keys]:
            topics[name] = ids[0]
    # Code locations share pools of the same name.
    pools = {pool for run in every if run.run_id not in stuck for pool in _pools(run)}
    cluster = specs[0].cluster or "" if specs else ""
    shared = [run for run in reversed(runs) if run.tags.get(SHARED_TAG) == cluster]
    current = {work_name(spec): settings_fingerprint(spec) for spec in specs}
    outdated = [
        run.run_id
        for run in runs
        if YIELD_TAG not in run.tags and any(current.get(name, used) != used for name, used in settings_in(run).items())
    ]
    return InFlight(
        topics,
        frozenset(pools),
        tuple(run.run_id for run in shared),
        starting=any(run.status in _STARTING for run in shared),
        yielding=any(YIELD_TAG in run.tags for run in shared),
        outdated=tuple(outdated),
    )


def _pools(run: dg.DagsterRun) -> frozenset[str]:
    return frozenset((run.run_op_concurrency and run.run_op_concurrency.all_pools) or ())


def _cancel_stuck(instance: dg.DagsterInstance, runs: Sequence[dg.DagsterRun]) -> set[str]:
    """Cancel shared runs that wait for the pool of one of their topics.

    A user launched a run of that topic after the tick. The other topics are due again at once.
    """
    queued = dg.DagsterRunStatus.QUEUED
    taken = {pool for run in runs if run.status != queued for pool in _pools(run)}
    stuck = [
        run
        for run in runs
        if run.status == queued and SHARED_TAG in run.tags and len(_pools(run)) > 1 and _pools(run) & taken
    ]
    for run in stuck:
        instance.report_run_canceled(run, "Another run fills a table of this one. The sensor requests the others.")
    return {run.run_id for run in stuck}


def failed_lately(context: dg.SensorEvaluationContext, specs: Sequence[TopicTable]) -> set[str]:
    """Return the topics with a recently failed run, by one query for all runs, and one for each failed shared run."""
    since = datetime.fromtimestamp(time.time() - _LONGEST_PAUSE - _CLOCKS_DIFFER, UTC)
    failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], updated_after=since)
    runs = list(_of_this_location(context, context.instance.get_runs(failed)))
    names = {work_name(spec): spec for spec in specs}
    return {
        name
        for run in runs
        for name, spec in names.items()
        if run.tags.get(member_tag(name)) == name and topic_failed(context.instance, run, spec)
    }


def topic_failed(instance: dg.DagsterInstance, run: dg.DagsterRun, spec: TopicTable) -> bool:
    """Return whether a run failed in the step of a topic, or before any step.

    The step during which the process died counts as failed; the steps after it don't.
    """
    if run.status != dg.DagsterRunStatus.FAILURE:
        return False
    if sum(key.startswith(MEMBER_TAG) for key in run.tags) == 1:
        return True
    steps = {step.step_key: step.status for step in instance.get_run_step_stats(run.run_id)}
    status = steps.get(op_name(spec))
    return not steps or (status is not None and status.value in _FAILED)


def pause_after(runs: int, longest: float = _LONGEST_PAUSE) -> float:
    """Return how many seconds to wait after consecutive runs without success: twice as long after each.

    >>> [pause_after(runs) for runs in (1, 2, 3, 1000)]
    [5.0, 10.0, 20.0, 1800.0]
    """
    return float(min(FIRST_PAUSE * 2 ** min(runs - 1, 20), longest))


@dataclass(frozen=True)
class Failures:
    """Consecutive failures of a topic.

    Args:
        until: When the topic may be tried again, in seconds since the epoch.
    """

    count: int = 0
    until: float = 0.0


def failures(context: dg.SensorEvaluationContext, spec: TopicTable) -> Failures:
    """Return the consecutive failures of a topic with its current settings."""
    name, settings = work_name(spec), settings_fingerprint(spec)
    records = context.instance.get_run_records(dg.RunsFilter(tags={member_tag(name): name}), limit=_COUNTED_FAILURES)
    here = {run.run_id for run in _of_this_location(context, [record.dagster_run for record in records])}
    failed = []
    for record in records:
        run = record.dagster_run
        if run.run_id not in here:
            continue
        if settings_in(run).get(name) != settings or not topic_failed(context.instance, run, spec):
            break
        failed.append(record)
    if not failed or failed[0].end_time is None:
        return Failures()
    # One table, or one topic, that can't go on fails the run; the others wait for the next run no longer than this.
    longest = _LONGEST_BESIDE_OTHERS if spec.has_routes or spec.topics else _LONGEST_PAUSE
    return Failures(len(failed), failed[0].end_time + pause_after(len(failed), longest))


def settings_in(run: dg.DagsterRun) -> dict[str, str]:
    """Return the fingerprint of each topic's settings in a run, by `work_name`."""
    fingerprints: dict[str, str] = json.loads(run.tags.get(SETTINGS_TAG, "{}"))
    return fingerprints


def settings_fingerprint(spec: TopicTable) -> str:
    """Return a fingerprint of a table's settings; topics that share a table have the same."""
    settings = _AS_JSON.dump_json(spec, exclude={"topic"}) + version("kafka_lake").encode()
    return sha256(settings).hexdigest()[:16]


def attempts(context: dg.SensorEvaluationContext, fingerprints: Sequence[str]) -> Counter[str]:
    """Return the number of runs requested for the same work, by fingerprint: one query for all."""
    if not fingerprints:
        return Counter()
    of_work = dg.RunsFilter(tags={WORK_TAG: list(fingerprints)})
    return Counter(run.tags[WORK_TAG] for run in context.instance.get_runs(of_work))


def _of_this_location(context: dg.SensorEvaluationContext, runs: Iterable[dg.DagsterRun]) -> Iterator[dg.DagsterRun]:
    """Give the runs of this code location, and runs without a code location."""
    here = context.code_location_origin
    for run in runs:
        origin = run.remote_job_origin
        if here is None or origin is None or origin.location_name == here.location_name:
            yield run


_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


def dagster_at_hand() -> dg.DagsterInstance:
    """Return the Dagster instance of ``DAGSTER_HOME``, or that of this deployment's folder."""
    if "DAGSTER_HOME" in os.environ:
        return dg.DagsterInstance.get()
    return dg.DagsterInstance.from_config(str(dagster_home()))


@dataclass(frozen=True)
class FailedRun:
    """The last finished run of a topic, which failed.

    Args:
        failed_at: ISO 8601 in UTC; empty if Dagster doesn't say.
    """

    run_id: str
    failed_at: str
    error: str

    def line(self, topic: str) -> str:
        """Return the message for users."""
        moment = self.failed_at or "an unknown time"
        return f"The last run of topic {topic}, {self.run_id[:8]}, failed at {moment}: {self.error}"


def failed_runs(specs: Iterable[TopicTable]) -> dict[str, FailedRun]:
    """Return the last finished runs that failed, by `work_name`; none if Dagster's storage isn't available."""
    by_name = {work_name(spec): spec for spec in specs}
    try:
        with dagster_at_hand() as instance:
            runs = {name: _failed(instance, name, spec) for name, spec in by_name.items()}
    except Exception:
        # Callers show positions and lags all the same.
        return {}
    return {name: run for name, run in runs.items() if run is not None}


def _failed(instance: dg.DagsterInstance, name: str, spec: TopicTable) -> FailedRun | None:
    last = instance.get_run_records(dg.RunsFilter(statuses=_ENDED, tags={member_tag(name): name}), limit=1)
    if not last or not topic_failed(instance, last[0].dagster_run, spec):
        return None
    run, ended = last[0].dagster_run, last[0].end_time
    moment = datetime.fromtimestamp(ended, UTC).isoformat(timespec="seconds") if ended else ""
    why = "see its page in Dagster."
    failed = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    # A run of one topic may have steps that check its table, too.
    for event in [event for event in failed if event.step_key == op_name(spec)] or failed:
        data = event.get_dagster_event().step_failure_data
        if data.user_failure_data is not None and data.user_failure_data.description:
            why = data.user_failure_data.description
        elif data.error is not None:
            error = data.error
            while error.cause is not None:
                error = error.cause
            why = error.message.strip()
    return FailedRun(run.run_id, moment, why)


_NEXT_SECONDS = 5.0
_QUEUED_LOOKED_AT = 20
_IN_PROGRESS = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def yields_slot(instance: dg.DagsterInstance, run_id: str, clock: Callable[[], float] = time.time) -> bool:
    """Return whether a run has to end for another one.

    It has to at once if the sensor has tagged it, or a queued run fills one of its tables. If Dagster's queue is full,
    the run that was launched first ends; five seconds later the second one as well, and so on, since a run may be in a
    long commit. While Dagster's storage isn't available, no run has to end.
    """
    try:
        return _yields_slot(instance, run_id, clock)
    except Exception as error:
        from kafka_lake.error_classification import is_transient

        if not is_transient(error):
            raise
        return False


def _yields_slot(instance: dg.DagsterInstance, run_id: str, clock: Callable[[], float]) -> bool:
    run = instance.get_run_by_id(run_id)
    if run is None or YIELD_TAG in run.tags:
        return run is not None
    queued = instance.get_run_records(
        dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]), limit=_QUEUED_LOOKED_AT, ascending=True
    )
    if not queued:
        return False
    tables = run.asset_selection or frozenset()
    if any(not tables.isdisjoint(record.dagster_run.asset_selection or ()) for record in queued):
        return True
    queue = instance.get_concurrency_config().run_queue_config
    running = instance.get_run_records(dg.RunsFilter(statuses=_IN_PROGRESS), ascending=True)
    # Below the limit, a queued run starts in a moment, or waits for something else.
    if queue is None or not 0 <= queue.max_concurrent_runs <= len(running):
        return False
    before = len(list(takewhile(lambda record: record.dagster_run.run_id != run_id, running)))
    # The database's clock may be ahead of ours.
    waited = max(0.0, clock() - queued[0].create_timestamp.timestamp())
    return waited >= _NEXT_SECONDS * before
