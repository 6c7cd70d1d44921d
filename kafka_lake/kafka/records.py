"""Records read by this process instead of Spark: samples, sizes, times, small topics and small ranges."""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition

from kafka_lake.common.offsets import OffsetRange, Position, Watermarks, in_topic, lag
from kafka_lake.common.records import Probe, is_time
from kafka_lake.errors import KafkaError
from kafka_lake.kafka.client import END, Reader
from kafka_lake.kafka.cluster import KafkaCluster

# Reading may go on where retention has removed the wanted offset. Brokers return at least one whole batch.
_LOOKING: Mapping[str, Any] = {"auto.offset.reset": "earliest", "fetch.max.bytes": 8 * 1024 * 1024}
_SIZES = {**_LOOKING, "fetch.wait.max.ms": 10, "max.partition.fetch.bytes": 64 * 1024, "queued.min.messages": 16}
_PROBE_RECORDS, _PROBE_BYTES = 16, 256 * 1024
_STEP = 8


@dataclass(frozen=True)
class Record:
    """A record as the broker has it.

    Args:
        timestamp_ms: Milliseconds since the epoch; -1 if it has no time.
        value: None for a tombstone.
        size: Bytes of key, value and headers.
        headers: Names and values; None if there are none.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    size: int
    headers: Sequence[tuple[str, bytes | None]] | None = None


def _record(message: Any) -> Record:
    key, value, headers = message.key(), message.value(), message.headers() or []
    size = len(key or b"") + len(value or b"") + sum(len(name) + len(content or b"") for name, content in headers)
    time_ms = message.timestamp()[1]
    place = message.partition(), message.offset()
    return Record(*place, timestamp_ms=time_ms, key=key, value=value, size=size, headers=headers or None)


def read_all(cluster: KafkaCluster, now: Watermarks) -> Iterator[Record]:
    """Yield every record of a small topic from its first offsets up to its ends, each partition in order."""
    topic = now.identity.topic
    starts = [TopicPartition(topic, p, now.low[p]) for p in now.partitions if now.low[p] < now.end[p]]
    with Reader(cluster, "adopt") as reader:
        for message in reader.messages(starts):
            end = now.end[message.partition()]
            if message.error() is None and message.offset() < end:
                yield _record(message)
            if message.error() is not None or message.offset() >= end - 1:
                reader.close(message)


COLUMNS = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)


def read_ranges(cluster: KafkaCluster, topic: str, ranges: Sequence[OffsetRange]) -> pa.Table:
    """Return the records of ranges, in the columns of Spark's Kafka source; invalid timestamps are null."""
    wanted = {offsets.partition: offsets for offsets in ranges if len(offsets)}
    messages: list[Any] = []
    # Java's client checks checksums too.
    with Reader(cluster, "read", {"check.crcs": True}) as reader:
        for message in reader.messages([TopicPartition(topic, p, offsets.start) for p, offsets in wanted.items()]):
            offset, end = message.offset(), wanted[message.partition()].end
            if offset < end:
                if message.error() is not None:
                    raise KafkaError(
                        f"Reading topic {topic}: partition {message.partition()} ends at offset {offset}, and {end} "
                        "was planned.",
                        "Nothing was published. The next run plans again.",
                    )
                messages.append(message)
            if offset >= end - 1:
                reader.close(message)
    return pa.Table.from_batches([as_batch(topic, messages)])


def as_batch(topic: str, messages: Sequence[Any]) -> pa.RecordBatch:
    """Return messages of a topic in the columns of Spark's Kafka source; invalid timestamps are null."""
    times = [message.timestamp() for message in messages]
    headers = [message.headers() for message in messages]
    columns: dict[str, Any] = {
        "key": [message.key() for message in messages],
        "value": [message.value() for message in messages],
        "topic": pa.repeat(pa.scalar(topic), len(messages)),
        "partition": [message.partition() for message in messages],
        "offset": [message.offset() for message in messages],
        "timestamp": [time_ms * 1000 if is_time(time_ms) else None for _, time_ms in times],
        # Java's client counts them from -1.
        "timestampType": [kind - 1 for kind, _ in times],
        "headers": pa.nulls(len(messages), COLUMNS.field("headers").type)
        if not any(headers)
        else [[{"key": name, "value": value} for name, value in given] if given else None for given in headers],
    }
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, COLUMNS.field(name).type)
        for name, values in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


_MANY: Mapping[str, Any] = {
    # Where retention removes records while they are read, reading goes on behind them.
    "auto.offset.reset": "earliest",
    "check.crcs": True,
    "max.partition.fetch.bytes": 8 << 20,
    "queued.max.messages.kbytes": 64 << 10,
    "queued.min.messages": 200_000,
}


def message_lists(
    cluster: KafkaCluster, topic: str, ranges: Iterable[OffsetRange]
) -> Iterator[tuple[list[Any], list[int], list[int]]]:
    """Yield many messages of ranges at once, with their partitions and offsets; some may lie behind a range.

    Raises:
        KafkaError: If the brokers don't answer, or a partition ends before its range does.
    """
    with Reader(cluster, "lists", _MANY) as reader:
        yield from reader.lists(topic, ranges)


@dataclass(frozen=True, order=True)
class RecordReference:
    """An offset in a partition of a topic. The topic's id differs from earlier topics of the same name."""

    topic: str
    partition: int
    offset: int
    topic_id: str = ""


def unread(now: Watermarks, position: Position | None) -> dict[int, RecordReference]:
    """Return the place of the oldest unread record of each partition that has one."""
    known = in_topic(position, now)
    offsets = known.offsets if known else {}
    return {
        p: RecordReference(now.identity.topic, p, max(offsets.get(p, 0), now.low[p]), now.identity.topic_id)
        for p, count in lag(known, now).items()
        if count
    }


def arrival_times(
    cluster: KafkaCluster, places: Collection[RecordReference], seconds: float
) -> dict[RecordReference, float | None]:
    """Return the Kafka timestamp of the first record at or after each place, in seconds since the epoch."""
    wanted = {(place.topic, place.partition): place for place in places}
    times: dict[RecordReference, float | None] = {}
    settings = {**_LOOKING, "max.partition.fetch.bytes": 1024, "queued.min.messages": 1}
    if not wanted:
        return times
    with Reader(cluster, "oldest", settings) as reader:
        starts = [TopicPartition(place.topic, place.partition, place.offset) for place in places]
        for message in reader.messages(starts, seconds, errors=None):
            place, error = wanted[message.topic(), message.partition()], message.error()
            if error is None and is_time(milliseconds := message.timestamp()[1]):
                times[place] = milliseconds / 1000
            elif error is not None and error.code() == END:
                times[place] = None
            reader.close(message)
    return times


def record_sizes(
    cluster: KafkaCluster, topic: str, ranges: Sequence[OffsetRange], places: int, seconds: float = 10.0
) -> list[Probe]:
    """Return how large records are at the beginnings of equal parts of ranges, from a few records of each part."""
    pending = {offsets.partition: parts(offsets, places) for offsets in ranges if len(offsets)}
    deadline = time.monotonic() + seconds
    probes: list[Probe] = []
    with Reader(cluster, "record-sizes", _SIZES) as reader:
        while pending and (rest := deadline - time.monotonic()) > 0:
            probes += _probes(reader, topic, {p: due[0] for p, due in pending.items()}, rest)
            pending = {p: due[1:] for p, due in pending.items() if due[1:]}
    return probes


def _probes(reader: Reader, topic: str, at: Mapping[int, OffsetRange], seconds: float) -> list[Probe]:
    counts, sizes, probes = dict.fromkeys(at, 0), dict.fromkeys(at, 0), []
    for message in reader.messages([TopicPartition(topic, p, part.start) for p, part in at.items()], seconds):
        part = at[message.partition()]
        partition, error, offset = part.partition, message.error(), message.offset()
        if error is None and part.start <= offset < part.end:
            counts[partition] += 1
            sizes[partition] += _record(message).size
        done = error is not None or offset >= part.end - 1
        if done or counts[partition] == _PROBE_RECORDS or sizes[partition] >= _PROBE_BYTES:
            reached = part.end if done else offset + 1
            probes.append(Probe(partition, part.start, reached - part.start, sizes[partition]))
            reader.close(message)
    return probes


def parts(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """Return the equal parts that make up a range, none empty.

    >>> parts(OffsetRange(0, 100, 200), 2)
    [OffsetRange(partition=0, start=100, end=150), OffsetRange(partition=0, start=150, end=200)]
    >>> [len(part) for part in parts(OffsetRange(0, 7, 9), 4)]
    [1, 1]
    """
    borders = sorted({whole.start + len(whole) * number // count for number in range(count + 1)})
    return [OffsetRange(whole.partition, start, end) for start, end in pairwise(borders)]


def first_large_record(
    cluster: KafkaCluster, topic: str, ranges: Sequence[OffsetRange], limit: int
) -> tuple[int, int, int | None] | None:
    """Return partition, offset and bytes of the first large record in some ranges; None if there is none.

    All records are read, one batch of each partition at a time: this process holds a batch of the largest twice.
    """
    wanted = {offsets.partition: offsets for offsets in ranges if len(offsets)}
    starts = [TopicPartition(topic, p, offsets.start) for p, offsets in wanted.items()]
    with Reader(cluster, "record-sizes", _SIZES) as reader:
        for message in reader.messages(starts, errors=(END, ClientError._BAD_COMPRESSION)):
            offsets, error, offset = wanted[message.partition()], message.error(), message.offset()
            if error is not None and error.code() == ClientError._BAD_COMPRESSION and offset < offsets.end:
                return offsets.partition, max(offset, offsets.start), None
            if error is None and offset < offsets.end and (size := _record(message).size) > limit:
                return offsets.partition, offset, size
            if error is not None or offset >= offsets.end - 1:
                reader.close(message)
    return None


@dataclass(frozen=True)
class Sample:
    """The newest records of a topic.

    Args:
        records: The oldest first, tombstones among them.
        offsets: How many offsets were looked at. Transaction markers, and records that were aborted or compacted away,
            have offsets without a record.
        complete: Whether all those offsets were reached within the limits of time and bytes.
    """

    records: tuple[Record, ...]
    offsets: int
    complete: bool


class Sampler:
    """Reads the newest records of one topic after the other; a context manager, since it holds a connection.

    Args:
        seconds: Most that one topic may take.
        max_bytes: Bytes of a topic's records after which no more are read.
        farthest: Offsets before a partition's end beyond which no value is looked for.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        seconds: float = 5.0,
        max_bytes: int = 16 * 1024 * 1024,
        farthest: int = 100_000,
    ) -> None:
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._farthest = farthest
        self._reader = Reader(cluster, "sample", {**_LOOKING, "max.partition.fetch.bytes": 1024 * 1024})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reader.__exit__(exc_type, exc, traceback)

    def newest(self, now: Watermarks, count: int) -> Sample:
        """Return the newest records of a topic that have a value, and the tombstones between them.

        Each partition gives its share, see `shares`. Where its last offsets hold too few values, those before are
        read, in growing steps.
        """
        wanted = shares({p: now.end[p] - now.low[p] for p in now.partitions}, count)
        first = {p: max(now.low[p], now.end[p] - self._farthest) for p in wanted}
        windows = {p: (max(first[p], now.end[p] - share), now.end[p]) for p, share in wanted.items()}
        records_of: dict[int, list[Record]] = {p: [] for p in wanted}
        deadline, room, offsets, complete = time.monotonic() + self._seconds, self._max_bytes, 0, True
        while windows and complete:
            offsets += sum(stop - start for start, stop in windows.values())
            records, complete = self._read(now.identity.topic, windows, deadline, room)
            room -= sum(record.size for record in records)
            for p in windows:
                records_of[p] = _newest([r for r in records if r.partition == p] + records_of[p], wanted[p])
            windows = {
                p: (max(first[p], start - _STEP * (stop - start)), start)
                for p, (start, stop) in windows.items()
                if first[p] < start and sum(r.value is not None for r in records_of[p]) < wanted[p]
            }
        by_time = sorted((r for rs in records_of.values() for r in rs), key=lambda r: (r.timestamp_ms, r.offset))
        return Sample(tuple(by_time), offsets, complete)

    def _read(
        self, topic: str, windows: Mapping[int, tuple[int, int]], deadline: float, room: int
    ) -> tuple[list[Record], bool]:
        """Return the records of a window of offsets in each partition, and whether these are all of them."""
        records: list[Record] = []
        unread = set(windows)
        starts = [TopicPartition(topic, p, start) for p, (start, _) in windows.items()]
        for message in self._reader.messages(starts, deadline - time.monotonic()):
            last = windows[message.partition()][1] - 1
            if message.error() is None and message.offset() <= last:
                records.append(_record(message))
                room -= records[-1].size
            if message.error() is not None or message.offset() >= last:
                unread.discard(message.partition())
                self._reader.close(message)
            if room <= 0:
                break
        return records, not unread


def shares(available: Mapping[int, int], count: int) -> dict[int, int]:
    """Return how many of a topic's newest records each partition gives: equally many, as far as it has them.

    >>> shares({0: 1, 1: 100, 2: 0, 3: 100}, 20)
    {0: 1, 1: 9, 3: 10}
    """
    left, given = count, {}
    by_count = sorted((held, p) for p, held in available.items() if held > 0)
    for index, (held, p) in enumerate(by_count):
        if share := min(held, left // (len(by_count) - index)):
            given[p] = share
            left -= share
    return given


def _newest(records: Sequence[Record], count: int) -> list[Record]:
    """Return the records from the oldest of the newest ``count`` values on."""
    values = [index for index, record in enumerate(records) if record.value is not None]
    return list(records[values[-count] :] if len(values) >= count else records)
