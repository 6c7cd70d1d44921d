"""Past: what doesn't count since it is older than a truncate, or than a snapshot of the source that has ended."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from kafka_lake.common.offsets import Position
from kafka_lake.errors import ChangeRefusedError
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.keyed.keys import Keys
from kafka_lake.ingest.keyed.refusals import refuse_several_partitions, refuse_several_sources
from kafka_lake.ingest.keyed.source_snapshots import (
    NONE,
    READING,
    Ended,
    Remembered,
    Walk,
    due,
    marks_of,
    remembered,
    walk,
    with_dead_letters,
)
from kafka_lake.ingest.keyed.source_tables import SOURCES, sources_of
from kafka_lake.ingest.keyed.truncates import (
    TRUNCATED,
    Emptied,
    Truncate,
    newer_of,
    newest_truncate,
    remembered_truncate,
)
from kafka_lake.ingest.topic_table import TopicTable, is_over, limit_of
from kafka_lake.lake.positions import POSITION, TableState


@dataclass(frozen=True)
class Told:
    """A batch of changes, and what is known of it.

    Args:
        figures: How many ``truncates`` they have, and ``reads``: rows of snapshots; which ``sources`` they are about.
        failed: Tells how many records of the batch became dead letters.
    """

    changes: DataFrame
    figures: Any
    summary: Mapping[str, str]
    failed: Callable[[], int]

    @property
    def position(self) -> Position:
        """Return the position that the batch leaves behind."""
        return Position.from_json(self.summary[POSITION])


@dataclass(frozen=True)
class Past:
    """What doesn't count any more.

    Args:
        emptied: What is older than that is gone; None if there is nothing of the kind.
        ended: The snapshot of the source that lacks what goes; None if a truncate takes it away.
        marks: What the snapshot's summary says of it.
    """

    emptied: Emptied | None = None
    ended: Ended | None = None
    marks: Mapping[str, str] = field(default_factory=dict)


def past_of(context: Context, state: TableState, batch: Told, keys: Keys) -> Past:
    """Return what doesn't count any more, by a batch and by what the table remembers.

    Args:
        state: The table as the plan saw it.

    Raises:
        ChangeRefusedError: If nothing tells which changes are older, or when a snapshot has arrived as a whole; or if
            rows may be of another table of the source than the one that lacks them.
    """
    spec = context.spec
    ended, marks = None, dict[str, str]()
    if spec.snapshot == "replace":
        ended, known = _snapshots(context, state, batch, keys)
        marks[READING] = known.to_json()
    new = _truncate(spec, batch, keys)
    sources = sources_of(spec, state, batch.figures["sources"])
    for at in (*([new] if new else []), *([ended.at] if ended else [])):
        refuse_several_sources(spec, sources, at)
    marks[SOURCES] = json.dumps(sources)
    if ended is not None:
        newest = newer_of(ended.at, new, keys)
        new = newest.at if newest else None
    emptied = newer_of(new, remembered_truncate(state), keys)
    if emptied is None:
        return Past(marks=marks)
    is_ended = ended is not None and emptied.is_new and emptied.at == ended.at
    return Past(emptied, ended if is_ended else None, {**marks, TRUNCATED: emptied.at.to_json()})


def _truncate(spec: TopicTable, batch: Told, keys: Keys) -> Truncate | None:
    if spec.on_truncate != "apply" or not batch.figures["truncates"]:
        return None
    newest = newest_truncate(batch.changes, keys)
    if not keys.has_order:
        refuse_several_partitions(spec, newest, batch.position)
    return newest


def _snapshots(context: Context, state: TableState, batch: Told, keys: Keys) -> tuple[Ended | None, Remembered]:
    """Return the snapshot whose missing rows go with a batch, and what the table is to remember."""
    spec, position = context.spec, batch.position
    if len(position.offsets) > 1:
        raise several_partitions(spec, len(position.offsets))
    before = remembered(state, batch.summary)
    if state.position is not None and state.position.offsets == position.offsets:
        # What is read again has been looked at.
        return None, before
    found = Walk(before.reading)
    if batch.figures["reads"] or before.reading != NONE:
        found = walk(before.reading, *marks_of(batch.changes, keys))
    found = with_dead_letters(found, batch.failed())
    for offset, why in found.left:
        context.observer.warn(
            f"Topic {spec.topic}: the snapshot of the source with the record in partition {_partition(position)} at "
            f"offset {offset} {why}. Rows that it lacks stay in the table."
        )
    end = 0
    if found.ended is not None:
        end = context.connections.cluster.watermarks_of(spec.topic).end[_partition(position)]
    ended, waiting = due(found.ended, before.waiting, position.offsets[_partition(position)], end)
    return ended, Remembered(found.reading, waiting)


def _partition(position: Position) -> int:
    (partition,) = position.offsets
    return partition


def refuse_to_remove(spec: TopicTable, ended: Ended, rows: int, older: int) -> None:
    """Stop before rows go that a snapshot may merely seem to lack.

    Args:
        rows: How many rows there are.
        older: How many of them it lacks.

    Raises:
        ChangeRefusedError: If they are too many, or records of the snapshot may have become dead letters.
    """
    if not older:
        return
    began = f"the snapshot of the source that began in partition {ended.at.partition} at offset {ended.at.offset}"
    if ended.dead_letters:
        raise ChangeRefusedError(
            f"Topic {spec.topic}: {began} lacks {older} of {rows} rows, and {ended.dead_letters} records of its "
            "commits are dead letters, which may be of those rows.",
            "main is as it was. Mend the cause, and let a run go on with on_snapshot: merge; the rows stay until the "
            "next snapshot.",
        )
    limit = limit_of(spec.max_removed, "max_deletes")
    if is_over(limit, older, of=rows):
        raise ChangeRefusedError(
            f"Topic {spec.topic}: {began} lacks {older} of {rows} rows, and the limit is on_snapshot: max_deletes: "
            f"{spec.max_removed}.",
            "main is as it was. If the source has lost these rows, raise max_deletes: for a run. If the "
            "snapshot was of a part of the table, let a run go on with on_snapshot: merge, and the rows stay.",
        )


def several_partitions(spec: TopicTable, count: int) -> ChangeRefusedError:
    """Return the refusal of a topic in which nothing tells when a snapshot has arrived as a whole."""
    return ChangeRefusedError(
        f"Topic {spec.topic}: on_snapshot: replace needs a topic with one partition, and it has {count}. The last "
        "record of a snapshot is in one of them, and nothing tells when those of the others have arrived.",
        "main is as it was. Let the connector write to a topic with one partition, or set on_snapshot: merge.",
    )
