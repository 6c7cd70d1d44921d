"""What keeps a commit near its limit of bytes.

Kafka tells how many offsets there are, and not how large their records are. So sizes are estimated: from probes, which
are a few records here and there in the very ranges that are planned, and from the commit before, whose bytes were
counted. The larger of the two counts.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.common.record_sizes import Probe
from kafka_lake.ingest.commit import Commit
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.plan.model import Plan, can_be_parted, chunk, part


def within_bytes(
    ranges: tuple[OffsetRange, ...], probes: Iterable[Probe], max_bytes: int, mean: float = 0.0
) -> tuple[OffsetRange, ...]:
    """Return the first part of planned ranges whose records have about so many bytes, fair to all partitions.

    Args:
        ranges: What is planned, one range of a partition at most.
        probes: Of these partitions. A partition without any counts like the one with the largest records; without
            any probe at all, what counts is the commit before, and for the first commit the largest record there is.
        max_bytes: What the part may have by the estimate. One record is taken even if it has more.
        mean: Bytes for each offset of the commit before; 0 if there was none.

    >>> sixteen_large = [Probe(0, 0, 16, 16_000)]
    >>> within_bytes((OffsetRange(0, 0, 100),), sixteen_large, 10_000)
    (OffsetRange(partition=0, start=0, end=10),)
    """
    known = _by_partition(ranges, probes, 0 if mean else LARGEST_RECORD)

    def estimate(records: int) -> int:
        return ceil(max(sum(estimated(r, known[r.partition]) for r in chunk(ranges, records)), mean * records))

    planned = range(1, sum(map(len, ranges)) + 1)
    return chunk(ranges, bisect_right(planned, max_bytes, key=estimate))


def estimated(within: OffsetRange, probes: Sequence[Probe]) -> float:
    """Return about how many bytes the records of a range have.

    Args:
        probes: At least one of its partition, in ascending order. Each counts up to the beginning of the next, the
            first from the beginning of the range.

    >>> estimated(OffsetRange(0, 0, 100), [Probe(0, 0, 10, 20), Probe(0, 50, 10, 1000)])
    5100.0
    """
    borders = [within.start, *(max(within.start, each.start) for each in probes[1:]), max(within.end, within.start)]
    parts = zip(pairwise(borders), probes, strict=True)
    return float(sum((min(stop, within.end) - start) * _density(probe)
                     for (start, stop), probe in parts if start < within.end))  # fmt: skip


def largest(probes: Iterable[Probe]) -> dict[int, float]:
    """Return, for each partition that has probes, the most bytes for an offset that one of them found."""
    found: dict[int, float] = {}
    for each in probes:
        found[each.partition] = max(found.get(each.partition, 0.0), _density(each))
    return found


def _density(probe: Probe) -> float:
    return probe.bytes / probe.offsets


def _by_partition(ranges: Sequence[OffsetRange], probes: Iterable[Probe], unknown: int) -> dict[int, list[Probe]]:
    found: dict[int, dict[int, Probe]] = {}
    for each in probes:
        found.setdefault(each.partition, {})[each.start] = each
    known = {p: [each[start] for start in sorted(each)] for p, each in found.items()}
    every = [each for several in known.values() for each in several]
    worst = max(every, key=_density, default=Probe(0, 0, 1, unknown))
    others = {r.partition: [replace(worst, partition=r.partition, start=r.start)] for r in ranges}
    return others | known


LARGEST_RECORD = 16 << 20
"""Bytes of a record that is taken for the largest, as long as nothing is known: brokers take 1 MiB by default."""


# In all partitions together, and in one: more partitions have fewer each, as each place takes a request.
_PLACES, _MOST_PLACES, _FEWEST_PLACES = 256, 16, 2
_ROUNDS = 4
# What comes may be larger than what was seen, so much that nothing less is worth another look.
_MARGIN = 64
# This process has them in memory.
_BY_CLIENT = 64 << 20


class ByteLimit:
    """The limit of bytes of a run's commits."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._largest: Mapping[int, float] = {}
        self._mean = 0.0

    def cut(self, todo: Plan) -> Plan:
        """Return as much of a plan as the limit allows: at least one record, all if there is no limit.

        Records are looked at only where they may come near the limit; the plan tells how large they are then.

        Raises:
            KafkaError: If the brokers don't give records of the topic.
        """
        cut = self._cut(todo)
        if not self._largest or not can_be_parted(cut):
            return cut
        return replace(cut, record_bytes=max(self._largest.values()))

    def _cut(self, todo: Plan) -> Plan:
        spec, connections = self._context.spec, self._context.connections
        limit = spec.max_bytes_per_commit
        if todo.by_client:
            limit = min(limit or _BY_CLIENT, _BY_CLIENT)
        if limit is None or not can_be_parted(todo) or self._surely_fits(todo, limit):
            return todo

        def probe(ranges: tuple[OffsetRange, ...], places: int) -> list[Probe]:
            return connections.record_sizes(connections.cluster, spec.topic, ranges, places)

        # Most commits are far from the limit, which few places tell.
        probes = probe(todo.ranges, _FEWEST_PLACES)
        self._largest = largest(probes)
        if self._surely_fits(todo, limit):
            return todo
        places = max(_FEWEST_PLACES, min(_MOST_PLACES, _PLACES // len(todo.ranges)))
        probed = todo.ranges
        for _ in range(_ROUNDS):
            probes += probe(probed, places)
            fitting = within_bytes(todo.ranges, probes, limit, self._mean)
            # What is left of a long plan has few of the places: more of them there, then.
            if 2 * sum(map(len, fitting)) >= sum(map(len, probed)):
                break
            probed = fitting
        self._largest = largest(probes)
        if not probes:
            self._context.observer.warn(
                f"Topic {spec.topic}: the brokers gave no record in time that would show how large records are. "
                f"To stay within max_bytes_per_commit this commit reads {sum(map(len, fitting))} offsets."
            )
        return todo if fitting == todo.ranges else part(todo, fitting)

    def done(self, todo: Plan, commit: Commit) -> None:
        """Learn from a commit how many bytes its records had."""
        if can_be_parted(todo):
            self._mean = commit.bytes_read / todo.records_at_most

    def _surely_fits(self, todo: Plan, limit: int) -> bool:
        if todo.records_at_most * LARGEST_RECORD <= limit:
            return True
        if any(r.partition not in self._largest for r in todo.ranges):
            return False
        sampled = sum(len(r) * self._largest[r.partition] for r in todo.ranges)
        return _MARGIN * max(sampled, todo.records_at_most * self._mean) <= limit
