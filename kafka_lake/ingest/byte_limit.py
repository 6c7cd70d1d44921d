"""The limit of bytes in a commit, by an estimate from sampled records."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.common.records import Probe
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan, can_be_parted, chunk, part

LARGEST_RECORD = 16 << 20
"""Assumed bytes of the largest record before records were sampled. Brokers accept 1 MiB by default."""

# Sampled places in all partitions, and in one partition: each place takes a request.
_PLACES, _MOST_PLACES, _FEWEST_PLACES = 256, 16, 2
_ROUNDS = 4
# Records may be this many times larger than the sampled ones.
_MARGIN = 64
# Records that this process reads, which it holds in memory.
_BYTES_BY_CLIENT = 64 << 20


def within_bytes(
    ranges: tuple[OffsetRange, ...], probes: Iterable[Probe], max_bytes: int, mean: float = 0.0
) -> tuple[OffsetRange, ...]:
    """Return the first part of planned ranges with about ``max_bytes``, shared evenly by the partitions.

    >>> sixteen_large = [Probe(0, 0, 16, 16_000)]
    >>> within_bytes((OffsetRange(0, 0, 100),), sixteen_large, 10_000)
    (OffsetRange(partition=0, start=0, end=10),)
    """
    sampled = _by_partition(ranges, probes, 0 if mean else LARGEST_RECORD)

    def estimate(records: int) -> int:
        return ceil(max(sum(estimated(r, sampled[r.partition]) for r in chunk(ranges, records)), mean * records))

    planned = range(1, sum(map(len, ranges)) + 1)
    return chunk(ranges, bisect_right(planned, max_bytes, key=estimate))


def estimated(within: OffsetRange, probes: Sequence[Probe]) -> float:
    """Return the estimated bytes of a range: each probe stands for the offsets up to the next one.

    >>> estimated(OffsetRange(0, 0, 100), [Probe(0, 0, 10, 20), Probe(0, 50, 10, 1000)])
    5100.0
    """
    borders = [within.start, *(max(within.start, later.start) for later in probes[1:]), max(within.end, within.start)]
    parts = zip(pairwise(borders), probes, strict=True)
    return float(sum((min(stop, within.end) - start) * _density(probe)
                     for (start, stop), probe in parts if start < within.end))  # fmt: skip


def largest(probes: Iterable[Probe]) -> dict[int, float]:
    """Return the most bytes per offset that a probe found, by partition."""
    most: dict[int, float] = {}
    for probe in probes:
        most[probe.partition] = max(most.get(probe.partition, 0.0), _density(probe))
    return most


def _density(probe: Probe) -> float:
    return probe.bytes / probe.offsets


def _by_partition(ranges: Sequence[OffsetRange], probes: Iterable[Probe], unknown: int) -> dict[int, list[Probe]]:
    """Return probes in order of their offsets; partitions without a probe get the one with the largest records."""
    latest = {(probe.partition, probe.start): probe for probe in probes}
    worst = max(latest.values(), key=_density, default=Probe(0, 0, 1, unknown))
    sampled: dict[int, list[Probe]] = {}
    for _, probe in sorted(latest.items()):
        sampled.setdefault(probe.partition, []).append(probe)
    return {r.partition: [replace(worst, partition=r.partition, start=r.start)] for r in ranges} | sampled


class ByteLimit:
    """Cuts plans to about ``max_bytes_per_commit``, by the sizes of sampled records."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._largest: Mapping[int, float] = {}
        self._mean = 0.0

    def cut(self, todo: Plan) -> Plan:
        """Return the part of a plan that is within the limit: at least one record.

        Records are sampled only if they may come near the limit; the plan then has the bytes of the largest.
        """
        cut = self._cut(todo)
        if not self._largest or not can_be_parted(cut):
            return cut
        return replace(cut, record_bytes=max(self._largest.values()))

    def _cut(self, todo: Plan) -> Plan:
        spec, connections = self._context.spec, self._context.connections
        limit = spec.max_bytes_per_commit
        if todo.by_client:
            limit = min(limit or _BYTES_BY_CLIENT, _BYTES_BY_CLIENT)
        if limit is None or not can_be_parted(todo) or self._surely_fits(todo, limit):
            return todo

        def probe(ranges: tuple[OffsetRange, ...], places: int) -> list[Probe]:
            return connections.record_sizes(connections.cluster, spec.topic, ranges, places)

        # Most commits are far from the limit, and two places a partition show it.
        probes = probe(todo.ranges, _FEWEST_PLACES)
        self._largest = largest(probes)
        if self._surely_fits(todo, limit):
            return todo
        places = max(_FEWEST_PLACES, min(_MOST_PLACES, _PLACES // len(todo.ranges)))
        probed = todo.ranges
        for _ in range(_ROUNDS):
            probes += probe(probed, places)
            fitting = within_bytes(todo.ranges, probes, limit, self._mean)
            # Few of the places lie in the part that fits: sample there again.
            if 2 * sum(map(len, fitting)) >= sum(map(len, probed)):
                break
            probed = fitting
        self._largest = largest(probes)
        if not probes:
            self._context.observer.warn(
                f"Topic {spec.topic}: the brokers returned no sample records in time. To stay within "
                f"max_bytes_per_commit, this commit reads {sum(map(len, fitting))} offsets."
            )
        return todo if fitting == todo.ranges else part(todo, fitting)

    def done(self, todo: Plan, commit: Commit) -> None:
        """Remember the mean size of a commit's records."""
        if can_be_parted(todo):
            self._mean = commit.bytes_read / todo.records_at_most

    def _surely_fits(self, todo: Plan, limit: int) -> bool:
        if todo.records_at_most * LARGEST_RECORD <= limit:
            return True
        if any(r.partition not in self._largest for r in todo.ranges):
            return False
        sampled = sum(len(r) * self._largest[r.partition] for r in todo.ranges)
        return _MARGIN * max(sampled, todo.records_at_most * self._mean) <= limit
