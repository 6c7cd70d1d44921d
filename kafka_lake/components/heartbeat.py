"""Runs report that they are alive, and sensors end runs whose process is gone."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import dagster as dg

from kafka_lake.common.processes import is_gone, name_of
from kafka_lake.components.keys import MAINTENANCE_TAG, TOPIC_TAG

HEARTBEAT_TAG = ".dagster/kafka_lake_alive"
"""Tag of a run: its process's name, and when it last reported that it is alive. Dagster's pages don't show it."""

_BEAT_SECONDS = 60.0
_SILENT_SECONDS = 900.0
_DONE = "done"

log = logging.getLogger(__name__)


@contextmanager
def alive(instance: dg.DagsterInstance, run_id: str, beat_seconds: float = _BEAT_SECONDS) -> Iterator[None]:
    """Report that a run is alive, at once and once a minute during the block; after it, that it reports no more.

    Args:
        run_id: Of the run that this process executes.
    """
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(beat_seconds):
            _record(instance, run_id, _now())

    _record(instance, run_id, _now())
    thread = threading.Thread(target=beat, name="alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _record(instance, run_id, _DONE)


def _now() -> str:
    return f"{name_of(os.getpid())} {datetime.now(UTC).isoformat()}"


def _record(instance: dg.DagsterInstance, run_id: str, said: str) -> None:
    try:
        instance.add_run_tags(run_id, {HEARTBEAT_TAG: said})
    except Exception as error:
        # Dagster's storage may be away for a while; what matters is what the run does.
        log.warning("Run %s couldn't report that it is alive: %s", run_id, error)


def end_dead(
    instance: dg.DagsterInstance, runs: Sequence[dg.DagsterRun], clock: Callable[[], float] = time.time
) -> list[dg.DagsterRun]:
    """Report runs as failed that have begun and are dead, and return the others.

    Dead is whose process on this host is gone; of another host's, who has been silent for a quarter of an hour; and of
    those that the sensor asked for, who has begun as long ago and never said a word.
    """
    living = []
    for run in runs:
        # It may have ended since it was looked up.
        now = instance.get_run_by_id(run.run_id) if _death(instance, run, clock()) else None
        if now and (reason := _death(instance, now, clock())):
            instance.report_run_failed(now, f"The run is dead: {reason}. What it has committed stays.")
        else:
            living.append(run)
    return living


def _death(instance: dg.DagsterInstance, run: dg.DagsterRun, now: float) -> str:
    said = run.tags.get(HEARTBEAT_TAG)
    if run.status not in (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING) or said == _DONE:
        return ""
    if said is None:
        # Of others' runs, nobody knows how long they are at work on something else before a topic's turn comes.
        ours = TOPIC_TAG in run.tags or MAINTENANCE_TAG in run.tags
        record = instance.get_run_record_by_id(run.run_id) if ours else None
        mute = now - record.start_time if record and record.start_time else 0.0
        return f"it began {mute:.0f} s ago and has never reported that it is alive" if mute > _SILENT_SECONDS else ""
    name, _, moment = said.rpartition(" ")
    gone = is_gone(name)
    if gone is not None:
        return f"process {name} is gone" if gone else ""
    silent = now - datetime.fromisoformat(moment).timestamp()
    return f"process {name} has been silent for {silent:.0f} s" if silent > _SILENT_SECONDS else ""
