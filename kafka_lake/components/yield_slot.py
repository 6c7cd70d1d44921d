"""Whether a run that stays while records come yields its slot to another one in Dagster's queue."""

import time
from collections.abc import Callable
from itertools import takewhile

import dagster as dg

from kafka_lake.components.keys import YIELD_TAG
from kafka_lake.ingest.causes import is_transient

_NEXT_SECONDS = 5.0
_QUEUED_LOOKED_AT = 20
_IN_PROGRESS = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def yields_slot(instance: dg.DagsterInstance, run_id: str, clock: Callable[[], float] = time.time) -> bool:
    """Return whether another run can't begin before one ends, and it is for this one to end.

    If Dagster's database can't tell at the moment, nobody waits: it is asked again soon.

    It is, at once, if the sensor has asked the run to end, or a queued run fills one of the same tables. If all places
    are taken it is for the run that was launched first; five seconds later for the second as well, and so on: one is
    enough, but may not be able to go yet.

    Args:
        run_id: Of the run that stays.
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
