"""Dagster's runs of topics: which are in flight, which have failed lately, and how long a topic waits after failures.

A run may have several topics, each with a step of its own. One Dagster instance may have several code locations with
topics of the same name, in clusters of their own. A run of another code location says nothing about a topic of this
one.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version

import dagster as dg
from pydantic import TypeAdapter

from kafka_lake.components.alive import end_dead
from kafka_lake.components.keys import (
    MEMBER_TAG,
    SHARED_TAG,
    YIELD_TAG,
    member_tag,
    op_name,
    table_key,
    work_name,
)
from kafka_lake.ingest.topic_table import TopicTable

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
_FIRST_PAUSE = 5.0
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
        starting: Whether one of these hasn't begun yet.
        yielding: Whether one of these has been asked to end.
    """

    topics: Mapping[str, str]
    pools: frozenset[str]
    shared: tuple[str, ...]
    starting: bool
    yielding: bool


def in_flight(context: dg.SensorEvaluationContext, specs: Sequence[TopicTable]) -> InFlight:
    """Return the runs in flight; ends runs that died with their process.

    Args:
        specs: The topics, all of one cluster.
    """
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
    return InFlight(
        topics,
        frozenset(pools),
        tuple(run.run_id for run in shared),
        starting=any(run.status in _STARTING for run in shared),
        yielding=any(YIELD_TAG in run.tags for run in shared),
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


@dataclass(frozen=True)
class Failures:
    """Failures of a topic in a row.

    Args:
        count: How many, of the last runs.
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
    return Failures(len(failed), failed[0].end_time + min(_FIRST_PAUSE * 2 ** (len(failed) - 1), longest))


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
