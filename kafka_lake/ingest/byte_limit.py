"""What keeps a commit near its limit of bytes: looks at some of the planned records, and what the last commit had."""

from collections.abc import Mapping
from dataclasses import replace

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.common.record_sizes import Probe
from kafka_lake.ingest.commit import Commit
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.plan.model import Plan, can_be_parted, part
from kafka_lake.ingest.plan.sizes import LARGEST_RECORD, largest, within_bytes

# In all partitions together, and in one: more partitions have fewer each, as each place takes a request.
_PLACES, _MOST_PLACES, _FEWEST_PLACES = 256, 16, 2
_ROUNDS = 4
# What comes may be larger than what was seen, so much that nothing less is worth another look.
_MARGIN = 64
# This process has them in memory.
_BY_CLIENT = 64 << 20


class ByteLimit:
    """The limit of bytes of a run's commits.

    Args:
        context: Of the run.
    """

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
