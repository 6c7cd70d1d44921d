"""What was given up for lost of a topic: the commits that went on without it tell, and a property of the table."""

from pyiceberg.table import Table

from kafka_lake.common.offsets import Loss, losses_from_json, losses_to_json
from kafka_lake.lake.positions import LOSSES, ancestors, head_of, summary_of

_KEPT = 1000


def recorded_losses(table: Table) -> list[Loss]:
    """Return what was given up for lost by the commits of ``main``'s history, the newest first.

    Those whose snapshots have expired by our maintenance are in a property of the table.
    """
    found = [
        loss
        for snapshot in ancestors(table, head_of(table))
        if (text := summary_of(snapshot).get(LOSSES))
        for loss in losses_from_json(text)
    ]
    kept = losses_from_json(table.properties.get(LOSSES, "[]"))
    return list(dict.fromkeys([*found, *kept]))


def keep_losses(table: Table, until_ms: int) -> None:
    """Take down in a property what snapshots tell of losses that are about to expire.

    Args:
        until_ms: The newest of them, in milliseconds since 1970.

    Raises:
        CommitFailedException: If another commit came in between; nothing may expire then.
    """
    going = [
        loss
        for snapshot in ancestors(table, head_of(table))
        if snapshot.timestamp_ms <= until_ms and (text := summary_of(snapshot).get(LOSSES))
        for loss in losses_from_json(text)
    ]
    if not going:
        return
    kept = losses_from_json(table.properties.get(LOSSES, "[]"))
    told = list(dict.fromkeys([*going, *kept]))[:_KEPT]
    with table.transaction() as transaction:
        transaction.set_properties({LOSSES: losses_to_json(told)})
