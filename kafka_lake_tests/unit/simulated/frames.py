"""Frames of records in memory, and what reads, joins and writes them."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Row

from kafka_lake.common.offsets import OffsetRange
from kafka_lake_tests.unit.simulated.history import COLUMNS, Record, identity_of

if TYPE_CHECKING:
    from kafka_lake_tests.unit.simulated.process import Process

NAME = r"`lake`\.`(\w+)`\.`(\w+)`"
_WRITE_NAME = re.compile(rf"{NAME}\.`branch_(\w+)`")


class Reader:
    """Reads what was appended between two snapshots."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._options: dict[str, int] = {}

    def format(self, name: str) -> "Reader":
        assert name == "iceberg"
        return self

    def option(self, key: str, value: str) -> "Reader":
        self._options[key] = int(value)
        return self

    def load(self, name: str) -> "Frame":
        found = re.fullmatch(NAME, name)
        assert found, name
        table, options = (found[1], found[2]), self._options

        def rows() -> list[Record]:
            by_id = self._process.world.tables[table].by_id
            before, new = (by_id.get(options[f"{which}-snapshot-id"]) for which in ("start", "end"))
            if before is None or new is None:
                raise PySparkException("Cannot find the snapshots to read between")
            return list((Counter(new.content) - Counter(before.content)).elements())

        return Frame(self._process, rows)


def within(ranges: Sequence[OffsetRange]) -> Callable[[Record], bool]:
    return lambda record: any(r.partition == record.partition and r.start <= record.offset < r.end for r in ranges)


class Frame:
    """Records that are computed when they are needed, each time again."""

    columns = ()
    schema = COLUMNS

    def __init__(self, process: "Process", source: Callable[[], list[Record]]) -> None:
        self.process, self.source = process, source

    def derived(self, function: Callable[[list[Record]], list[Record]]) -> "Frame":
        return Frame(self.process, lambda: function(self.source()))

    def filter(self, condition: Callable[[Record], bool] | str) -> "Frame":
        if isinstance(condition, str):
            partition = condition.removeprefix("partition = ")
            return self.derived(lambda records: [r for r in records if str(r.partition) == partition])
        return self.derived(lambda records: [r for r in records if condition(r)])

    def select(self, *_: Any) -> "Frame":
        return self

    coalesce = sortWithinPartitions = select

    @property
    def sparkSession(self) -> Any:
        views = self.process.views
        return SimpleNamespace(table=views.__getitem__, catalog=SimpleNamespace(dropTempView=views.pop))

    def persist(self, _: Any) -> "Frame":
        return self

    def limit(self, count: int) -> "Frame":
        # As Spark does, which computes nothing for none.
        return self.derived(lambda records: records[:count]) if count else Frame(self.process, list)

    def count(self) -> int:
        return len(self.source())

    def collect(self) -> list[Row]:
        return [Row(partition=record.partition, offset=record.offset) for record in self.source()]

    def unionByName(self, other: "Frame", **_: Any) -> "Frame":
        return self.derived(lambda records: records + other.source())

    def createOrReplaceTempView(self, name: str) -> None:
        self.process.views[name] = self

    def writeTo(self, name: str) -> "Writer":
        return Writer(self, name)


class SimulatedFrames:
    """What Spark computes of frames, by topic, partition and offset alone: there is no time."""

    # No gap: else all offsets there are would be near each other.
    apart = 1

    def __init__(self, process: "Process") -> None:
        self._process = process

    def from_kafka(self, _: Any, options: Mapping[str, str]) -> Frame:
        assigned, starts, ends = (json.loads(options[name]) for name in ("assign", "startingOffsets", "endingOffsets"))
        (topic,) = assigned
        ranges = [OffsetRange(p, starts[topic][str(p)], ends[topic][str(p)]) for p in assigned[topic]]
        return Frame(self._process, lambda: self._process.world.logs[topic].read(ranges))

    def keys(self, rows: Frame, *_: Any, **__: Any) -> Frame:
        return rows

    named = keys

    def within(self, rows: Frame, ranges: Sequence[OffsetRange], *_: Any) -> Frame:
        return rows.filter(within(ranges))

    def within_topic(self, rows: Frame, ranges: Sequence[OffsetRange], topic_id: str, *_: Any) -> Frame:
        return self.within(rows, ranges).filter(lambda record: identity_of(record.topic).topic_id == topic_id)

    def of_topic(self, rows: Frame, topic: str, *_: Any) -> Frame:
        return rows.filter(lambda record: identity_of(record.topic).topic == topic)

    def without(self, rows: Frame, others: Frame, *_: Any) -> Frame:
        return self._joined(rows, others, False)

    def among(self, rows: Frame, others: Frame, *_: Any) -> Frame:
        return self._joined(rows, others, True)

    rows_of = among

    def _joined(self, rows: Frame, others: Frame, with_twins: bool) -> Frame:
        def joined(records: list[Record]) -> list[Record]:
            theirs = {record.key for record in others.source()}
            return [record for record in records if (record.key in theirs) == with_twins]

        return rows.derived(joined)

    def places(self, keys: Frame) -> list[OffsetRange]:
        return [OffsetRange(r.partition, r.offset, r.offset + 1) for r in keys.source()]

    def counted(self, keys: Frame) -> list[Row]:
        return [Row(partition=p, rows=len(o), first=min(o)) for p, o in _by_partition(keys).items()]

    def partitions(self, rows: Frame) -> list[Row]:
        return [
            Row(partition=p, rows=len(o), first=min(o), last=max(o), distinct=len(set(o)))
            for p, o in _by_partition(rows).items()
        ]

    def furthest(self, rows: Frame, *_: Any) -> list[Row]:
        return [
            Row(topic=(identity := identity_of(topic)).topic, topic_id=identity.topic_id, partition=p, last=max(o))
            for topic in sorted({record.topic for record in rows.source()})
            for p, o in _by_partition(rows.filter(lambda record, topic=topic: record.topic == topic)).items()
        ]


def _by_partition(rows: Frame) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for record in rows.source():
        groups.setdefault(record.partition, []).append(record.offset)
    return groups


class Writer:
    """A write to a branch: the rows are there before the commit is."""

    def __init__(self, frame: Frame, name: str) -> None:
        found = _WRITE_NAME.fullmatch(name)
        assert found, name
        self.frame, self._table, self._branch = frame, (found[1], found[2]), found[3]
        self._properties: dict[str, str] = {}

    def option(self, key: str, value: str) -> "Writer":
        self._properties[key.removeprefix("snapshot-property.")] = value
        return self

    def append(self) -> None:
        added = self.frame.source()
        world = self.frame.process.world
        with self.frame.process.operation("commit"):
            metadata = world.tables[self._table]
            tip = metadata.refs.get(self._branch) or metadata.refs["main"]
            held = metadata.by_id[tip.snapshot_id].content
            world.commit(self._table, self._branch, (*held, *added), len(added), self._properties)
