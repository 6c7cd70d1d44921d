"""Where a table of another writer resumes, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from kafka_lake.common.errors import TableError
from kafka_lake.common.offsets import Position


class AdoptionRefusedError(TableError):
    """It can't be told with certainty where an adopted table must resume. `main` is as it was.

    Rows would be lost or doubled otherwise.
    """

    what_to_do: ClassVar[str] = (
        "The message names what is uncertain. Usually the other writer still runs, or was stopped within a commit: let "
        "it finish that commit, stop it, and run `kafka-lake adopt` again. If you know the offsets, name them with "
        "`--from-offsets`. See [moving in](moving-in.md)."
    )


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
        partition: Its number.
        offset: Next offset that the table takes.
        why: Where that comes from.
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
        topic: The topic's name.
        table: ``namespace.table``.
        source: Who says where it resumes.
        head: The snapshot of ``main`` that this is true of.
        rows: Rows that the table has; they stay.
        position: The position to write.
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
