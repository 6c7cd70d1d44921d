"""Publish: dead letters first, the primary last, each by a compare-and-set that somebody else's commit refuses."""

import time
from collections.abc import Mapping
from types import MappingProxyType

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.stage.staged import Staged
from kafka_lake.lake.branches import nothing
from kafka_lake.lake.totals import Totals, added

_STEPS = {
    "primary": "primary published",
    "dead_letters": "dead letters published",
    "deletes": "deletes published",
}

_NOTHING: Mapping[str, str] = MappingProxyType({})


def publish(context: Context, staged: Staged, done: Totals, also: Mapping[str, str] = _NOTHING) -> float:
    """Make an audited commit visible.

    Args:
        staged: What to publish; its branches are gone afterwards.
        done: What it does, in numbers: the topic's table adds them up.
        also: Other properties that the primary gets with it.

    Returns:
        When the primary became visible, in seconds since the epoch.

    Raises:
        PublishRefusedError: If a table's ``main`` moved since it was planned. The primary is as it was; dead letters
            may be published, which the next attempt finds by their own position.
    """
    visible_at = 0.0
    for table in staged.tables():
        is_primary = table is staged.primary
        table.branch.publish(
            table.snapshot, (lambda before: {**added(before, done), **also}) if is_primary else nothing
        )
        visible_at = time.time()
        context.observer.step_done(_STEPS[next(name for name in _STEPS if table is getattr(staged, name))])
    return visible_at
