"""Where in the topic the records of letters and rows are: few ranges of offsets, for what reads only those files."""

from collections.abc import Iterable

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyspark.sql import DataFrame

from kafka_lake.common.offsets import OffsetRange, joined_ranges
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.record_keys import added_between

# Offsets that are far apart are looked for apart from each other, in so many places at the most.
_PLACES = 200


def added_keys(context: Context, identifier: tuple[str, str], table: Table, snapshot: int) -> DataFrame | None:
    """Return what names the records of the rows, or letters, that a snapshot added; None if only all can tell.

    Args:
        context: Of the run; Spark reads the files that the snapshot added, and nothing else.
        identifier: The topic's table, or its dead-letter table.
        table: The same, loaded.
        snapshot: The snapshot.
    """
    spec, connections = context.spec, context.connections
    known = table.metadata.snapshot_by_id(snapshot)
    parent = known.parent_snapshot_id if known else None
    appends = known is not None and known.summary is not None and known.summary.operation is Operation.APPEND
    if not appends or parent is None or table.metadata.snapshot_by_id(parent) is None:
        return None
    rows = added_between(connections.spark(), connections.catalog.spark_name(identifier), parent, snapshot)
    return connections.frames.keys(rows, column=spec.metadata_column if identifier == spec.identifier else None)


def near(connections: Connections, keys: DataFrame | None) -> list[OffsetRange] | None:
    """Return where the offsets of records are; None if that can't be told."""
    return None if keys is None else connections.frames.places(keys)


def joined(places: Iterable[list[OffsetRange] | None], apart: int) -> list[OffsetRange] | None:
    """Return ranges as few enough for a condition, by partition and offset; None if one of them can't be told.

    Args:
        places: Ranges in any order.
        apart: Ranges that are less than so many offsets apart become one.
    """
    known: list[OffsetRange] = []
    for each in places:
        if each is None:
            return None
        known += each
    found = joined_ranges(known, apart)
    return found if len(found) <= _PLACES else joined_ranges(known, None)
