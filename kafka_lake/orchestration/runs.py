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
from kafka_lake.error_classification import is_transient
from kafka_lake.orchestration.heartbeat import end_dead
from kafka_lake.orchestration.keys import MEMBER_TAG, SHARED_TAG, YIELD_TAG, member_tag, op_name, table_key, work_name
from kafka_lake.spec.topic_table import TopicTable

WORK_TAG = ".dagster/kafka_lake_work"
"""Tag of runs that the sensor asks for: names the work. Dagster's pages don't show tags with this prefix."""

SETTINGS_TAG = ".dagster/kafka_lake_settings"
"""Tag of runs that the sensor asks for: names the settings of each topic, and the version of this package, as JSON."""

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
    """The runs of this code location that are queued or going on.

    Args:
        topics: The runs that fill tables of topics, by `work_name`, with their ids.
        pools: The pools that other runs have or wait for.
        shared: The ids of the runs that a cluster's topics share, the oldest first.
        yielding: Whether one of these has been asked to end.
        outdated: The ids of runs that work by other settings than the current ones.
    """

    topics: Mapping[str, str]
    pools: frozenset[str]
    shared: tuple[str, ...]
    starting: bool
    yielding: bool
    outdated: tuple[str, ...] = ()


def in_flight(context: dg.SensorEvaluationContext, specs: Sequence[TopicTable]) -> InFlight:
    """Return the runs in flight; ends runs that died with their process."""
    # By what a run makes, not by who asked for it: runs launched in the UI carry none of our tags.
    found = context.instance.get_runs(dg.RunsFilter(statuses=IN_FLIGHT))
    ours = list(_of_this_location(context, end_dead(context.instance, found)))
    stuck = _cancel_stuck(context.instance, ours)
    runs = [run for run in ours if run.run_id not in stuck]
    making = {key: run.run_id for run in runs for key in run.asset_selection or ()}
    topics: dict[str, str] = {}
    for spec in specs:
        name = work_name(spec)
        keys = [making[key] for key in map(table_key, spec.tables) if key in making]
        tagged = [run.run_id for run in runs if run.tags.get(member_tag(name)) == name]
        if ids := [*tagged, *keys]:
            topics[name] = ids[0]
    # Pools of one name are one pool, whichever code location's runs want it.
    pools = {pool for run in found if run.run_id not in stuck for pool in _pools(run)}
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
    """Cancel shared runs that wait for the pool of one of their topics, which would keep the others waiting.

    A run for that topic was launched after the sensor had looked. The topics are due again at once.
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
    """Return the topics whose last runs may have failed so lately that they are left alone: one query for all runs.

    Of a run with several topics, another query tells which of them failed.
    """
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
    """Return whether a run failed by the step of a topic, or before any step.

    The step during which a run's process died counts as failed; those that it didn't come to don't.
    """
    if run.status != dg.DagsterRunStatus.FAILURE:
        return False
    if sum(key.startswith(MEMBER_TAG) for key in run.tags) == 1:
        return True
    steps = {each.step_key: each.status for each in instance.get_run_step_stats(run.run_id)}
    its = steps.get(op_name(spec))
    return not steps or (its is not None and its.value in _FAILED)


def pause_after(runs: int, longest: float = _LONGEST_PAUSE) -> float:
    """Return how many seconds to wait after consecutive runs without success: twice as long after each.

    >>> [pause_after(runs) for runs in (1, 2, 3, 1000)]
    [5.0, 10.0, 20.0, 1800.0]
    """
    return float(min(FIRST_PAUSE * 2 ** min(runs - 1, 20), longest))


@dataclass(frozen=True)
class Failures:
    """Failures of a topic in a row.

    Args:
        until: When the topic may be tried again, in seconds since the epoch.
    """

    count: int = 0
    until: float = 0.0


def failures(context: dg.SensorEvaluationContext, spec: TopicTable) -> Failures:
    """Return how often the last runs of a topic failed: the pause after each is twice as long.

    Failures by other settings don't count: what was wrong may be mended.
    """
    name, settings = work_name(spec), settings_fingerprint(spec)
    records = context.instance.get_run_records(dg.RunsFilter(tags={member_tag(name): name}), limit=_COUNTED_FAILURES)
    here = {run.run_id for run in _of_this_location(context, [each.dagster_run for each in records])}
    failed = []
    for each in records:
        run = each.dagster_run
        if run.run_id not in here:
            continue
        if settings_in(run).get(name) != settings or not topic_failed(context.instance, run, spec):
            break
        failed.append(each)
    if not failed or failed[0].end_time is None:
        return Failures()
    # One table, or one topic, that can't go on fails the run; the others wait for the next run no longer than this.
    longest = _LONGEST_BESIDE_OTHERS if spec.has_routes or spec.topics else _LONGEST_PAUSE
    return Failures(len(failed), failed[0].end_time + pause_after(len(failed), longest))


def settings_in(run: dg.DagsterRun) -> dict[str, str]:
    """Return what names the settings that a run works by, by `work_name`."""
    found: dict[str, str] = json.loads(run.tags.get(SETTINGS_TAG, "{}"))
    return found


def settings_fingerprint(spec: TopicTable) -> str:
    """Return what names the settings of a topic's table; of topics that share a table it is the same."""
    told = _AS_JSON.dump_json(spec, exclude={"topic"}) + version("kafka_lake").encode()
    return sha256(told).hexdigest()[:16]


def attempts(context: dg.SensorEvaluationContext, fingerprints: Sequence[str]) -> Counter[str]:
    """Return how many runs have been asked for the same work, by fingerprint: one query for all."""
    if not fingerprints:
        return Counter()
    asked = dg.RunsFilter(tags={WORK_TAG: list(fingerprints)})
    return Counter(run.tags[WORK_TAG] for run in context.instance.get_runs(asked))


def _of_this_location(context: dg.SensorEvaluationContext, runs: Iterable[dg.DagsterRun]) -> Iterator[dg.DagsterRun]:
    """Give the runs without those of another code location; a run that names none may be of this one."""
    here = context.code_location_origin
    for run in runs:
        its = run.remote_job_origin
        if here is None or its is None or its.location_name == here.location_name:
            yield run


# A run that is in flight by now may fail as the last one did.
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


def dagster_at_hand() -> dg.DagsterInstance:
    """Return the Dagster instance of ``DAGSTER_HOME``, or that of this deployment's folder."""
    if "DAGSTER_HOME" in os.environ:
        return dg.DagsterInstance.get()
    return dg.DagsterInstance.from_config(str(dagster_home()))


@dataclass(frozen=True)
class FailedRun:
    """A topic's last run that is over, which failed.

    Args:
        failed_at: ISO 8601 in UTC; empty if Dagster doesn't say.
    """

    run_id: str
    failed_at: str
    error: str

    def line(self, topic: str) -> str:
        """Return it as people read it."""
        moment = self.failed_at or "an unknown time"
        return f"The last run of topic {topic}, {self.run_id[:8]}, failed at {moment}: {self.error}"


def failed_runs(specs: Iterable[TopicTable]) -> dict[str, FailedRun]:
    """Return the last runs of topics, of those whose last run failed; none if Dagster can't be asked."""
    by_name = {work_name(spec): spec for spec in specs}
    try:
        with dagster_at_hand() as instance:
            found = {name: _failed(instance, name, spec) for name, spec in by_name.items()}
    except Exception:
        # Whatever Dagster's storage may be, and whatever it may lack: positions and lags are told all the same.
        return {}
    return {name: run for name, run in found.items() if run is not None}


def _failed(instance: dg.DagsterInstance, name: str, spec: TopicTable) -> FailedRun | None:
    last = instance.get_run_records(dg.RunsFilter(statuses=_ENDED, tags={member_tag(name): name}), limit=1)
    if not last or not topic_failed(instance, last[0].dagster_run, spec):
        return None
    run, ended = last[0].dagster_run, last[0].end_time
    moment = datetime.fromtimestamp(ended, UTC).isoformat(timespec="seconds") if ended else ""
    why = "see its page in Dagster."
    failed = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    # A run of one topic may have steps that check its table, too.
    for each in [each for each in failed if each.step_key == op_name(spec)] or failed:
        data = each.get_dagster_event().step_failure_data
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
    """Return whether another run can't begin before one ends, and it is for this one to end.

    If Dagster's database can't tell at the moment, nobody waits: it is asked again soon.

    It is, at once, if the sensor has asked the run to end, or a queued run fills one of the same tables. If all places
    are taken it is for the run that was launched first; five seconds later for the second as well, and so on: one is
    enough, but may not be able to go yet.
    """
    try:
        return _yields_slot(instance, run_id, clock)
    except Exception as error:
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
    going = instance.get_run_records(dg.RunsFilter(statuses=_IN_PROGRESS), ascending=True)
    # Without a limit, or below it, what is queued begins in a moment, or waits for something else.
    if queue is None or not 0 <= queue.max_concurrent_runs <= len(going):
        return False
    before = len(list(takewhile(lambda record: record.dagster_run.run_id != run_id, going)))
    # The database's clock may be ahead of ours.
    waited = max(0.0, clock() - queued[0].create_timestamp.timestamp())
    return waited >= _NEXT_SECONDS * before
