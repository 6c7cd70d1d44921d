"""Dagster's runs of topics: which are in flight, which have failed lately, and how long a topic waits after failures.

One Dagster instance may have several code locations with topics of the same name, in clusters of their own. A run of
another code location says nothing about a topic of this one.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from itertools import takewhile

import dagster as dg
from pydantic import TypeAdapter

from kafka_lake.components.alive import end_dead
from kafka_lake.components.keys import TOPIC_TAG, table_key, work_name
from kafka_lake.ingest.topic_table import TopicTable

WORK_TAG = ".dagster/kafka_lake_work"
"""Tag of runs that the sensor asks for: names the work. Dagster's pages don't show tags with this prefix."""

SETTINGS_TAG = ".dagster/kafka_lake_settings"
"""Tag of runs that the sensor asks for: names the settings that a run works by, and the version of this package."""

IN_FLIGHT = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]

_AS_JSON = TypeAdapter(TopicTable)
_COUNTED_FAILURES = 12
_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 1800.0
_LONGEST_BESIDE_OTHERS = 60.0
_CLOCKS_DIFFER = 3600.0


def busy_topics(context: dg.SensorEvaluationContext, specs: Sequence[TopicTable]) -> dict[str, str]:
    """Return the topics that have a run in flight, by `work_name`, with its id; ends runs that died with their process.

    Args:
        context: Of the tick.
        specs: The topics.
    """
    # By what a run makes, not by who asked for it: runs launched in the UI carry none of our tags.
    in_flight = context.instance.get_runs(dg.RunsFilter(statuses=IN_FLIGHT))
    runs = list(_of_this_location(context, end_dead(context.instance, in_flight)))
    making = {key: run.run_id for run in runs for key in run.asset_selection or ()}
    tagged = {run.tags[TOPIC_TAG]: run.run_id for run in runs if TOPIC_TAG in run.tags}
    made = {work_name(spec): making[key] for spec in specs for key in map(table_key, spec.tables) if key in making}
    return made | tagged


def failed_lately(context: dg.SensorEvaluationContext) -> set[str]:
    """Return the topics whose last runs may have failed so lately that they are left alone: one query for all."""
    since = datetime.fromtimestamp(time.time() - _LONGEST_PAUSE - _CLOCKS_DIFFER, UTC)
    failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], updated_after=since)
    runs = _of_this_location(context, context.instance.get_runs(failed))
    return {run.tags[TOPIC_TAG] for run in runs if TOPIC_TAG in run.tags}


def pause(context: dg.SensorEvaluationContext, spec: TopicTable) -> float:
    """Return for how many seconds more a topic is left alone whose last runs failed: twice as long after each.

    Failures by other settings don't count: what was wrong may be mended.
    """
    records = context.instance.get_run_records(
        dg.RunsFilter(tags={TOPIC_TAG: work_name(spec)}), limit=_COUNTED_FAILURES
    )
    ours = {run.run_id for run in _of_this_location(context, [each.dagster_run for each in records])}
    last = [each for each in records if each.dagster_run.run_id in ours]
    settings = settings_fingerprint(spec)
    failed = list(
        takewhile(
            lambda each: (
                each.dagster_run.status == dg.DagsterRunStatus.FAILURE
                and each.dagster_run.tags.get(SETTINGS_TAG) == settings
            ),
            last,
        )
    )
    if not failed or failed[0].end_time is None:
        return 0.0
    # One table, or one topic, that can't go on fails the run; the others wait for the next run no longer than this.
    longest = _LONGEST_BESIDE_OTHERS if spec.has_routes or spec.topics else _LONGEST_PAUSE
    return float(failed[0].end_time + min(_FIRST_PAUSE * 2 ** (len(failed) - 1), longest) - time.time())


def settings_fingerprint(spec: TopicTable) -> str:
    """Return what names the settings of a topic's table; of topics that share a table it is the same."""
    told = _AS_JSON.dump_json(spec, exclude={"topic"}) + version("kafka_lake").encode()
    return sha256(told).hexdigest()[:16]


def attempts(context: dg.SensorEvaluationContext, fingerprints: Sequence[str]) -> Counter[tuple[str, str]]:
    """Return how many runs have been asked for the same work, by topic and fingerprint: one query for all."""
    if not fingerprints:
        return Counter()
    asked = dg.RunsFilter(tags={WORK_TAG: list(fingerprints)})
    return Counter((run.tags.get(TOPIC_TAG, ""), run.tags[WORK_TAG]) for run in context.instance.get_runs(asked))


def _of_this_location(context: dg.SensorEvaluationContext, runs: Iterable[dg.DagsterRun]) -> Iterator[dg.DagsterRun]:
    """Give the runs without those of another code location; a run that names none may be of this one."""
    here = context.code_location_origin
    for run in runs:
        its = run.remote_job_origin
        if here is None or its is None or its.location_name == here.location_name:
            yield run
