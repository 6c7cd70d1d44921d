"""Which commits the tables of routes had when the topic's own table was last committed to.

A table of a route gets what lies beyond the topic's position, which is that of its own table. So if somebody drops it,
or sets it back, its records are not read again by themselves. This tells that it has happened.
"""

import json
from collections.abc import Iterable, Mapping

from pyiceberg.table import Table

from kafka_lake.common.errors import TableError
from kafka_lake.ingest.context import Context
from kafka_lake.lake.positions import POSITION, ancestors, follows_another, head_of, summary_of

HEADS = "kafka-lake.route-heads"
"""In a snapshot of the topic's own table: by table of a route, its newest snapshot that has a position, as JSON."""


def heads_of(tables: Mapping[str, Table | None]) -> dict[str, int]:
    """Return the newest snapshot with a position of each table that has one."""
    found = {
        name: [s for s in ancestors(t, head_of(t)) if POSITION in summary_of(s)] for name, t in tables.items() if t
    }
    return {name: snapshots[0].snapshot_id for name, snapshots in found.items() if snapshots}


def refuse_lost(context: Context, own: Table, tables: Mapping[str, Table | None]) -> None:
    """Stop a run if the table of a route was dropped or set back, or warn if the topic goes on after losses.

    Args:
        context: Of the run.
        own: The topic's own table.
        tables: Those of its routes by name; None for one that isn't there.

    Raises:
        TableError: If a table was, and ``on_data_loss`` is ``fail``.
    """
    recorded = _recorded(own)
    lost = {name: how for name, each in tables.items() if name in recorded and (how := _lost(each, recorded[name]))}
    if not lost:
        return
    topic = context.spec.full_topic
    said = f"Topic {context.spec.topic}: {'; '.join(f'table {name} {how}' for name, how in lost.items())}."
    if context.spec.on_data_loss == "continue":
        context.observer.warn(f"{said} on_data_loss is continue: what it had is not read again.")
        return
    raise TableError(
        f"{said} Its records lie before the topic's position, so they would be missing.",
        f"Nothing was read. `kafka-lake replay {topic}` reads the topic again, for all its tables. To go on without "
        "those records, set on_data_loss: continue for a run.",
    )


def _recorded(own: Table) -> dict[str, int]:
    texts: Iterable[str | None] = (summary_of(each).get(HEADS) for each in ancestors(own, head_of(own)))
    text = next((each for each in texts if each is not None), None)
    try:
        return {str(name): int(snapshot) for name, snapshot in json.loads(text or "{}").items()}
    except (ValueError, AttributeError):
        return {}


def _lost(table: Table | None, recorded: int) -> str:
    """Return what has become of a table that had a commit; empty if it has it, or nothing tells."""
    if table is None:
        return "is gone"
    snapshot = table.metadata.snapshot_by_id(recorded)
    history = list(ancestors(table, head_of(table)))
    if not history:
        return "was dropped, and created again"
    if snapshot is None or any(each.snapshot_id == recorded for each in history):
        return ""
    # Where snapshots between have expired, the history ends before it comes to the recorded one.
    reaches = not follows_another(history[-1]) or any(
        (each.sequence_number or 0) < (snapshot.sequence_number or 0) for each in history
    )
    return f"was set back to before its snapshot {recorded}" if reaches else ""
