"""Where a Structured Streaming query has left a table: a decision from its checkpoint and the table's snapshots.

Spark writes ``offsets/N`` before it runs batch N, and ``commits/N`` when the batch is done. Iceberg's streaming sink
notes the query's id and N in the snapshot that holds the batch's rows.
Source: ``OffsetSeqLog`` and ``KafkaSourceOffset`` of Apache Spark 4.1; ``SparkWrite.StreamingWrite`` of Apache Iceberg.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_lake.ingest.adopt.model import AdoptionRefusedError, Evidence

_BY_HAND = "If you know the offsets, name them with --from-offsets."
_AGAIN = (
    "Nothing was changed. Let the query finish this batch (trigger availableNow, with the same checkpoint), and try "
    f"again. {_BY_HAND}"
)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder as it is.

    Args:
        path: Of the folder.
        query_id: The query's, as its file ``metadata`` has it.
        offsets: What the files of the folder ``offsets`` hold, by batch.
        commits: The batches of the folder ``commits``.
    """

    path: str
    query_id: str
    offsets: Mapping[int, str]
    commits: frozenset[int]


@dataclass(frozen=True)
class Batch:
    """A snapshot of a streaming query.

    Args:
        query_id: The query's.
        epoch: Number of the batch.
        operation: Iceberg's name of what it did, as ``append``.
    """

    query_id: str
    epoch: int
    operation: str


def checkpoint_evidence(table: str, topic: str, checkpoint: Checkpoint, batches: Sequence[Batch]) -> Evidence:
    """Return up to which offsets the table has the topic's records.

    Args:
        table: The table's name.
        topic: The topic.
        checkpoint: The query's.
        batches: Those that ``main``'s history tells of, the newest first.

    Raises:
        AdoptionRefusedError: If the last batch may or may not be in the table, or checkpoint and table don't go
            together.
    """
    if not checkpoint.offsets:
        raise _refused(table, f"the checkpoint {checkpoint.path} has no batch", f"Nothing was changed. {_BY_HAND}")
    last, committed = max(checkpoint.offsets), max(checkpoint.commits, default=None)
    mine = [each for each in batches if each.query_id == checkpoint.query_id]
    if mine:
        batch, reason = _noted(table, checkpoint, mine[0], committed)
    elif batches:
        raise _refused(
            table,
            f"the newest batch in main's history is of query {batches[0].query_id}, and the checkpoint "
            f"{checkpoint.path} is of query {checkpoint.query_id}",
            f"Nothing was changed. Name the checkpoint of that query. {_BY_HAND}",
        )
    else:
        batch, reason = _unnoted(table, checkpoint, last, committed)
    ends = _topics(table, checkpoint, batch)
    if topic not in ends:
        read = ", ".join(sorted(ends)) or "no topic"
        raise _refused(table, f"the query of the checkpoint {checkpoint.path} reads {read}", "Nothing was changed.")
    why = f"end of batch {batch}, {reason}"
    others = sorted(ends.keys() - {topic})
    notes = [f"The query also reads {', '.join(others)}; this program won't."] if others else []
    if not mine:
        notes.append(
            "No snapshot names its batch, as with foreachBatch: that the table has each batch once is up to the query."
        )
    return Evidence(
        source=f"checkpoint {checkpoint.path}",
        offsets=ends[topic],
        why=dict.fromkeys(ends[topic], why),
        complete=True,
        notes=tuple(notes),
    )


def _noted(table: str, checkpoint: Checkpoint, newest: Batch, committed: int | None) -> tuple[int, str]:
    """Return the batch that the table itself says it has."""
    if newest.operation != "append":
        raise _refused(
            table,
            f"batch {newest.epoch} of the query is of the kind {newest.operation}: the query replaces rows, as in "
            "output mode complete",
            "Nothing was changed. Such a table holds results, and no records of a topic. Set another table:.",
        )
    if newest.epoch not in checkpoint.offsets:
        raise _refused(
            table,
            f"main has batch {newest.epoch} of the query, and the checkpoint {checkpoint.path} has no offsets of it",
            f"Nothing was changed. Name the query's newest checkpoint. {_BY_HAND}",
        )
    if committed is not None and newest.epoch < committed:
        raise _refused(
            table,
            f"main has batch {newest.epoch} of the query, and the query has finished batch {committed}: main was "
            "rolled back, or the query writes elsewhere by now",
            f"Nothing was changed. {_BY_HAND}",
        )
    done = "finished" if newest.epoch == committed else "not finished in the checkpoint, but its rows are in the table"
    return newest.epoch, f"which the table's snapshot names ({done})"


def _unnoted(table: str, checkpoint: Checkpoint, last: int, committed: int | None) -> tuple[int, str]:
    """Return the last finished batch, where no snapshot names any, if no other has begun."""
    if committed is None or last > committed:
        raise _refused(
            table,
            f"batch {last} of the checkpoint {checkpoint.path} has begun and is not finished, and no snapshot of main "
            "tells whether its rows are in the table",
            _AGAIN,
        )
    if last < committed:
        raise _refused(table, f"the checkpoint {checkpoint.path} has no offsets of batch {committed}", _AGAIN)
    return last, "the last, which is finished"


def _topics(table: str, checkpoint: Checkpoint, batch: int) -> dict[str, dict[int, int]]:
    """Return next offsets by topic and partition, from all Kafka sources of a batch."""
    version, _, rest = checkpoint.offsets[batch].partition("\n")
    where = f"the file offsets/{batch} of the checkpoint {checkpoint.path}"
    if version.strip() != "v1":
        raise _refused(table, f"{where} is of version {version.strip()[:20]!r}, and v1 is known", _BY_HAND)
    found: dict[str, dict[int, int]] = {}
    for line in rest.splitlines()[1:]:
        try:
            source = json.loads(line)
            by_topic = {
                name: {int(p): int(o) for p, o in each.items()}
                for name, each in source.items()
                if isinstance(each, dict)
            }
        except (ValueError, AttributeError, TypeError) as error:
            # Another source, a rate or a folder for instance, or one without data yet.
            if line.strip() in ("", "-") or not line.lstrip().startswith("{"):
                continue
            raise _refused(table, f"{where} has a source that isn't understood", _BY_HAND) from error
        for name, offsets in by_topic.items():
            if name in found:
                raise _refused(table, f"{where} has topic {name} twice", _BY_HAND)
            found[name] = offsets
    return found


def _refused(table: str, problem: str, remedy: str) -> AdoptionRefusedError:
    return AdoptionRefusedError(f"Table {table}: {problem}.", remedy)
