"""Verify a table: compare the offsets that Kafka has with those of the table's rows and dead letters, and values."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.catalog.history import recorded_losses
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import TableState, adopted_position, head_of, read_state, state_of
from kafka_lake.cdc.task.change import DELETE, READ, UPSERT
from kafka_lake.common.files import ensure_home
from kafka_lake.common.offsets import Loss, OffsetRange, Position, TopicIdentity, Watermarks
from kafka_lake.dead_letters.pending import pending_reconciliation
from kafka_lake.engine.frames import cached
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.formats.rows import DELETED, change_columns
from kafka_lake.formats.task.decoded import Decoded
from kafka_lake.formats.task.decoders import RecordDecoder, unpack_decoder
from kafka_lake.ingest.plan import another_topic, offsets_of
from kafka_lake.ingest.read import read
from kafka_lake.kafka.records import as_batch, message_lists
from kafka_lake.maintenance.row_retention import last_expiry
from kafka_lake.routing.by_value import knowing
from kafka_lake.routing.conditions import OWN, ROUTE, ROUTES, UNMATCHED, routed, schema_names
from kafka_lake.runtime.context import Connections, ignore
from kafka_lake.runtime.decoding import decoder_of
from kafka_lake.runtime.plan import Plan, chunk
from kafka_lake.runtime.snapshot_rows import Database, SnapshotRows, file_errors, literal, open_database, quoted
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.verify.newest import NewestChanges, overlapping_versions
from kafka_lake.verify.report import Report
from kafka_lake.verify.values import Comparison
from kafka_lake.verify.window import Window
from kafka_lake.writers.schema_changes import plan_schema

OFFSETS_AT_ONCE = 10_000_000
"""Offsets that are in memory at a time."""
_ROWS_AT_ONCE = 1_000_000
_APART = 10_000


def verify(
    topic: TopicTable,
    table: TopicTable,
    connections: Connections,
    *,
    since: str = "earliest",
    sample: float = 0.01,
    progress: Callable[[str, int, int], None] = ignore,
) -> Report:
    """Compare a table with its topics; the report has the problems.

    Args:
        topic: The topic's settings, which have all of its tables.
        table: The settings of one of them.
        since: Only records from here on: ``earliest``, an offset, a time, or offsets as in ``0:17,1:4``.
        sample: The share of the records whose values are compared, 0 to 1.
        progress: Called with what is compared, the number of its offsets compared so far, and the number of all.

    Raises:
        KafkaLakeError: If the table can't be verified.
    """
    if table.is_keyed and since != "earliest":
        raise ConfigurationError(
            f"--since can't be combined with write: {table.write}: a delete before it may be newer than a change after "
            "it.",
            "Remove it.",
        )
    began, name = time.monotonic(), ".".join(table.identifier)
    with file_errors(name):
        state, dead_letters = _consistent(connections.catalog, table)
        # The topic's own table records the tables of values.
        own = state.table if topic.identifier == table.identifier else connections.catalog.table(topic.identifier)
        topic, report = knowing(topic, own.properties if own else {}), Report(name, state.head)
        for number, topic_spec in enumerate(table.each_topic):
            _OfTopic(
                replace(topic, topic=topic_spec.topic),
                topic_spec,
                connections,
                report,
                since=since,
                sample=sample,
                progress=progress,
                state=state_of(topic_spec, state.table),
                dead_letters=dead_letters,
                is_first=not number,
            ).verify()
    report.seconds = time.monotonic() - began
    return report


def _consistent(catalog: LakeCatalog, spec: TopicTable) -> tuple[TableState, TableState | None]:
    """Return a table and its dead letters, of one moment: dead letters are added before and removed after it."""
    for _ in range(20):
        before, table, after = map(catalog.table, (spec.dead_letter_table, spec.identifier, spec.dead_letter_table))
        if table is None:
            raise TableError(
                f"Table {'.'.join(spec.identifier)} doesn't exist yet.", f"Run `kafka-lake ingest {spec.topic}` first."
            )
        if (before and head_of(before)) == (after and head_of(after)):
            return read_state(table), read_state(before) if before else None
    raise TableError(f"The dead letters of {'.'.join(spec.identifier)} keep changing.", "Verify it again.")


def bounded_database() -> Database:
    """Return a database that holds at most 1 GB, and writes what is beyond into a folder."""
    database = open_database()
    database.execute("SET memory_limit = '1GB'")
    database.execute(f"SET temp_directory = {literal(str(ensure_home() / 'verify'))}")
    # Of two sides it would hold the one that it believes is smaller, perhaps all rows of the table instead of places.
    database.execute("SET disabled_optimizers = 'build_side_probe_side'")
    return database


class _OfTopic:
    """The verification of a table's records of one topic."""

    def __init__(
        self,
        topic: TopicTable,
        spec: TopicTable,
        connections: Connections,
        report: Report,
        *,
        since: str,
        sample: float,
        progress: Callable[[str, int, int], None],
        state: TableState,
        dead_letters: TableState | None,
        is_first: bool,
    ) -> None:
        self._topic, self._spec, self._connections, self._since = topic, spec, connections, since
        self._report, self._progress, self._state = report, progress, state
        if state.position is None:
            raise TableError(f"Table {report.table} has no position in topic {spec.topic}.", "Run the topic once.")
        self._position: Position = state.position
        self._identity: TopicIdentity = state.position.identity
        self._is_pending = dead_letters is not None and pending_reconciliation(state, dead_letters) is not None
        self._adopted = adopted_position(state.table)
        self._covers_all, self._sample = is_first and since == "earliest", sample
        self._database = bounded_database()
        self._rows = SnapshotRows(self._database, state.table, state.head).sql(self._database, "deleted_rows")
        self._dead_letter_table = dead_letters.table if dead_letters else None
        self._dead_letters: str | None = None
        if dead_letters is not None:
            rows = SnapshotRows(self._database, dead_letters.table, dead_letters.head)
            here = f"topic = {literal(self._identity.topic)} AND {self._is_same_id('topic_id')}"
            self._dead_letters = f"SELECT * FROM ({rows.sql(self._database, 'removed_letters')}) WHERE {here}"
        policies = connections.cluster.cleanup_policies([spec.topic])
        self._is_compacted = "compact" in policies.get(spec.topic, "compact")
        if spec.topic not in policies:
            report.note("whether rows without a record were compacted away: the topic's settings can't be read")
        has_marks = DELETED in {field.name for field in change_columns(spec)}
        self._mark = f"coalesce({quoted(DELETED)}, false)" if has_marks else "false"

    def verify(self) -> None:
        """Compare range after range."""
        now = self._watermarks()
        ranges = tuple(self._ranges(now))
        self._report.ranges[self._spec.topic] = {r.partition: (r.start, r.end) for r in ranges}
        for loss in self._losses:
            end = loss.start if loss.end is None else loss.end
            if any(r.partition == loss.partition and r.start < end and loss.start < r.end for r in ranges):
                self._report.note(f"whether records are missing where {replace(loss, topic=self._spec.topic)}")
        comparison = Comparison(self._spec, self._state, self._connections, self._sample, report=self._report)
        newest = None
        if self._spec.is_keyed and not self._spec.has_versions:
            newest = NewestChanges(self._spec, self._state, self._connections, self._database)
        is_first, compared, total = self._covers_all, 0, sum(map(len, ranges))
        self._progress(f"Topic {self._spec.topic}", compared, total)
        while is_first or any(map(len, ranges)):
            # One whole range at a time for upserts, since a key's changes may be anywhere.
            todo = chunk(ranges, OFFSETS_AT_ONCE)
            self._compare(Window(todo), comparison, newest, counts_foreign=is_first)
            is_first, ends = False, {r.partition: r.end for r in todo}
            ranges = tuple(replace(r, start=ends.get(r.partition, r.start)) for r in ranges)
            compared += sum(map(len, todo))
            self._progress(f"Topic {self._spec.topic}", compared, total)
        if newest is not None:
            newest.compare(self._live(newest.key), self._report)
        elif self._spec.has_versions:
            overlapping_versions(self._database, self._rows, self._spec, self._state, report=self._report)

    def _watermarks(self) -> Watermarks:
        now = self._connections.cluster.watermarks_of(self._spec.topic)
        if not self._identity.same_as(now.identity):
            raise another_topic(self._position, now)
        return now

    def _ranges(self, now: Watermarks) -> Iterator[OffsetRange]:
        """Yield what Kafka still has below the position."""
        spec = self._spec
        since = offsets_of(self._since, spec.topic, self._connections.cluster, now)
        begins = dict(self._adopted.offsets) if self._adopted else {}
        if spec.start != "earliest" and not begins:
            begins = self._first_offsets()
            self._report.note(f"offsets before the table's first row, since starting_offsets is {spec.start}")
        for p, end in sorted(self._position.offsets.items()):
            if p in now.low:
                start = max(now.low[p], since.get(p, 0), begins.get(p, 0))
                yield OffsetRange(p, min(start, end), end)

    @cached_property
    def _losses(self) -> list[Loss]:
        """The losses that commits have recorded."""
        losses = [loss for loss in recorded_losses(self._state.table) if loss.topic in ("", self._spec.topic)]
        return [replace(x, start=0) if x.reason == "replaced" else x for x in losses if x.reason != "topic recreated"]

    def _fill_losses(self, window: Window, mask: np.ndarray, skipped: bool, value: bool) -> None:
        """Set a mask for the offsets that a reset skipped, or for those with rows of a log that is gone."""
        found = [x for x in self._losses if (x.reason == "skipped") is skipped]
        window.fill(
            mask, [OffsetRange(x.partition, x.start, x.start if x.end is None else x.end) for x in found], value
        )

    def _first_offsets(self) -> dict[int, int]:
        parts = [f"SELECT p, min(o) AS o FROM ({self._live()}) WHERE code = 0 GROUP BY p"]
        if self._dead_letters is not None:
            parts.append(f"SELECT partition, min({quoted('offset')}) FROM ({self._dead_letters}) GROUP BY partition")
        found = self._database.execute(f"SELECT p, min(o) FROM ({' UNION ALL '.join(parts)}) GROUP BY p").fetchall()
        return {**self._position.offsets, **dict(found)}

    def _is_same_id(self, column: str) -> str:
        return f"({column} IS NULL OR {column} = {literal(self._identity.topic_id)})"

    def _live(self, content: str = "", rows: str = "") -> str:
        """Return the query for partitions ``p`` and offsets ``o`` of rows.

        ``code`` is 0 for rows of this topic, 1 for other topics of the table, 2 for other rows; ``mark`` says whether
        the row only marks a deleted key.
        """
        kafka, identity, row = quoted(METADATA_COLUMN), self._identity, "kafka_lake_row"
        topics = ", ".join(literal(topic.topic) for topic in self._spec.each_topic)
        # Earlier topics of the same name, and the table's other topics, have rows of their own.
        code = (
            f"CASE WHEN {kafka}.topic = {literal(identity.topic)} AND {self._is_same_id(f'{kafka}.topic_id')} THEN 0 "
            f"WHEN {kafka}.topic IN ({topics}) THEN 1 ELSE 2 END"
        )
        return (
            f"SELECT {kafka}.partition AS p, {kafka}.{quoted('offset')} AS o, {code} AS code, {self._mark} AS mark, "
            f"{content or row} AS content FROM ({rows or self._rows}) AS {row}"
        )

    def _compare(
        self, window: Window, comparison: Comparison, newest: NewestChanges | None, *, counts_foreign: bool
    ) -> None:
        comparison.choose(window)
        self._read_kafka(window, comparison)
        window.fill(window.known, [OffsetRange(p, 0, low) for p, low in self._watermarks().low.items()], False)
        self._fill_losses(window, window.known, skipped=False, value=False)
        self._count_rows(window, counts_foreign=counts_foreign)
        self._count_dead_letters(window)
        # Rows of skipped offsets are compared like others, since a later run may have read them.
        given_up = ~window.known
        self._fill_losses(window, given_up, skipped=True, value=True)
        is_change = self._read_by_spark(window, newest, given_up)
        counts = self._report.counts
        rows, deletes, letters = window.rows, window.deletes, window.dead_letters
        have_row = (rows > 0) | (deletes > 0)
        counts["records"] += int(window.visible.sum())
        counts["rows"] += int(rows.sum()) + int(deletes.sum())
        counts["dead_letters"] += int(letters.sum())
        counts["records_of_other_tables"] += int((window.visible & ~window.taken).sum())
        counts["invisible_offsets"] += int((~window.visible & window.known).sum())
        twice = (rows > 1) | (deletes > 1) | (letters > 1)
        if not self._is_pending:
            twice |= have_row & (letters > 0)
        self._add("doubled", window, twice & window.known)
        held = have_row | (letters > 0)
        needed = window.visible & window.taken & window.known
        if not self._spec.is_keyed:
            counts["records_without_value"] += int((window.tombstone & needed).sum())
            needed &= ~window.tombstone
        is_gone = ~window.visible & self._is_compacted
        self._add("foreign_row", window, held & window.known & ~needed & ~is_gone)
        counts["offsets_lost_or_expired"] += int((given_up & ~held).sum())
        if is_change is not None:
            held = is_change | (letters > 0)
        self._explain(window, needed & ~held & ~given_up)
        live = partial(self._live, "")
        comparison.compare(window, self._database, self._rows, live, dead_letters=self._dead_letters)

    def _add(self, kind: Any, window: Window, mask: np.ndarray) -> None:
        for partition, offsets in window.offsets(mask):
            self._report.add(kind, self._spec.topic, partition, offsets)

    def _read_kafka(self, window: Window, comparison: Comparison) -> None:
        for messages, partitions, offsets in message_lists(self._connections.cluster, self._spec.topic, window.ranges):
            cells = window.cells(partitions, offsets)
            inside = cells >= 0
            window.visible[cells[inside]] = True
            empty = np.fromiter((m.value() is None for m in messages), dtype=bool, count=len(messages))
            window.tombstone[cells[empty & inside]] = True
            comparison.keep(cells, messages)

    def _count_rows(self, window: Window, *, counts_foreign: bool) -> None:
        least, most = _span(window)
        near = "true" if counts_foreign else f"o >= {least} AND o < {most}"
        query = f"SELECT p, o, code, mark FROM ({self._live()}) WHERE {near}"
        spec, ends = self._spec, self._position.offsets
        for batch in self._database.sql(query).to_arrow_reader(_ROWS_AT_ONCE):
            code = batch.column("code").to_numpy()
            if counts_foreign and (unnamed := int((code == 2).sum())):
                if self._adopted is None:
                    self._report.add("foreign_row", spec.topic, None, np.zeros(unnamed))
                else:
                    self._report.counts["adopted_rows"] += unnamed
            batch = batch.filter(pa.array(code == 0))
            partitions, offsets = batch.column("p").to_numpy(), batch.column("o").to_numpy()
            marks = batch.column("mark").to_numpy(zero_copy_only=False)
            cells = window.cells(partitions, offsets)
            for counts, mask in ((window.rows, ~marks), (window.deletes, marks)):
                np.add.at(counts, cells[mask & (cells >= 0)], 1)
            for p in np.unique(partitions).tolist() if counts_foreign else ():
                beyond = offsets[(partitions == p) & (offsets >= ends.get(p, 0))]
                if len(beyond):
                    self._report.add("foreign_row", spec.topic, p, np.sort(beyond))

    def _count_dead_letters(self, window: Window) -> None:
        if self._dead_letters is None:
            return
        least, most = _span(window)
        places = f"SELECT partition AS p, {quoted('offset')} AS o FROM ({self._dead_letters})"
        query = f"SELECT * FROM ({places}) WHERE o >= {least} AND o < {most}"
        for batch in self._database.sql(query).to_arrow_reader(_ROWS_AT_ONCE):
            cells = window.cells(batch.column("p").to_numpy(), batch.column("o").to_numpy())
            np.add.at(window.dead_letters, cells[cells >= 0], 1)

    def _records_of_table(self, window: Window) -> DataFrame:
        """Return the records that the table's condition takes, by the code that routes them."""
        topic = self._topic
        records = read(self._connections, Plan(tuple(filter(len, window.ranges)), self._position, 0), topic.topic)
        if not topic.has_routes:
            return records
        number = [other.identifier for other in topic.tables].index(self._spec.identifier) - 1
        # Those that no table takes become dead letters of the topic's own table.
        numbers = (OWN, UNMATCHED) if number == OWN and topic.unmatched == "dead_letter" else (number,)
        numbered = routed(records, topic, schema_names(records, topic, self._connections))
        return numbered.filter(F.col(ROUTE).isin(*map(str, numbers))).drop(ROUTE, ROUTES)

    def _read_by_spark(self, window: Window, newest: NewestChanges | None, given_up: np.ndarray) -> np.ndarray | None:
        """Mark the records that the table's condition takes; add the changes, and return which records are changes."""
        has_routes = self._topic.has_routes
        if not len(window) or not (has_routes or newest):
            return None
        with ExitStack() as held:
            records = self._records_of_table(window)
            if has_routes:
                records = cached(records, held) if newest else records
                taken = records.select("partition", "offset").toArrow()
                window.taken[:] = False
                window.taken[window.cells(taken["partition"].to_numpy(), taken["offset"].to_numpy())] = True
            return newest.add(records, window, given_up) if newest else None

    def _explain(self, window: Window, mask: np.ndarray) -> None:
        """Report records that are neither rows nor dead letters, except those that row retention has deleted."""
        spec, counts = self._spec, self._report.counts
        if not mask.any():
            return
        rows = last_expiry(self._state.table)
        letters = last_expiry(self._dead_letter_table) if self._dead_letter_table else None
        for batch in self._records(window, mask):
            stamps = pc.fill_null(batch.column("timestamp").cast(pa.int64()), 2**62).to_numpy() // 1000
            if rows is not None:
                old = stamps < rows.before_ms
                counts["expired_rows"] += int(old.sum())
                batch, stamps = batch.filter(pa.array(~old)), stamps[~old]
            if not len(batch):
                continue
            decoded = self._decoder.decode_records(batch)
            failed = pc.is_valid(decoded.error_class).to_numpy(zero_copy_only=False)
            missing = ~failed & self._has_row(decoded)
            if spec.dead_letters == "skip":
                counts["skipped_records"] += int(failed.sum())
                failed = np.zeros(len(failed), dtype=bool)
            if letters is not None:
                failed &= stamps >= letters.before_ms
            partitions, offsets = (batch.column(part).to_numpy() for part in ("partition", "offset"))
            for kind, wrong in (("missing", missing), ("dead_letter_missing", failed)):
                for p in np.unique(partitions[wrong]).tolist():
                    self._report.add(kind, spec.topic, p, np.sort(offsets[wrong & (partitions == p)]))  # type: ignore[arg-type]

    def _has_row(self, decoded: Decoded) -> np.ndarray:
        """Return which records must have a row of their own: of a history, upserts and ordered deletes."""
        if decoded.change is None or not self._spec.has_versions:
            return np.full(len(decoded.error_class), decoded.change is None)
        operations = pc.struct_field(decoded.change, "operation")
        # A delete without an order may add nothing.
        has_order = self._spec.order_by or self._spec.has_source_order
        kinds = pa.array([UPSERT, READ, *([] if has_order else [DELETE])])
        found: np.ndarray = pc.fill_null(pc.is_in(operations, kinds), False).to_numpy(zero_copy_only=False)
        return found

    def _records(self, window: Window, mask: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Read some records again."""
        ranges = [
            OffsetRange(p, int(run[0]), int(run[-1]) + 1)
            for p, offsets in window.offsets(mask)
            for run in np.split(offsets, np.flatnonzero(np.diff(offsets) > _APART) + 1)
        ]
        while ranges:
            # A consumer reads one range of a partition at a time.
            now = list({r.partition: r for r in reversed(ranges)}.values())
            ranges = [r for r in ranges if r not in now]
            for messages, partitions, offsets in message_lists(self._connections.cluster, self._spec.topic, now):
                cells = window.cells(partitions, offsets)
                chosen = np.flatnonzero((cells >= 0) & mask[cells])
                mask[cells[chosen]] = False
                if len(chosen):
                    yield as_batch(self._spec.topic, [messages[int(number)] for number in chosen])

    @cached_property
    def _decoder(self) -> RecordDecoder:
        decoder = decoder_of(self._spec, self._connections, self._state)
        target = plan_schema(self._spec, decoder, self._state).target
        found: RecordDecoder = unpack_decoder(decoder.for_tasks(target, self._spec.max_record_bytes))
        return found


def _span(window: Window) -> tuple[int, int]:
    return min((r.start for r in window.ranges), default=0), max((r.end for r in window.ranges), default=0)
