"""A topic's records, read once for its tables: each table takes what its condition gives it, by its own position.

The table that is furthest behind reads; its offsets are the batch of the round. The others take what they lack of it.
A table that lacks other offsets reads them by itself. What no condition gives to a table, it has passed: the next
commit of the table, or one at the end of the run, moves its position over that.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from kafka_lake.catalog.positions import TableState
from kafka_lake.common.offsets import OffsetRange, Position, Watermarks
from kafka_lake.engine.frames import kept
from kafka_lake.error_classification import is_transient
from kafka_lake.errors import UnmatchedRecordError
from kafka_lake.formats.schema_names import SchemaNames
from kafka_lake.ingest.read import Records, read
from kafka_lake.ingest.table_state import Tables, tables
from kafka_lake.ingest.together import Found, Together, created, written_together
from kafka_lake.routing.conditions import (
    OWN,
    UNMATCHED,
    asks_for_schemas,
    counts_of,
    new_values,
    not_of_routes,
    of_route,
    routed,
    schema_names,
    with_known,
)
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan, Share, can_be_parted, part, position_only
from kafka_lake.writers.dead_letters import named

_LEVEL = StorageLevel.MEMORY_AND_DISK
_ORDER = ("_route", "partition", "offset")

Ranges = tuple[OffsetRange, ...]


@dataclass(frozen=True)
class Batch:
    """Records of a topic that Spark keeps, each with the number of the table that takes it.

    Args:
        counts: How many each table takes, by number.
        together: The rows of tables that have been written already; None if none have.
    """

    ranges: Ranges
    routed: Callable[[], DataFrame]
    names: SchemaNames
    total: int
    counts: Mapping[int, int]
    together: Together | None = None

    def of(self, number: int) -> DataFrame:
        """Return the records of a table, lazy."""
        written = self.together
        return of_route(written.left if written and number not in written.tables else self.routed(), number)

    def covers(self, ranges: Ranges) -> bool:
        """Return whether the batch has all of some offsets."""
        mine = {r.partition: r for r in self.ranges}
        return all(
            (r.partition in mine and mine[r.partition].start <= r.start and r.end <= mine[r.partition].end)
            for r in ranges
        )


class TopicRecords:
    """The records of a topic with several tables, for one run.

    Args:
        context: Of the run, with the topic's settings.

    Attributes:
        shares: What of them is for each table, by the table's namespace and name.
        properties: Those of the table that names the tables of values.
        batch: What the tables share in this round; None before one of them has read.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.shares: dict[tuple[str, str], TableShare] = {}
        self.properties: Mapping[str, str] = {}
        self.batch: Batch | None = None
        self._held = ExitStack()

    def next_round(self) -> None:
        """Forget the records of the round before."""
        self.batch = None
        self._held.close()
        for each in self.shares.values():
            each.found, each.is_waiting = None, False

    def know(self, state: TableState) -> None:
        """Take note of the values that have a table by now, as the table without a condition tells."""
        self.properties = state.table.properties
        known = with_known(self.context, state)
        if known.spec != self.context.spec:
            self.context = known
            self.batch = None

    def open(self, todo: Plan, ranges: Ranges) -> Batch:
        """Read some offsets of a plan; the first batch of a round is the one that tables share."""
        is_shared = self.batch is None and todo.kind == "append"
        batch = self._read(part(todo, ranges) if todo.kind == "append" else todo, is_shared=is_shared)
        if is_shared:
            self.batch = batch
        return batch

    def _read(self, todo: Plan, *, is_shared: bool) -> Batch:
        context, spec, held = self.context, self.context.spec, self._held
        records = read(context.connections, todo, spec.topic)
        # Which schemas and values there are is known once the records have been read.
        is_late = asks_for_schemas(spec) or spec.route_by is not None
        records = kept(records, held, _LEVEL) if is_late else records
        names = schema_names(records, spec, context.connections)
        shared = routed(records, spec, names)
        keep = cache(lambda: shared if is_late else kept(shared.sortWithinPartitions(*_ORDER), held, _LEVEL))
        every = self._to_write(todo.ranges, records) if is_shared and not spec.may_match_several else {}
        together = written_together(
            context, todo, shared, every, again=lambda number: of_route(keep(), number), forget=held
        )
        if together is not None:
            total = sum(together.counts.values())
            return Batch(todo.ranges, keep, names, total=total, counts=together.counts, together=together)
        total, counts = counts_of(keep())
        return Batch(todo.ranges, keep, names, total=total, counts=counts)

    def _to_write(self, ranges: Ranges, records: DataFrame) -> dict[int, Found]:
        """Return the tables that lack just these offsets, by number."""
        found = {share: self._found(share, records) for share in self.shares.values() if not share.is_stopped}
        positions = {share: its.table.position for share, its in found.items() if its.table}
        are_new = not any(positions.values())
        return {
            share.number: (share.context, found[share])
            for share, position in positions.items()
            if are_new or (position and share.reads_on_at(ranges, position))
        }

    @staticmethod
    def _found(share: "TableShare", records: DataFrame) -> Tables:
        share.found = created(share.context, tables(share.context), records)
        return share.found


class TableShare:
    """What of a topic's records is for one table.

    Args:
        context: Of the run, with the table's settings.

    Attributes:
        found: The table as the round found it; None if it has to be looked at.
        is_waiting: Whether all that the table lacks lies behind the batch of the round.
        is_settling: Whether a commit is made for a position alone.
        is_stopped: Whether the table is left alone for the rest of the run.
    """

    def __init__(self, topic: TopicRecords, context: Context) -> None:
        self.context = context
        self.found: Tables | None = None
        self.is_waiting = False
        self.is_settling = False
        self.is_stopped = False
        self._topic = topic
        self._has_begun = False
        self._now: Watermarks | None = None
        self._passed: dict[int, OffsetRange] = {}
        self._seen = self._ignored = 0

    @property
    def number(self) -> int:
        """Return the number of the table's condition among the topic's; `OWN` for what no condition takes."""
        spec = self._topic.context.spec
        return [each.identifier for each in spec.tables].index(self.context.spec.identifier) + OWN

    @property
    def has_passed(self) -> bool:
        """Return whether the table's position is behind what the run knows to have nothing for it."""
        return bool(self._passed)

    def next(self, partition: int, offset: int) -> int:
        """Return where the table reads on from an offset: behind what it has passed."""
        passed = self._passed.get(partition)
        return passed.end if passed and passed.start <= offset <= passed.end else offset

    def reads_on_at(self, ranges: Ranges, position: Position) -> bool:
        """Return whether some offsets are what comes next for the table."""
        return all(self.next(r.partition, position.offsets.get(r.partition, 0)) == r.start for r in ranges)

    def committed(self, after: Position) -> None:
        """Take note of the table's position, as a commit has left it."""
        self._passed = {p: each for p, each in self._passed.items() if each.end > after.offsets.get(p, 0)}
        # The commit has counted them, even where it is only a part of what was passed.
        self._seen = self._ignored = 0

    def read_again(self) -> None:
        """Forget the batch of the round: Kafka no longer has the same records at its offsets."""
        self._topic.batch = None

    def take_found(self) -> Tables | None:
        """Return the table as the round found it, once."""
        found, self.found = self.found, None
        return found

    def knows(self, state: TableState | None) -> None:
        """Take note of the table as a commit finds it."""
        self._has_begun = state is not None and state.position is not None
        if state is not None and self.number == OWN:
            self._topic.know(state)

    def sees(self, now: Watermarks) -> None:
        """Take note of what the topic holds: what was passed in a log that has another leader since is read again."""
        before, self._now = self._now, now
        if before is not None and self._passed:
            is_same = now.identity.same_as(before.identity)
            self._passed = {
                p: each
                for p, each in self._passed.items()
                if is_same and now.epochs.get(p) == before.epochs.get(p) and each.end <= now.end.get(p, 0)
            }

    def ahead(self, state: TableState | None) -> TableState | None:
        """Return a table's state as if it had committed what it has passed, for the next plan."""
        if state is None or state.position is None or not self._passed:
            return state
        position = state.position
        offsets = {p: self.next(p, offset) for p, offset in position.offsets.items()}
        # The last record that the table has read isn't the last one before where it reads on.
        last = {p: each for p, each in position.last.items() if offsets[p] == position.offsets[p]}
        return replace(state, position=replace(position, offsets=offsets, last=last))

    def whole(self, todo: Plan, state: TableState | None) -> Plan:
        """Return a plan that `ahead` was for, with what the table has passed."""
        if state is None or state.position is None:
            return todo
        ends, lost = {r.partition: r for r in todo.ranges}, {loss.partition for loss in todo.losses}
        for partition, each in self._passed.items():
            start = state.position.offsets.get(partition, 0)
            # Where Kafka has lost records, the plan begins behind them.
            if partition not in lost and each.start <= start < each.end:
                end = ends[partition].end if partition in ends else each.end
                ends[partition] = OffsetRange(partition, start, end)
        return replace(todo, ranges=tuple(ends[partition] for partition in sorted(ends)))

    def cut(self, todo: Plan) -> Plan | None:
        """Return what of a plan belongs to the round; None if that is nothing."""
        if todo.kind != "append" or not can_be_parted(todo):
            return todo
        lacking = tuple(r for r in todo.ranges if self.next(r.partition, r.start) < r.end)
        if not lacking:
            return None
        todo, batch = part(todo, lacking), self._topic.batch
        if batch is None:
            return todo
        shared = {r.partition: r for r in batch.ranges}
        if any(
            self.next(r.partition, r.start) < shared[r.partition].start for r in todo.ranges if r.partition in shared
        ):
            # The table is further behind than the batch begins, and reads by itself.
            return todo
        mine = _until(todo, {partition: r.end for partition, r in shared.items()})
        self.is_waiting = mine is None
        return mine

    def settling(self, state: TableState | None) -> Plan | None:
        """Return the commit that moves the table's position over all that it has passed; None if that is nothing.

        What Kafka has lost of that since isn't lost: it has been read, and nothing of it is for the table.
        """
        if state is None or state.position is None or self._now is None:
            return None
        position = state.position
        # Of a partition that it doesn't know, the table has nothing.
        starts = {**dict.fromkeys(self._passed, 0), **position.offsets}
        ranges = tuple(
            OffsetRange(partition, start, end)
            for partition, start in sorted(starts.items())
            if (end := self.next(partition, start)) > start
        )
        epochs = {r.partition: self._now.epochs[r.partition] for r in ranges if r.partition in self._now.epochs}
        after = replace(position, epochs={**position.epochs, **epochs}).advanced(ranges)
        return replace(position_only(after), ranges=ranges) if ranges else None

    def of(self, todo: Plan) -> Records | None:
        """Return the table's records of a plan; None if it has none of them, and passes the offsets."""
        context = self._topic.context
        left = tuple(
            each
            for r in todo.ranges
            if len(each := OffsetRange(r.partition, min(self.next(r.partition, r.start), r.end), r.end))
        )
        if todo.records_at_most and not left:
            passed = read(context.connections, todo, context.spec.topic)
            return Records(
                self._with(todo, 0, self._seen),
                passed.limit(0),
                # A replay takes the rows away that the table has of what it has passed.
                others=(lambda: named(todo, passed)) if todo.kind == "replace" else None,
                ignored=self._ignored,
            )
        if not can_be_parted(todo):
            return self._without_reading(todo)
        batch = self._topic.batch
        if batch is None or todo.kind != "append" or not batch.covers(left):
            batch = self._topic.open(todo, left)
        return self._among(todo, left, batch)

    def _among(self, todo: Plan, left: Ranges, batch: Batch) -> Records | None:
        context, number = self._topic.context, self.number
        is_own, exact = number == OWN, left == batch.ranges
        within = partial(context.connections.frames.within, ranges=left)
        new, without = tuple[tuple[str, str, str], ...](), 0
        if is_own and context.spec.route_by is not None and todo.kind == "append":
            values = new_values(context, batch.routed() if exact else within(batch.routed()), batch.names)
            new, without = (values.admission.new, values.records) if values else ((), 0)
            if values and without and not new:
                context.observer.warn(values.told(context.spec))
        mine = batch.of(number) if exact else within(batch.of(number))
        if new:
            return Records(todo, mine.limit(0), new_tables=new)
        count = batch.counts.get(number, 0) if exact else mine.count()
        total = batch.total if exact else max(count, sum(map(len, left)))
        unmatched = self._unmatched(batch, within, exact=exact) if is_own and context.spec.where is not None else 0
        has_letters = is_own and context.spec.unmatched == "dead_letter"
        ignored, letters = (0, unmatched) if has_letters else (unmatched, 0)
        its = (OWN, UNMATCHED) if has_letters else (number,)
        count += letters
        if not count and self._has_begun and todo.kind == "append" and not todo.losses:
            self._pass(todo.ranges, total)
            self._ignored += ignored
            return None
        return Records(
            self._with(todo, count, self._seen + total - count),
            mine,
            others=lambda: named(todo, not_of_routes(batch.routed(), its)),
            written=batch.together.written.get(number) if exact and batch.together else None,
            without_table=without,
            unmatched=within(batch.of(UNMATCHED)) if letters else None,
            ignored=self._ignored + ignored,
        )

    def _without_reading(self, todo: Plan) -> Records | None:
        """Return the record that nobody can read, or nothing of a commit that moves the position alone."""
        context = self._topic.context
        records = read(context.connections, todo, context.spec.topic)
        if todo.undecodable is None:
            return Records(self._with(todo, 0, todo.records_at_most), records)
        if self._takes(records):
            return Records(self._with(todo, 1, 0), records)
        self._pass(todo.ranges, 1)
        return None

    def _takes(self, records: DataFrame) -> bool:
        """Return whether a record is the table's: what can't be routed is for the one that takes what others don't."""
        context = self._topic.context
        try:
            names = schema_names(records, context.spec, context.connections)
            _, counts = counts_of(routed(records, context.spec, names))
        except Exception as error:
            if is_transient(error):
                raise
            return self.number == OWN
        return bool(counts.get(self.number)) or (self.number == OWN and bool(counts.get(UNMATCHED)))

    def _unmatched(self, batch: Batch, within: Callable[[DataFrame], DataFrame], *, exact: bool) -> int:
        """Return how many of the table's offsets have records that no table takes."""
        spec = self._topic.context.spec
        if not batch.counts.get(UNMATCHED):
            return 0
        if exact and spec.unmatched != "fail":
            return batch.counts[UNMATCHED]
        # A job that has written several tables gives none back that are ignored.
        records = within(of_route(batch.routed(), UNMATCHED))
        if spec.unmatched == "fail":
            first = records.orderBy("partition", "offset").select("partition", "offset").first()
            if first is not None:
                raise UnmatchedRecordError(
                    f"Topic {spec.topic}: no table takes the record at partition {first['partition']}, offset "
                    f"{first['offset']}, and unmatched is fail.",
                    "Nothing of this commit was published to this table. Add a table that takes such records, or set "
                    "unmatched: dead_letter.",
                )
        return int(records.count())

    def _with(self, todo: Plan, count: int, elsewhere: int) -> Plan:
        return replace(todo, share=Share(count, elsewhere))

    def _pass(self, ranges: Ranges, seen: int) -> None:
        for r in ranges:
            begins = self._passed.get(r.partition)
            start = begins.start if begins and begins.start <= r.start <= begins.end else r.start
            self._passed[r.partition] = OffsetRange(r.partition, start, r.end)
        self._seen += seen


def _until(todo: Plan, ends: Mapping[int, int]) -> Plan | None:
    """Return a plan up to some offsets, without partitions that have none; None if nothing is left."""
    ranges = tuple(
        OffsetRange(r.partition, r.start, min(r.end, ends[r.partition]))
        for r in todo.ranges
        if r.start < ends.get(r.partition, r.start)
    )
    return part(todo, ranges) if ranges else None
