"""Offsets of a topic: ranges, positions and ends as plain data. Pure: no Kafka client, no Spark, no Dagster."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kafka_lake.common.records import LastRecord, from_text, to_text


@dataclass(frozen=True, order=True)
class OffsetRange:
    """The offsets ``start <= offset < end`` of one Kafka partition.

    Raises:
        ValueError: If the range runs backwards or starts below zero.
    """

    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"partition {self.partition}: {self.start}..{self.end} is not an offset range")

    def __len__(self) -> int:
        return self.end - self.start


LossReason = Literal["retention", "truncated", "replaced", "partition gone", "topic recreated", "skipped"]


@dataclass(frozen=True)
class Loss:
    """Offsets that the table will never get, because Kafka no longer has them or a person chose to skip them.

    Args:
        end: Exclusive end; None if it is unknown, as for a topic that was deleted.
        reason: Why. For ``truncated``, the offsets are those between where the log was cut off and the table's
            position: the table has read them, and what came after them is lost. For ``replaced``, ``start`` is the
            record that differs and ``end`` the table's position: the log has other records there, from an offset on
            that isn't known.
        topic: The topic's name, as snapshots have it; empty while a commit of the topic is planned.
    """

    partition: int
    start: int
    end: int | None
    reason: LossReason
    topic: str = ""

    def __str__(self) -> str:
        last = "?" if self.end is None else self.end - 1
        reasons = {
            "retention": f"lost offsets {self.start} to {last} to retention",
            "truncated": f"was truncated at {self.start}, before the table's position {self.end}",
            "replaced": f"was replaced: its record at offset {self.start} is not the one that the table has read, so "
            f"records before the table's position {self.end} may be missing",
            "partition gone": f"is gone, the table's position in it was {self.start}",
            "topic recreated": f"lost all records from offset {self.start} on when the topic was deleted",
            "skipped": f"skipped offsets {self.start} to {last} by a reset",
        }
        return f"{place(self.topic, self.partition)} {reasons[self.reason]}"


def place(topic: str, partition: int) -> str:
    """Return a Kafka partition's name in a sentence.

    >>> place("pizzas", 0), place("", 0)
    ('topic pizzas partition 0', 'partition 0')
    """
    return f"topic {topic} partition {partition}" if topic else f"partition {partition}"


def losses_to_json(losses: Iterable[Loss]) -> str:
    """Return losses as the canonical JSON text that snapshot summaries carry."""
    return json.dumps([asdict(loss) for loss in losses], separators=(",", ":"))


def losses_from_json(text: str) -> list[Loss]:
    """Parse what `losses_to_json` wrote; raises ValueError if the text is something else."""
    try:
        return [Loss(**loss) for loss in json.loads(text)]
    except (TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"no list of losses: {text!r}") from error


@dataclass(frozen=True)
class TopicIdentity:
    """What makes a topic the same topic: names can be reused, the broker's ids can't (KIP-516).

    Args:
        cluster_id: The Kafka cluster's id; empty if the broker reports none.
        topic_id: The topic's UUID; empty if the broker is older than 2.8.
    """

    cluster_id: str
    topic_id: str
    topic: str

    def same_as(self, other: "TopicIdentity") -> bool:
        """Return whether both are one topic; an id that one side lacks is not compared."""

        def agree(mine: str, theirs: str) -> bool:
            return not mine or not theirs or mine == theirs

        return (
            self.topic == other.topic
            and agree(self.cluster_id, other.cluster_id)
            and agree(self.topic_id, other.topic_id)
        )


@dataclass(frozen=True)
class Position:
    """How far a table has consumed one of its topics.

    Args:
        offsets: The next offset of every Kafka partition.
        epochs: Per partition, the epoch of a leader that had everything before the offset; empty if the brokers report
            none. A log that is cut off and grows again has another leader epoch from there on (KIP-320).
        last: Per partition, the last record before the offset; empty in positions that were rebuilt or set by hand.
    """

    identity: TopicIdentity
    offsets: Mapping[int, int]
    epochs: Mapping[int, int] = field(default_factory=dict)
    last: Mapping[int, LastRecord] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return what `positions_to_json` gives of a table with this topic alone.

        >>> Position(TopicIdentity("c", "t", "pizzas"), {1: 7, 0: 5}).to_json()
        '{"pizzas":{"cluster_id":"c","topic_id":"t","offsets":{"0":5,"1":7}}}'
        """
        return positions_to_json([self])

    @classmethod
    def from_json(cls, text: str) -> "Position":
        """Parse what `to_json` wrote; raises ValueError if the text is something else, or has several topics."""
        (position,) = positions_from_json(text).values()
        return position

    def advanced(self, ranges: tuple[OffsetRange, ...]) -> "Position":
        """Return the position after `ranges` were consumed; other partitions stay where they are."""
        offsets = {**self.offsets, **{r.partition: r.end for r in ranges}}
        last = {p: known for p, known in self.last.items() if offsets.get(p) == self.offsets.get(p)}
        return Position(self.identity, offsets, self.epochs, last)


Positions = Mapping[str, Position]
"""How far a table has consumed each of its topics, by the topics' names."""


def positions_to_json(positions: Iterable[Position]) -> str:
    """Return the canonical JSON of snapshot summaries: ``{topic: {…, "offsets": {partition: offset}}}``."""
    doc: dict[str, dict[str, object]] = {}
    for position in sorted(positions, key=lambda position: position.identity.topic):
        identity = position.identity
        entry: dict[str, object] = {"cluster_id": identity.cluster_id, "topic_id": identity.topic_id}
        entry["offsets"] = {str(p): position.offsets[p] for p in sorted(position.offsets)}
        if position.epochs:
            entry["epochs"] = {str(p): position.epochs[p] for p in sorted(position.epochs)}
        if last := to_text(position.offsets, position.last):
            entry["last"] = last
        doc[identity.topic] = entry
    return json.dumps(doc, separators=(",", ":"))


def positions_from_json(text: str) -> dict[str, Position]:
    """Parse what `positions_to_json` wrote; raises ValueError if the text is something else, or has no topic."""
    try:
        found = {topic: _position(topic, doc) for topic, doc in json.loads(text).items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a position: {text!r}") from error
    if not found:
        raise ValueError(f"not a position: {text!r}")
    return found


def _position(topic: str, doc: Mapping[str, Any]) -> Position:
    offsets = {int(p): int(o) for p, o in doc["offsets"].items()}
    epochs = {int(p): int(e) for p, e in doc.get("epochs", {}).items()}
    identity = TopicIdentity(doc["cluster_id"], doc["topic_id"], topic)
    return Position(identity, offsets, epochs, from_text(offsets, doc.get("last", "")))


def least(positions: Collection[Position]) -> Position | None:
    """Return the least position of several tables of a topic; None without any, or if one is in an older topic."""
    first = next(iter(positions), None)
    if first is None:
        return None
    if not all(position.identity.same_as(first.identity) for position in positions):
        return None
    # A table that doesn't know a partition yet has nothing of it.
    by_all = set(first.offsets).intersection(*(position.offsets for position in positions))
    offsets = {partition: min(position.offsets[partition] for position in positions) for partition in sorted(by_all)}
    return Position(first.identity, offsets, first.epochs)


@dataclass(frozen=True)
class Watermarks:
    """What a topic holds now.

    Args:
        low: Log start offset per partition: the oldest record still there.
        end: Exclusive end per partition: the last stable offset, or the high watermark for read_uncommitted.
        epochs: The leader's epoch per partition; empty if the brokers report none.
        cut_off: Per partition, where the log was cut off before a table's position and has grown again; None if no
            record of the log is one that the table has read. By `KafkaCluster.cut_off`.
        replaced: Per partition, a record that differs from the one that a table has read at its offset.
    """

    identity: TopicIdentity
    low: Mapping[int, int]
    end: Mapping[int, int]
    epochs: Mapping[int, int] = field(default_factory=dict)
    cut_off: Mapping[int, int | None] = field(default_factory=dict)
    replaced: Mapping[int, int] = field(default_factory=dict)

    @property
    def partitions(self) -> list[int]:
        """Return the partition numbers in ascending order."""
        return sorted(self.end)


def in_topic(position: Position | None, now: Watermarks) -> Position | None:
    """Return a position if it is in this very topic, and not in an older one of the same name."""
    return position if position is not None and position.identity.same_as(now.identity) else None


def lag(position: Position | None, now: Watermarks) -> dict[int, int]:
    """Return, per partition, how many offsets lie between the position (or the log's start) and the end.

    >>> me = TopicIdentity("c", "t", "pizzas")
    >>> lag(Position(me, {0: 5}), Watermarks(me, {0: 0, 1: 2}, {0: 9, 1: 4}))
    {0: 4, 1: 2}
    """
    offsets = position.offsets if position else {}
    return {p: max(0, now.end[p] - offsets.get(p, now.low[p])) for p in now.partitions}


def joined_ranges(ranges: Iterable[OffsetRange], apart: int | None) -> list[OffsetRange]:
    """Return ranges with those of a partition that are less than so many offsets apart as one; None for all of them.

    >>> [(r.partition, r.start, r.end) for r in joined_ranges([OffsetRange(0, 9, 10), OffsetRange(0, 1, 2)], 7)]
    [(0, 1, 2), (0, 9, 10)]
    >>> [(r.partition, r.start, r.end) for r in joined_ranges([OffsetRange(0, 9, 10), OffsetRange(0, 1, 2)], None)]
    [(0, 1, 10)]
    """
    found: list[OffsetRange] = []
    for range_ in sorted(ranges, key=lambda r: (r.partition, r.start)):
        last = found[-1] if found else None
        if last and last.partition == range_.partition and (apart is None or range_.start - last.end < apart):
            found[-1] = OffsetRange(last.partition, last.start, max(last.end, range_.end))
        else:
            found.append(range_)
    return found
