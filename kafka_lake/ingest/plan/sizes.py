"""How many of the planned records a commit reads, so that it stays near so many bytes.

Kafka tells how many offsets there are, and not how large their records are. So sizes are estimated: from probes, which
are a few records here and there in the very ranges that are planned, and from the commit before, whose bytes were
counted. The larger of the two counts.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.common.record_sizes import Probe
from kafka_lake.ingest.plan.model import chunk


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
        within: The range.
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
