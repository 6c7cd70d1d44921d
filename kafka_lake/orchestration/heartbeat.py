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
from kafka_lake.orchestration.keys import MAINTENANCE_TAG, TOPIC_TAG

HEARTBEAT_TAG = ".dagster/kafka_lake_alive"
"""Tag of a run: its process's name, and when it last reported that it is alive. Dagster's pages don't show it."""

_BEAT_SECONDS = 60.0
_SILENT_SECONDS = 900.0
_DONE = "done"

log = logging.getLogger(__name__)


@contextmanager
def heartbeat(instance: dg.DagsterInstance, run_id: str, beat_seconds: float = _BEAT_SECONDS) -> Iterator[None]:
    """Report during the block that a run is alive: at once, then once a minute, and that it has ended.

    Dagster doesn't notice if a run's process was killed: it shows the run as running, and no other run may fill the
    table. Runs report only while they work on a topic's table, since other steps may be in other processes.
    """
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(beat_seconds):
            _record(instance, run_id, _now())

    _record(instance, run_id, _now())
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _record(instance, run_id, _DONE)


def _now() -> str:
    return f"{name_of(os.getpid())} {datetime.now(UTC).isoformat()}"


def _record(instance: dg.DagsterInstance, run_id: str, beat: str) -> None:
    try:
        instance.add_run_tags(run_id, {HEARTBEAT_TAG: beat})
    except Exception as error:
        # Dagster's storage may be away for a while; the run goes on.
        log.warning("Run %s couldn't send a heartbeat: %s", run_id, error)


def end_dead(
    instance: dg.DagsterInstance, runs: Sequence[dg.DagsterRun], clock: Callable[[], float] = time.time
) -> list[dg.DagsterRun]:
    """Report dead runs as failed, and return the others.

    A run is dead if its process on this host is gone, or if its process on another host hasn't reported for 15 minutes.
    A run that a sensor requested is also dead if it never reported within 15 minutes after its start. A run that is
    taken for dead by mistake does no harm: of two runs for one table, only one can publish.
    """
    living = []
    for run in runs:
        # It may have ended since it was looked up.
        now = instance.get_run_by_id(run.run_id) if _death(instance, run, clock()) else None
        if now and (reason := _death(instance, now, clock())):
            instance.report_run_failed(now, f"The run is dead: {reason}. Its commits stay.")
        else:
            living.append(run)
    return living


def _death(instance: dg.DagsterInstance, run: dg.DagsterRun, now: float) -> str:
    """Return why a run is dead; empty if it may be alive."""
    beat = run.tags.get(HEARTBEAT_TAG)
    if run.status not in (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING) or beat == _DONE:
        return ""
    if beat is None:
        # A run that a user launched may work on other assets for long before a topic's turn comes.
        is_requested = TOPIC_TAG in run.tags or MAINTENANCE_TAG in run.tags
        record = instance.get_run_record_by_id(run.run_id) if is_requested else None
        mute = now - record.start_time if record and record.start_time else 0.0
        return f"it started {mute:.0f} s ago and has never sent a heartbeat" if mute > _SILENT_SECONDS else ""
    name, _, moment = beat.rpartition(" ")
    gone = is_gone(name)
    if gone is not None:
        return f"process {name} is gone" if gone else ""
    silent = now - datetime.fromisoformat(moment).timestamp()
    return f"process {name} has been silent for {silent:.0f} s" if silent > _SILENT_SECONDS else ""
