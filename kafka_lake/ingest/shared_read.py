"""One reading of a topic for its tables: each table takes the records of its condition, from its own position on.

The table that is furthest behind reads a batch; the other tables take their records from the same batch. A table that
needs other offsets reads by itself. Offsets without a record for a table are passed: its next commit, or a
position-only commit at the end of the run, moves its position over them.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from kafka_lake.catalog.positions import TableState
from kafka_lake.common.offsets import OffsetRange, Position, Watermarks
from kafka_lake.engine.frames import cached
from kafka_lake.error_classification import is_transient
from kafka_lake.errors import UnmatchedRecordError
from kafka_lake.formats.base import is_written_by_arrow
from kafka_lake.formats.schema_names import SchemaNames
from kafka_lake.ingest.read import NewTables, Records, read
from kafka_lake.ingest.table_state import Tables, current_tables
from kafka_lake.routing.conditions import (
    OWN,
    ROUTE,
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
from kafka_lake.writers.append_tables import Prewritten, prewritten, table_to_write, write_tables
from kafka_lake.writers.dead_letters import record_ids

_LEVEL = StorageLevel.MEMORY_AND_DISK
_ORDER = ("_route", "partition", "offset")

Ranges = tuple[OffsetRange, ...]


@dataclass(frozen=True)
class Batch:
    """Records of a topic, cached by Spark, each with the number of its table.

    Args:
        unwritten: The records of tables that weren't written by the shared job; None if no table was.
        written_tables: Numbers of the tables that the shared job wrote.
        written: Their data files, for tables with records.
    """

    ranges: Ranges
    routed: Callable[[], DataFrame]
    names: SchemaNames
    total: int
    counts: Mapping[int, int]
    unwritten: DataFrame | None = None
    written_tables: frozenset[int] = frozenset()
    written: Mapping[int, Prewritten] = field(default_factory=dict)

    def of(self, number: int) -> DataFrame:
        """Return the records of a table, lazily."""
        is_unwritten = self.unwritten is not None and number not in self.written_tables
        return of_route(self.unwritten if self.unwritten is not None and is_unwritten else self.routed(), number)

    def covers(self, ranges: Ranges) -> bool:
        """Return whether the batch contains all of some offsets."""
        own = {r.partition: r for r in self.ranges}
        return all(
            r.partition in own and own[r.partition].start <= r.start and r.end <= own[r.partition].end for r in ranges
        )


class SharedRead:
    """The records of a topic with several tables, for one run.

    Attributes:
        readers: The reader of each table, by namespace and name.
        table_properties: Properties of the topic's own table, which record the tables of values.
        batch: The batch that tables share in this round; None before it is read.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.readers: dict[tuple[str, str], TableReader] = {}
        self.table_properties: Mapping[str, str] = {}
        self.batch: Batch | None = None
        self._cached = ExitStack()

    def next_round(self) -> None:
        """Drop the batch of the previous round."""
        self.batch = None
        self._cached.close()
        for reader in self.readers.values():
            reader.tables, reader.is_waiting = None, False

    def note_values(self, state: TableState) -> None:
        """Remember which values have a table, as the topic's own table records them."""
        self.table_properties = state.table.properties
        context = with_known(self.context, state)
        if context.spec != self.context.spec:
            self.context, self.batch = context, None

    def read(self, plan: Plan, ranges: Ranges) -> Batch:
        """Read some offsets of a plan. The first batch of a round is shared."""
        is_shared = self.batch is None and plan.appends
        batch = self._read(part(plan, ranges) if plan.appends else plan, is_shared=is_shared)
        if is_shared:
            self.batch = batch
        return batch

    def _read(self, plan: Plan, *, is_shared: bool) -> Batch:
        context, spec, stack = self.context, self.context.spec, self._cached
        records = read(context.connections, plan, spec.topic)
        # Schema names and new values are determined by a pass over the records.
        needs_pass = asks_for_schemas(spec) or spec.route_by is not None
        records = cached(records, stack, _LEVEL) if needs_pass else records
        names = schema_names(records, spec, context.connections)
        numbered = routed(records, spec, names)
        keep = cache(lambda: numbered if needs_pass else cached(numbered.sortWithinPartitions(*_ORDER), stack, _LEVEL))
        if is_shared and not spec.may_match_several:
            batch = self._write(plan, records, numbered, keep=keep, names=names)
            if batch is not None:
                return batch
        total, counts = counts_of(keep())
        return Batch(plan.ranges, keep, names, total=total, counts=counts)

    def _write(
        self, plan: Plan, records: DataFrame, numbered: DataFrame, *, keep: Callable[[], DataFrame], names: SchemaNames
    ) -> Batch | None:
        """Write the tables that Arrow can write, and that need exactly these offsets, by one job."""
        context = self.context
        to_write = {
            str(reader.number): table
            for reader, state in self._continuing_at(plan.ranges, records)
            if (table := table_to_write(reader.context, state, plan)) is not None
        }
        if not to_write:
            return None
        ignored = (str(UNMATCHED),) if context.spec.unmatched == "ignore" else ()
        spark = context.connections.spark()
        done = write_tables(
            spark, numbered, column=ROUTE, tables=to_write, plan=plan, held=self._cached, unwanted=ignored
        )
        context.observer.step_done("tables written")
        written = {
            int(name): prewritten(files, to_write[name], partial(_again, keep, int(name)))
            for name, files in done.by_table.items()
        }
        for files in written.values():
            # Files of a table that isn't staged, since an earlier table failed.
            self._cached.callback(files.discard)
        counts = {int(name): count for name, count in done.counts.items()}
        return Batch(
            plan.ranges,
            keep,
            names,
            total=sum(counts.values()),
            counts=counts,
            unwritten=done.left,
            written_tables=frozenset(map(int, to_write)),
            written=written,
        )

    def _continuing_at(self, ranges: Ranges, records: DataFrame) -> list[tuple["TableReader", TableState]]:
        """Return the tables that need exactly these offsets next; tables with declared columns are created."""
        states = []
        for reader in self.readers.values():
            if not reader.is_stopped:
                reader.tables = _created(reader.context, current_tables(reader.context), records)
                if reader.tables.table is not None:
                    states.append((reader, reader.tables.table))
        are_new = not any(state.position for _, state in states)
        return [
            (reader, state)
            for reader, state in states
            if are_new or (state.position and reader.continues_at(ranges, state.position))
        ]


def _again(keep: Callable[[], DataFrame], number: int) -> DataFrame:
    return of_route(keep(), number)


def _created(context: Context, tables: Tables, records: DataFrame) -> Tables:
    """Create a missing table if its columns are declared and Arrow can write it; return the current tables."""
    if tables.table is not None or not is_written_by_arrow(context.spec):
        return tables
    if context.decoding.decoder(context.spec, context.connections, None).fixed is None:
        return tables
    context.decoding.create_table(context.spec, context.connections, records, False)
    context.observer.step_done("table created")
    return current_tables(context)


class TableReader:
    """Reads the records of one of a topic's tables.

    Attributes:
        tables: The tables as the shared job has loaded them, until a commit takes them.
        is_waiting: Whether the table's next records lie behind the batch of the round.
        moves_position_only: Whether the next commit only moves the position.
        is_stopped: Whether the table is left out for the rest of the run.
    """

    def __init__(self, shared: SharedRead, context: Context) -> None:
        self.context = context
        self.tables: Tables | None = None
        self.is_waiting = False
        self.moves_position_only = False
        self.is_stopped = False
        self._shared = shared
        self._has_position = False
        self._now: Watermarks | None = None
        self._passed: dict[int, OffsetRange] = {}
        self._records_passed = self._records_ignored = 0

    @property
    def number(self) -> int:
        """Return the number of the table's condition; `OWN` for the table without a condition."""
        tables = self._shared.context.spec.tables
        return [table.identifier for table in tables].index(self.context.spec.identifier) + OWN

    @property
    def has_passed(self) -> bool:
        """Return whether the table's position is behind offsets without records for it."""
        return bool(self._passed)

    def next(self, partition: int, offset: int) -> int:
        """Return the next offset to read at a position: behind the passed offsets."""
        passed = self._passed.get(partition)
        return passed.end if passed and passed.start <= offset <= passed.end else offset

    def continues_at(self, ranges: Ranges, position: Position) -> bool:
        """Return whether ranges begin where the table reads next."""
        return all(self.next(r.partition, position.offsets.get(r.partition, 0)) == r.start for r in ranges)

    def note_commit(self, after: Position) -> None:
        """Forget passed offsets that a commit's position is beyond."""
        self._passed = {p: passed for p, passed in self._passed.items() if passed.end > after.offsets.get(p, 0)}
        # The commit has counted them, even if it covers only a part of the passed offsets.
        self._records_passed = self._records_ignored = 0

    def forget_batch(self) -> None:
        """Drop the batch of the round: Kafka no longer has the same records at its offsets."""
        self._shared.batch = None

    def take_tables(self) -> Tables | None:
        """Return the tables that the shared job has loaded, once."""
        tables, self.tables = self.tables, None
        return tables

    def note_table(self, state: TableState | None) -> None:
        """Remember whether the table has a position, and the values that have tables."""
        self._has_position = state is not None and state.position is not None
        if state is not None and self.number == OWN:
            self._shared.note_values(state)

    def note_watermarks(self, now: Watermarks) -> None:
        """Remember the watermarks. Passed offsets of a log with another leader are read again."""
        before, self._now = self._now, now
        if before is not None and self._passed:
            is_same = now.identity.same_as(before.identity)
            self._passed = {
                p: passed
                for p, passed in self._passed.items()
                if is_same and now.epochs.get(p) == before.epochs.get(p) and passed.end <= now.end.get(p, 0)
            }

    def ahead(self, state: TableState | None) -> TableState | None:
        """Return a table's state as if the passed offsets were committed, for the next plan."""
        if state is None or state.position is None or not self._passed:
            return state
        position = state.position
        offsets = {p: self.next(p, offset) for p, offset in position.offsets.items()}
        # Where offsets were passed, the last record read isn't the last one before the next offset.
        last = {p: record for p, record in position.last.items() if offsets[p] == position.offsets[p]}
        return replace(state, position=replace(position, offsets=offsets, last=last))

    def with_passed(self, plan: Plan, state: TableState | None) -> Plan:
        """Return a plan that was made for `ahead`, extended by the passed offsets."""
        if state is None or state.position is None:
            return plan
        ranges, lost = {r.partition: r for r in plan.ranges}, {loss.partition for loss in plan.losses}
        for partition, passed in self._passed.items():
            start = state.position.offsets.get(partition, 0)
            # Where Kafka has lost records, the plan begins behind them.
            if partition not in lost and passed.start <= start < passed.end:
                end = ranges[partition].end if partition in ranges else passed.end
                ranges[partition] = OffsetRange(partition, start, end)
        return replace(plan, ranges=tuple(ranges[partition] for partition in sorted(ranges)))

    def cut(self, plan: Plan) -> Plan | None:
        """Return the part of a plan that the round's batch covers; None if there is none."""
        if not plan.appends or not can_be_parted(plan):
            return plan
        unread = tuple(r for r in plan.ranges if self.next(r.partition, r.start) < r.end)
        if not unread:
            return None
        plan, batch = part(plan, unread), self._shared.batch
        if batch is None:
            return plan
        covered = {r.partition: r for r in batch.ranges}
        if any(
            self.next(r.partition, r.start) < covered[r.partition].start for r in plan.ranges if r.partition in covered
        ):
            # The table is behind the batch, and reads by itself.
            return plan
        cut = _until(plan, {partition: r.end for partition, r in covered.items()})
        self.is_waiting = cut is None
        return cut

    def position_plan(self, state: TableState | None) -> Plan | None:
        """Return the commit that moves the position over the passed offsets; None if there are none.

        Passed offsets that Kafka has deleted since aren't lost: they were read, and had no record for the table.
        """
        if state is None or state.position is None or self._now is None:
            return None
        position = state.position
        # Partitions that the position doesn't have begin at 0.
        starts = {**dict.fromkeys(self._passed, 0), **position.offsets}
        ranges = tuple(
            OffsetRange(partition, start, end)
            for partition, start in sorted(starts.items())
            if (end := self.next(partition, start)) > start
        )
        epochs = {r.partition: self._now.epochs[r.partition] for r in ranges if r.partition in self._now.epochs}
        after = replace(position, epochs={**position.epochs, **epochs}).advanced(ranges)
        return replace(position_only(after), ranges=ranges) if ranges else None

    def records(self, plan: Plan) -> Records | None:
        """Return the table's records of a plan; None if there are none and the offsets are passed."""
        context = self._shared.context
        unread = tuple(
            rest
            for r in plan.ranges
            if len(rest := OffsetRange(r.partition, min(self.next(r.partition, r.start), r.end), r.end))
        )
        if plan.records_at_most and not unread:
            passed = read(context.connections, plan, context.spec.topic)
            return Records(
                _with_counts(plan, 0, self._records_passed),
                passed.limit(0),
                # A replay removes rows of records that are now another table's.
                other_tables=(lambda: record_ids(plan, passed)) if plan.replaces else None,
                ignored=self._records_ignored,
            )
        if not can_be_parted(plan):
            return self._unreadable_or_none(plan)
        batch = self._shared.batch
        if batch is None or not plan.appends or not batch.covers(unread):
            batch = self._shared.read(plan, unread)
        return self._from_batch(plan, unread, batch)

    def _from_batch(self, plan: Plan, unread: Ranges, batch: Batch) -> Records | None:
        context, number = self._shared.context, self.number
        is_own, is_all = number == OWN, unread == batch.ranges

        def within(records: DataFrame) -> DataFrame:
            return records if is_all else context.connections.frames.within(records, unread)

        new_tables, without_table = self._new_tables(batch, within) if is_own and plan.appends else ((), 0)
        records = within(batch.of(number))
        if new_tables:
            return Records(plan, records.limit(0), new_tables=new_tables)
        count = batch.counts.get(number, 0) if is_all else records.count()
        total = batch.total if is_all else max(count, sum(map(len, unread)))
        unmatched = self._unmatched(batch, within, is_all=is_all) if is_own and context.spec.where is not None else 0
        has_dead_letters = is_own and context.spec.unmatched == "dead_letter"
        ignored, dead_letters = (0, unmatched) if has_dead_letters else (unmatched, 0)
        own_numbers = (OWN, UNMATCHED) if has_dead_letters else (number,)
        count += dead_letters
        if not count and self._has_position and plan.appends and not plan.losses:
            self._pass(plan.ranges, total)
            self._records_ignored += ignored
            return None
        return Records(
            _with_counts(plan, count, self._records_passed + total - count),
            records,
            other_tables=lambda: record_ids(plan, not_of_routes(batch.routed(), own_numbers)),
            written=batch.written.get(number) if is_all else None,
            without_table=without_table,
            unmatched=within(batch.of(UNMATCHED)) if dead_letters else None,
            ignored=self._records_ignored + ignored,
        )

    def _new_tables(self, batch: Batch, within: Callable[[DataFrame], DataFrame]) -> tuple[NewTables, int]:
        """Return the new values that get tables, and the number of records whose value gets none."""
        context = self._shared.context
        if context.spec.route_by is None:
            return (), 0
        values = new_values(context, within(batch.routed()), batch.names)
        if values is None:
            return (), 0
        if values.records and not values.admission.new:
            context.observer.warn(values.message(context.spec))
        return values.admission.new, values.records

    def _unreadable_or_none(self, plan: Plan) -> Records | None:
        """Return an undecodable record that is the table's, or no records of a commit that reads none."""
        context = self._shared.context
        records = read(context.connections, plan, context.spec.topic)
        if plan.undecodable is None:
            return Records(_with_counts(plan, 0, plan.records_at_most), records)
        if self._takes(records):
            return Records(_with_counts(plan, 1, 0), records)
        self._pass(plan.ranges, 1)
        return None

    def _takes(self, records: DataFrame) -> bool:
        """Return whether an undecodable record is the table's; one that can't be routed is the own table's."""
        context = self._shared.context
        try:
            names = schema_names(records, context.spec, context.connections)
            _, counts = counts_of(routed(records, context.spec, names))
        except Exception as error:
            if is_transient(error):
                raise
            return self.number == OWN
        return bool(counts.get(self.number)) or (self.number == OWN and bool(counts.get(UNMATCHED)))

    def _unmatched(self, batch: Batch, within: Callable[[DataFrame], DataFrame], *, is_all: bool) -> int:
        """Return how many records no table takes."""
        spec = self._shared.context.spec
        if not batch.counts.get(UNMATCHED):
            return 0
        if is_all and spec.unmatched != "fail":
            return batch.counts[UNMATCHED]
        # The job that writes several tables returns no ignored records.
        records = within(of_route(batch.routed(), UNMATCHED))
        if spec.unmatched == "fail":
            first = records.orderBy("partition", "offset").select("partition", "offset").first()
            if first is not None:
                raise UnmatchedRecordError(
                    f"Topic {spec.topic}: no table takes the record at partition {first['partition']}, offset "
                    f"{first['offset']}, and unmatched: fail is set.",
                    "Nothing of this commit was published to this table. Add a table that takes such records, or set "
                    "unmatched: dead_letter.",
                )
        return int(records.count())

    def _pass(self, ranges: Ranges, records: int) -> None:
        for r in ranges:
            passed = self._passed.get(r.partition)
            start = passed.start if passed and passed.start <= r.start <= passed.end else r.start
            self._passed[r.partition] = OffsetRange(r.partition, start, r.end)
        self._records_passed += records


def _with_counts(plan: Plan, records: int, elsewhere: int) -> Plan:
    return replace(plan, share=Share(records, elsewhere))


def _until(plan: Plan, ends: Mapping[int, int]) -> Plan | None:
    """Return a plan up to some offsets, without partitions that have none; None if nothing is left."""
    ranges = tuple(
        OffsetRange(r.partition, r.start, min(r.end, ends[r.partition]))
        for r in plan.ranges
        if r.start < ends.get(r.partition, r.start)
    )
    return part(plan, ranges) if ranges else None
