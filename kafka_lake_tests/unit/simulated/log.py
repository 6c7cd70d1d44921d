"""A topic's log in memory, and what Kafka tells of it."""

from collections.abc import Iterable, Sequence

from pyspark.errors import PySparkException

from kafka_lake.common.offsets import OffsetRange, Position, Watermarks
from kafka_lake.common.records import LastRecord, last_record
from kafka_lake_tests.unit.simulated.history import TOPIC, Record, identity_of


class Log:
    """The partitions of a topic.

    Args:
        topic: Its name, one of `history.IDENTITIES`.
    """

    def __init__(self, topic: str = TOPIC) -> None:
        self.topic, self.generation = topic, 1
        self.forgotten: set[Record] = set()
        self._begin()

    def _begin(self) -> None:
        self.log: dict[int, list[str | None]] = {0: []}
        self.low = {0: 0}
        self.cuts: dict[int, list[int]] = {}
        self.restored: dict[int, range] = {}

    @property
    def name(self) -> str:
        """Return how records name the topic as it is now."""
        return self.topic if self.generation == 1 else f"{self.topic}#{self.generation}"

    def recreate(self) -> None:
        """Delete the topic, and create it again."""
        self.forgotten |= {*self.records()}
        self.generation += 1
        self._begin()

    def produce(self, partition: int, kinds: Iterable[str | None]) -> None:
        """Append records; None is an offset without one: aborted, a transaction marker, or compacted away."""
        self.log[partition % len(self.log)] += kinds

    def add_partition(self) -> None:
        self.low[len(self.log)] = 0
        self.log[len(self.log)] = []

    def retain(self, partition: int, share: int) -> None:
        """Delete the older records of a partition: so many quarters of what there is."""
        partition %= len(self.log)
        low, end = self.low[partition], len(self.log[partition])
        self.low[partition] = low + (end - low) * share // 4

    def cut(self, partition: int, at: int, kinds: Iterable[str | None]) -> None:
        """Lose all records of a partition from an offset on, and get others instead, by another leader."""
        kept, lost = self.log[partition][:at], self.log[partition][at:]
        self.forgotten |= {Record(partition, o, kind, self.name) for o, kind in enumerate(lost, at) if kind is not None}
        self.log[partition] = [*kept, *kinds]
        self.cuts.setdefault(partition, []).append(at)

    def cut_off(self, position: Position, partitions: Iterable[int]) -> dict[int, int | None]:
        """Return where logs were cut off before a position, as `KafkaCluster.cut_off` does."""
        since = {p: self.cuts.get(p, [])[position.epochs[p] :] for p in partitions}
        return {p: min(cuts) for p, cuts in since.items() if cuts and min(cuts) < position.offsets[p]}

    def last_records(self, ranges: Iterable[OffsetRange]) -> dict[OffsetRange, list[LastRecord]]:
        """Return what is remembered of records, as `KafkaCluster.last_records` does."""
        return {
            range_: [
                last_record(o, 0, None, kind.encode())
                for o, kind in enumerate(self.log[range_.partition][: range_.end])
                if kind is not None and o >= max(range_.start, self.low[range_.partition])
            ]
            for range_ in ranges
        }

    def restore(self, partition: int, at: int, kinds: Iterable[str | None]) -> None:
        """Bring a partition back from an older copy of all that the brokers have, and append records."""
        self.restored[partition] = range(at, len(self.log[partition]))
        self.cut(partition, at, kinds)
        self.cuts[partition].pop()

    def watermarks(self) -> Watermarks:
        ends = {p: len(kinds) for p, kinds in self.log.items()}
        return Watermarks(identity_of(self.name), dict(self.low), ends, {p: len(self.cuts.get(p, ())) for p in ends})

    def read(self, ranges: Sequence[OffsetRange]) -> list[Record]:
        for r in ranges:
            if len(r) and r.start < self.low[r.partition]:
                raise PySparkException(
                    "Some data may have been lost; if you don't want that to fail the query, set failOnDataLoss to "
                    f"false. Reason: Could not read records in offset [{r.start}, {r.end}) for topic partition "
                    f"{self.topic}-{r.partition}"
                )
        kinds = ((r.partition, o, self.log[r.partition][o]) for r in ranges for o in range(r.start, r.end))
        return [Record(p, o, kind, self.name) for p, o, kind in kinds if kind is not None]

    def records(self) -> list[Record]:
        """Return all that was ever produced and is in the log as it is now."""
        return [
            Record(p, o, kind, self.name)
            for p, kinds in self.log.items()
            for o, kind in enumerate(kinds)
            if kind is not None
        ]
