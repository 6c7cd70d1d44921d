"""Limits of one commit: bytes, records too large for the engine, and the search for a record that breaks its batch."""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from pyiceberg.table import Table

from kafka_lake.common.offsets import OffsetRange, TopicIdentity
from kafka_lake.common.records import Probe
from kafka_lake.error_classification import engine_died, is_transient
from kafka_lake.errors import EveryRecordFailsError, RecordTooLargeError
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan, can_be_parted, chunk, part


def within_bytes(
    ranges: tuple[OffsetRange, ...], probes: Iterable[Probe], max_bytes: int, mean: float = 0.0
) -> tuple[OffsetRange, ...]:
    """Return the first part of planned ranges whose records have about so many bytes, fair to all partitions.

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
_BYTES_BY_CLIENT = 64 << 20


class ByteLimit:
    """The limit of bytes of a run's commits."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._largest: Mapping[int, float] = {}
        self._mean = 0.0

    def cut(self, todo: Plan) -> Plan:
        """Return as much of a plan as the limit allows: at least one record, all if there is no limit.

        Records are looked at only where they may come near the limit; the plan tells how large they are then.
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


TOO_LARGE = "kafka-lake.too-large"
"""A property of a table: the records that have ended the engine, as JSON, by topic id and Kafka partition."""
LARGE = 32 * 1024 * 1024
"""Bytes of a record from which on it may be the reason why an engine died."""


@dataclass(frozen=True)
class Large:
    """A large record.

    Args:
        size: Its bytes, uncompressed; None if Python's client doesn't expand so much.
    """

    partition: int
    offset: int
    size: int | None

    def __str__(self) -> str:
        size = "more bytes than Python's client expands" if self.size is None else f"{self.size:,} bytes"
        return f"the record at partition {self.partition} offset {self.offset} has {size}"


class TooLarge:
    """The records that a run must not read together with others, or not at all.

    Args:
        large: Returns the first record of a plan that has more bytes than `LARGE`; None if there is none.
    """

    def __init__(self, context: Context, large: Callable[[Plan], Large | None]) -> None:
        self._context = context
        self._large = large
        self._suspect: Large | None = None
        self._others_had_their_turn = False

    def cut(self, todo: Plan, table: Table | None) -> Plan:
        """Return what of a plan can be read before a record that is too large, or is tried alone."""
        refused = refused_in(table, todo.after.identity)
        for each in todo.ranges if can_be_parted(todo) else ():
            found = next((one for one in (*refused, self._suspect) if one and _holds(each, one)), None)
            if found is None:
                continue
            others = tuple(r for r in todo.ranges if r is not each and len(r))
            if others and not self._others_had_their_turn:
                self._others_had_their_turn = True
                return self.cut(part(todo, others), table)
            if each.start < found.offset:
                before = OffsetRange(each.partition, each.start, found.offset)
                return replace(part(todo, (before,)), one_by_one=True)
            if found in refused:
                raise self._error(found)
            return replace(part(todo, (OffsetRange(each.partition, each.start, each.start + 1),)), one_by_one=True)
        return todo

    def failed(self, todo: Plan | None, error: Exception) -> None:
        """Look for a record that is too large, if the engine has died while it worked at a plan."""
        if todo is None or not can_be_parted(todo) or not engine_died(error):
            return
        tried = self._suspect
        if tried is None or not any(_holds(each, tried) for each in todo.ranges):
            tried = None
            self._suspect = self._large(todo)
        if self._suspect is None:
            return
        if tried is None and is_transient(error):
            # The engine is shared: another topic's record may have ended it.
            self._others_had_their_turn = False
            self._context.observer.warn(
                f"Topic {self._context.spec.topic}: the engine died, and {self._suspect}. It is tried alone."
            )
            return
        self._keep(self._suspect, todo.after.identity)
        raise self._error(self._suspect) from error

    def _error(self, found: Large) -> RecordTooLargeError:
        topic, place = self._context.spec.full_topic, f"{found.partition}:{found.offset}"
        return RecordTooLargeError(
            f"Topic {self._context.spec.topic}: {found}, which is too large for the engine's memory.",
            f"The table has what comes before it. `kafka-lake reset {topic} --to {found.partition}:{found.offset + 1}` "
            "skips the record, and records that. To read it, give the engine more memory (KAFKA_LAKE_CONNECT_HEAP), "
            f"then `kafka-lake reset {topic} --to {place}`.",
        )

    def _keep(self, found: Large, identity: TopicIdentity) -> None:
        table = self._context.connections.catalog.table(self._context.spec.identifier)
        if table is None:
            return
        known = _known(table)
        mine = {**known.get(_key(identity), {}), str(found.partition): [found.offset, found.size]}
        with table.transaction() as transaction:
            transaction.set_properties({TOO_LARGE: json.dumps({**known, _key(identity): mine})})


def refused_in(table: Table | None, identity: TopicIdentity) -> tuple[Large, ...]:
    """Return the records of a topic that have ended the engine, as a table tells."""
    found = _known(table).get(_key(identity), {}) if table else {}
    return tuple(Large(int(partition), offset, size) for partition, (offset, size) in found.items())


def forget(table: Table, identity: TopicIdentity) -> None:
    """Let a topic's records be read again that have ended the engine."""
    known = _known(table)
    if known.pop(_key(identity), None) is not None:
        with table.transaction() as transaction:
            transaction.set_properties({TOO_LARGE: json.dumps(known)})


def _holds(each: OffsetRange, found: Large) -> bool:
    return each.partition == found.partition and each.start <= found.offset < each.end


def _key(identity: TopicIdentity) -> str:
    return identity.topic_id or identity.topic


def _known(table: Table) -> dict[str, Mapping[str, list[int]]]:
    found: dict[str, Mapping[str, list[int]]] = json.loads(table.properties.get(TOO_LARGE, "{}"))
    return found


_GROWTH = 8
_FAILED_IN_A_ROW = 10
_RECORDS_BY_CLIENT = 20_000


@dataclass(frozen=True)
class Undecodable:
    """A record that fails alone.

    Args:
        message: The first line of the error.
    """

    partition: int
    offset: int
    message: str


@dataclass(frozen=True)
class Search:
    """How far the search for such a record is.

    Args:
        limit: Offsets of the next commit at most; None for no limit, which means that nothing is searched for.
        suspects: Offsets that are left of the batch that failed last.
        found: The record that was found, until it is a dead letter.
        in_a_row: How many were found one after the other, without a record between them that is a row.
        failed_alone: Whether the record that comes next has failed alone already; once may be the systems' fault.
        by_client: Whether this process reads the next commit's records, since Spark's Kafka source failed at one.
    """

    limit: int | None = None
    suspects: int = 0
    found: Undecodable | None = None
    in_a_row: int = 0
    failed_alone: bool = False
    by_client: bool = False

    def next(self, plan: Plan) -> Plan:
        """Return the part of a planned commit to make next: the record that was found, or as much as the limit allows.

        >>> from kafka_lake.common.offsets import Position, TopicIdentity
        >>> ten = Plan((OffsetRange(0, 5, 15),), Position(TopicIdentity("c", "t", "pizzas"), {0: 15}), 0)
        >>> half = Search(limit=5).next(ten)
        >>> half.ranges, half.after.offsets, half.remaining
        ((OffsetRange(partition=0, start=5, end=10),), {0: 10}, 5)
        """
        if self.by_client:
            plan = replace(plan, by_client=True)
        if self.found is not None:
            for each in plan.ranges:
                if (each.partition, each.start) == (self.found.partition, self.found.offset) and len(each):
                    alone = (OffsetRange(each.partition, each.start, each.start + 1),)
                    return replace(part(plan, alone), undecodable=self.found.message)
        if self.limit is None or plan.records_at_most <= self.limit:
            return plan
        return part(plan, chunk(plan.ranges, self.limit))

    def failed(self, plan: Plan, message: str) -> "Search":
        """Return the search after a commit failed."""
        size = plan.records_at_most
        if size > 1:
            return replace(self, limit=size // 2, suspects=size)
        if not self.failed_alone:
            return replace(self, limit=1, suspects=1, failed_alone=True)
        if self.in_a_row >= _FAILED_IN_A_ROW:
            raise EveryRecordFailsError(
                f"Topic {plan.after.identity.topic}: {self.in_a_row} records in a row failed one by one: {message}",
                "Mend transform:, the sql: of a table's where:, or what the message names. Records that were set apart "
                "are dead letters of class undecodable: replay them after that.",
            )
        alone = next(r for r in plan.ranges if len(r))
        found = Undecodable(alone.partition, alone.start, message)
        return Search(1, 0, found, self.in_a_row + 1, by_client=self.by_client)

    def unreadable(self, plan: Plan) -> "Search":
        """Return the search after Spark's Kafka source failed at a record: this process reads the next records.

        There may be one such record or nothing else, so Spark is asked again after that, for more and more.
        """
        limit = min(plan.records_at_most, _RECORDS_BY_CLIENT)
        return replace(self, limit=limit, suspects=limit, by_client=True)

    def done(self, plan: Plan, rows: int) -> "Search":
        """Return the search after a commit."""
        if self.limit is None or plan.undecodable is not None:
            return replace(self, found=None, failed_alone=False, by_client=False)
        left = max(self.suspects - plan.records_at_most, 0)
        # What failed once and works in parts failed for a reason that is gone.
        limit = self.limit if left else self.limit * _GROWTH
        return Search(limit, left, None, 0 if rows else self.in_a_row)
