"""Records whose rows are kept back until the rows that they look up are there: which they are, exactly. Pure."""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from kafka_lake.common.offsets import OffsetRange, joined_ranges

MOST_RANGES = 50_000
"""How many ranges a snapshot may tell: each snapshot that is kept has them."""
_PLAIN = 50


@dataclass(frozen=True)
class Waiting:
    """Records that are kept back.

    Args:
        ranges: Their offsets and no others, in order; ranges neither overlap nor touch.
        oldest: The least Kafka timestamp among them, in milliseconds; None if there are none.
    """

    ranges: tuple[OffsetRange, ...] = ()
    oldest: int | None = None

    def __len__(self) -> int:
        return sum(map(len, self.ranges))

    def has_waited(self, lookback: float, now: float) -> bool:
        """Return whether a record has waited for longer than ``lookback``, in seconds."""
        return self.oldest is not None and self.oldest <= (now - lookback) * 1000

    def to_document(self) -> dict[str, object]:
        """Return what a snapshot's summary tells; of many ranges the lengths, compressed.

        >>> Waiting((OffsetRange(0, 5, 7), OffsetRange(0, 9, 10)), 3).to_document()
        {'oldest': 3, 'offsets': {'0': [5, 2, 2, 1]}}
        """
        steps: dict[str, list[int]] = {}
        for partition, told in groupby(self.ranges, lambda each: each.partition):
            end, found = 0, list[int]()
            for each in told:
                found += [each.start - end, len(each)]
                end = each.end
            steps[str(partition)] = found
        if len(self.ranges) <= _PLAIN:
            return {"oldest": self.oldest, "offsets": steps}
        packed = zlib.compress(json.dumps(steps, separators=(",", ":")).encode(), 9)
        return {"oldest": self.oldest, "offsets": base64.b64encode(packed).decode()}

    @classmethod
    def of(cls, doc: Mapping[str, object]) -> "Waiting":
        """Parse what `to_document` gave.

        Raises:
            ValueError: If it is nothing of the kind.
        """
        try:
            told, oldest = doc["offsets"], doc["oldest"]
            steps = json.loads(zlib.decompress(base64.b64decode(told))) if isinstance(told, str) else told
            ranges = []
            for partition, numbers in steps.items():  # type: ignore[union-attr]
                end = 0
                for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
                    ranges.append(OffsetRange(int(partition), end + gap, end + gap + length))
                    end += gap + length
            return cls(tuple(ranges), None if oldest is None else int(str(oldest)))
        except (KeyError, TypeError, AttributeError, zlib.error) as error:
            raise ValueError(f"no records that wait: {doc!r:.200}") from error


def joined(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return ranges that have the same offsets, in order, and neither overlap nor touch.

    >>> joined([OffsetRange(0, 5, 7), OffsetRange(0, 1, 3), OffsetRange(0, 3, 4)])
    (OffsetRange(partition=0, start=1, end=4), OffsetRange(partition=0, start=5, end=7))
    """
    return tuple(joined_ranges((each for each in ranges if len(each)), 1))


def without(ranges: Sequence[OffsetRange], others: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the offsets of some ranges that are in no other one.

    >>> without([OffsetRange(0, 1, 9)], [OffsetRange(0, 2, 3), OffsetRange(0, 8, 12), OffsetRange(1, 1, 9)])
    (OffsetRange(partition=0, start=1, end=2), OffsetRange(partition=0, start=3, end=8))
    """
    found: list[OffsetRange] = []
    apart, number = joined(others), 0
    for each in joined(ranges):
        at = each.start
        while number < len(apart) and (apart[number].partition, apart[number].end) <= (each.partition, at):
            number += 1
        here = number
        while here < len(apart) and apart[here].partition == each.partition and apart[here].start < each.end:
            if apart[here].start > at:
                found.append(OffsetRange(each.partition, at, apart[here].start))
            at = max(at, apart[here].end)
            here += 1
        if at < each.end:
            found.append(OffsetRange(each.partition, at, each.end))
    return tuple(found)


def coarse(ranges: Iterable[OffsetRange], most: int) -> tuple[OffsetRange, ...]:
    """Return about as many ranges as are asked for, at least one a partition, that have all of the offsets.

    The widest gaps stay.

    >>> coarse([OffsetRange(0, 1, 2), OffsetRange(0, 3, 4), OffsetRange(0, 90, 91)], 2)
    (OffsetRange(partition=0, start=1, end=4), OffsetRange(partition=0, start=90, end=91))
    """
    there = joined(ranges)
    if len(there) <= most:
        return there
    gaps = [b.start - a.end for a, b in pairwise(there) if a.partition == b.partition]
    partitions = len({each.partition for each in there})
    widest = sorted(gaps, reverse=True)[: max(0, most - partitions)]
    least = widest[-1] if widest else None
    kept, found = len(widest), [there[0]]
    for each in there[1:]:
        last = found[-1]
        gap = each.start - last.end
        if last.partition != each.partition:
            found.append(each)
        elif least is not None and kept and gap >= least:
            found.append(each)
            kept -= 1
        else:
            found[-1] = OffsetRange(each.partition, last.start, each.end)
    return tuple(found)
