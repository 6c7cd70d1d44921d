"""Where a table of another writer resumes: plain data, and the decision whether the evidence is enough. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_lake.common.offsets import Position, Watermarks
from kafka_lake.errors import AdoptionRefusedError


@dataclass(frozen=True)
class Evidence:
    """What another writer has left behind about the offsets that its table has.

    Args:
        source: Who says so, as the beginning of a sentence.
        offsets: Next offset per Kafka partition.
        why: Where each of them comes from.
        complete: Whether the table can have no record of a partition that is not named.
        notes: What else a person must know before agreeing.
    """

    source: str
    offsets: Mapping[int, int]
    why: Mapping[int, str] = field(default_factory=dict)
    complete: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartitionStart:
    """Where one Kafka partition resumes.

    Args:
        offset: Next offset that the table takes.
        low: The oldest offset that Kafka has.
        end: Exclusive end of what Kafka has.
    """

    partition: int
    offset: int
    why: str
    low: int
    end: int


@dataclass(frozen=True)
class Adoption:
    """What taking over a table would write.

    Args:
        source: Who says where it resumes.
        head: The snapshot of ``main`` that this is true of.
        rows: Rows that the table has; they stay.
        partitions: The same, with reasons, ascending by number.
        notes: What else a person must know before agreeing.
    """

    topic: str
    table: str
    source: str
    head: int | None
    rows: int
    position: Position
    partitions: tuple[PartitionStart, ...]
    notes: tuple[str, ...] = ()


_BY_HAND = "If you know the offsets, name those of all partitions with --from-offsets."


def starts(table: str, evidence: Evidence, now: Watermarks) -> tuple[PartitionStart, ...]:
    """Return where each Kafka partition resumes.

    Args:
        table: The table's name, for messages.
        evidence: What the other writer has left behind.

    Raises:
        AdoptionRefusedError: If a partition has no offset, or one that Kafka no longer has, or hasn't yet.
    """
    topic = now.identity.topic
    if unknown := sorted(evidence.offsets.keys() - now.end.keys()):
        raise AdoptionRefusedError(
            f"Table {table}: {evidence.source} names partition {unknown[0]} of topic {topic}, which has the partitions "
            f"{', '.join(map(str, now.partitions)) or '(none)'}.",
            "Nothing was changed. Check the topic and the brokers: the topic may have been recreated.",
        )
    missing = [p for p in now.partitions if p not in evidence.offsets]
    if missing and not evidence.complete:
        raise AdoptionRefusedError(
            f"Table {table}: {evidence.source} has no offset for partition {_listed(missing)} of topic {topic}.",
            f"Nothing was changed, since records could be lost or doubled. {_BY_HAND}",
        )
    if problems := [*_below(evidence, now), *_beyond(evidence, now)]:
        raise AdoptionRefusedError(
            f"Table {table}, topic {topic}: by {evidence.source}, {'; '.join(problems)}.",
            "Nothing was changed. Records that Kafka has deleted must come from elsewhere; a position beyond the end "
            "is of another topic or cluster, or of a transaction that is still open. To resume elsewhere all the "
            "same, name the offsets with --from-offsets.",
        )
    return tuple(
        PartitionStart(
            partition=p,
            offset=evidence.offsets[p],
            why=evidence.why.get(p, evidence.source),
            low=now.low[p],
            end=now.end[p],
        )
        if p in evidence.offsets
        else PartitionStart(
            partition=p,
            offset=now.low[p],
            why="nothing of it is in the table; the oldest record",
            low=now.low[p],
            end=now.end[p],
        )
        for p in now.partitions
    )


def position_of(found: tuple[PartitionStart, ...], now: Watermarks) -> Position:
    """Return the position to write; the log is taken as it is now."""
    return Position(now.identity, {each.partition: each.offset for each in found}, now.epochs)


def _below(evidence: Evidence, now: Watermarks) -> list[str]:
    return [
        f"partition {p} resumes at offset {o}, and the oldest that Kafka has is {now.low[p]}"
        for p, o in sorted(evidence.offsets.items())
        if o < now.low[p]
    ]


def _beyond(evidence: Evidence, now: Watermarks) -> list[str]:
    return [
        f"partition {p} resumes at offset {o}, and Kafka's end is {now.end[p]}"
        for p, o in sorted(evidence.offsets.items())
        if o > now.end[p]
    ]


def _listed(partitions: list[int]) -> str:
    return ", ".join(map(str, partitions))
