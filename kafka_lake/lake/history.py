"""How a table's schema came to be what it is: each change, with the snapshot and the offsets at which it came."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from kafka_lake.common.offsets import Positions
from kafka_lake.lake.positions import ancestors, follows_another, head_of, positions_in, summary_of
from kafka_lake.lake.schema import Change, changes

_CUT_OFF = "Older snapshots have expired: what the schema was before is not known, nor when it became this."
_NOT_YET = "No snapshot has this schema yet: the next commit will."
_UNREADABLE = "The snapshot's position can't be read."


@dataclass(frozen=True)
class SchemaVersion:
    """A schema that a table has, or had, from some snapshot on.

    Args:
        schema_id: Iceberg's id of the schema.
        snapshot_id: The first snapshot with it that is still known; None if no snapshot has it yet.
        committed_at: When that snapshot was committed, or else when the table's metadata were last written.
        changes: What differs from the version before; of the first one, all its columns as added.
        positions: How far the topics had been consumed with that snapshot; none if the snapshot doesn't say.
        note: What one should know about this entry, empty for most.
    """

    schema_id: int
    snapshot_id: int | None
    committed_at: datetime
    changes: tuple[Change, ...]
    positions: Positions
    note: str = ""


def schema_history(table: Table) -> list[SchemaVersion]:
    """Return the versions of a table's schema along ``main``, oldest first.

    Returns:
        The first known schema and every change of it since, in so far as `changes` tells them apart. What was never
        on ``main`` is left out; what no snapshot has yet is the last entry.
    """
    schemas, before = table.schemas(), Schema()
    found: list[SchemaVersion] = []
    for snapshot in reversed([*ancestors(table, head_of(table))]):
        if snapshot.schema_id not in schemas:
            continue
        schema = schemas[snapshot.schema_id]
        notes = [_CUT_OFF] if not found and follows_another(snapshot) else []
        differences = _differences(before, schema)
        if not differences:
            continue
        positions, unread = _positions(snapshot)
        committed, note = _time(snapshot.timestamp_ms), " ".join([*notes, *unread])
        found.append(
            SchemaVersion(
                schema_id=schema.schema_id,
                snapshot_id=snapshot.snapshot_id,
                committed_at=committed,
                changes=differences,
                positions=positions,
                note=note,
            )
        )
        before = schema
    if pending := _differences(before, table.schema()):
        written = _time(table.metadata.last_updated_ms)
        found.append(
            SchemaVersion(
                schema_id=table.schema().schema_id,
                snapshot_id=None,
                committed_at=written,
                changes=pending,
                positions={},
                note=_NOT_YET,
            )
        )
    return found


def _differences(before: Schema, after: Schema) -> tuple[Change, ...]:
    found = changes(before, after)
    # The columns of a table that is just being made are no danger to anyone, required or not.
    return tuple(found if before.fields else (replace(change, kind="added") for change in found))


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _positions(snapshot: Snapshot) -> tuple[Positions, list[str]]:
    try:
        return positions_in(summary_of(snapshot)), []
    except ValueError:
        return {}, [_UNREADABLE]
