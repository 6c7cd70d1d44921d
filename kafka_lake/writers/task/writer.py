"""In a Spark task: decode batches of records and write them to data files; failed records are returned."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.engine.task.packing import Batches
from kafka_lake.formats.task.batches import ERROR_CLASS, ERROR_MESSAGE, dumped, single_threaded, with_headers
from kafka_lake.formats.task.decoded import NOTHING, Decoded
from kafka_lake.formats.task.decoders import RecordDecoder, unpack_decoder
from kafka_lake.quality.task.rules import RuleChecker, RuleTest
from kafka_lake.runtime.task.report import Report, Spans, classes_of_batch, dumped_report, merged_classes
from kafka_lake.writers.task.files import Files

REPORT, TABLE, TOPIC_ID = "report", "table", "topic_id"
Places = Mapping[int, tuple[np.ndarray, np.ndarray]]
"""By Kafka partition: ascending offsets, and the index of each one's reason."""
_TIMESTAMP_TYPES = ["CreateTime", "LogAppendTime"]
_ENOUGH_RECORDS = 20_000


@dataclass(frozen=True)
class Work:
    """A task's input beside the records.

    Args:
        io: Properties of the file system, credentials among them; not shown in its repr.
        decoding: Input of `unpack_decoder`; empty for rows.
        topic_id: Empty if the brokers report none.
        refused: Records that become dead letters although they decode.
        reasons: Error classes and messages of refused records.
        stops: Whether new fields get columns. After one, the task decodes 20,000 more records, to see their types, and
            stops: all records are then written again.
    """

    metadata: str
    io: Mapping[str, str] = field(repr=False)
    decoding: Mapping[str, Any]
    topic: str
    topic_id: str | None
    refused: Places = field(default_factory=dict)
    reasons: tuple[tuple[str, str], ...] = ()
    tests: tuple[RuleTest, ...] = ()
    stops: bool = False


def decode_and_write(work: Mapping[str, Any]) -> Batches:
    """Return the function for ``mapInArrow`` that writes records, and returns the failed ones and a report.

    Its input has the columns key, value, partition, offset, timestamp, timestampType, headers as `with_headers` takes
    them, and perhaps topic_id.
    Its output has also ``error_class`` and ``error_message``, and ``report``: null for a record, and the only column
    that isn't null in the last row.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        single_threaded()
        writer, schema = Writer(Work(**work)), None
        for batch in map(with_headers, batches):
            schema = schema or output_schema(batch.schema)
            if writer.has_stopped:
                # To leave input unread would end this worker while Spark writes to it.
                continue
            failed = writer.add(batch)
            if len(failed):
                yield with_schema(failed, schema)
        if schema is not None:
            yield reported(writer.close(), schema)

    return run


def decode_and_write_tables(work: Mapping[str, Any]) -> Batches:
    """Return the function for ``mapInArrow`` that writes each record to its table, one table after the other.

    A table's files are closed before the next table's are opened, so the memory is that of one table. Its input has the
    columns of `decode_and_write`, and ``table``, by which it is sorted. Its output has them too. Records of tables that
    aren't written are returned without an error. Each table gets a row with a report.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        single_threaded()
        works, unwanted = work["works"], work["unwanted"]
        schema, table, writer = None, None, None
        for batch in map(with_headers, batches):
            schema = schema or output_schema(batch.schema)
            for name, part in _by_table(batch):
                if writer is None or name != table:
                    if writer is not None:
                        yield reported(replace(writer.close(), table=table), schema)
                    table = name
                    writer = Writer(Work(**works[name])) if name in works else _Unwritten(wanted=name not in unwanted)
                records = writer.add(part)
                if len(records):
                    yield with_schema(records, schema)
        if writer is not None:
            yield reported(replace(writer.close(), table=table), schema)

    return run


def write_rows(work: Mapping[str, Any]) -> Batches:
    """Return the function for ``mapInArrow`` that writes rows of a table, and returns one row with a report."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        single_threaded()
        files, count = Files(work["metadata"], work["io"]), 0
        for batch in batches:
            count += len(batch)
            if len(batch):
                # For empty lists Java writes no offsets, and Arrow crashes without them: this makes them.
                files.add(pa.Table.from_batches([batch.take(pa.array(np.arange(len(batch))))]))
        report = Report(files=tuple(files.close()), records=count)
        yield pa.RecordBatch.from_pylist([{REPORT: dumped_report(report)}], pa.schema([(REPORT, pa.binary())]))

    return run


class Writer:
    """Writes records to data files of a table, and counts rows and failed records."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._files, self._report, self._spans = Files(work.metadata, dict(work.io)), Report(), Spans()
        self._decoder: RecordDecoder = unpack_decoder(work.decoding)
        self._asked = RuleChecker(work.tests, self._files.columns)
        self._before_stop: int | None = None

    @property
    def has_stopped(self) -> bool:
        """Whether enough records were decoded since the first new field."""
        return self._before_stop is not None and self._before_stop <= 0

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write records; return the failed ones with ``error_class`` and ``error_message``."""
        report, work = self._report, self._work
        whole, apart = batch, None
        if work.refused:
            batch, apart = without_refused(batch, work.refused, work.reasons)
        rows, kept, failed, decoded = decode(batch, work, self._decoder)
        if apart is not None:
            failed = pa.concat_batches([failed, apart])
        if work.tests and len(rows):
            rows, kept, failed = self._checked(rows, kept, failed)
        report = _counted(report, whole, failed)
        if decoded.seen != NOTHING:
            report = replace(report, seen=(*report.seen, dumped(decoded.seen, batch)))
            if self._before_stop is None and work.stops and decoded.seen.new_fields:
                self._before_stop = _ENOUGH_RECORDS
        if len(rows):
            self._spans.add(kept)
            self._files.add(rows)
        if len(failed):
            report = replace(report, classes=merged_classes((*report.classes, *classes_of_batch(failed))))
        if self._before_stop is not None:
            self._before_stop -= len(whole)
        self._report = report
        return failed

    def _checked(
        self, rows: pa.Table, kept: pa.RecordBatch, failed: pa.RecordBatch
    ) -> tuple[pa.Table, pa.RecordBatch, pa.RecordBatch]:
        """Check the table's rules; move rows that become dead letters to the failed records."""
        broken = self._asked.add(rows, kept)
        bad = self._asked.refuses(broken)
        if not bad.any():
            return rows, kept, failed
        apart = _failing(kept.filter(pa.array(bad)), *self._asked.reasons(broken[bad]))
        stays = pa.array(~bad)
        return rows.filter(stays), kept.filter(stays), pa.concat_batches([failed, apart])

    def close(self) -> Report:
        """Write the remaining rows, and return the report."""
        files = tuple(self._files.close())
        asked, answers = self._asked.answers()
        return replace(
            self._report,
            files=files,
            spans=self._spans.all(),
            asked=asked,
            answers=answers,
            stopped=self.has_stopped,
        )


class _Unwritten:
    """Counts the records of a table that isn't written, and returns them if they are wanted."""

    def __init__(self, wanted: bool) -> None:
        self._wanted, self._count = wanted, 0

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._count += len(batch)
        return batch if self._wanted else batch.slice(0, 0)

    def close(self) -> Report:
        return Report(records=self._count)


def output_schema(records: pa.Schema) -> pa.Schema:
    """Return the schema of a task's output."""
    return pa.schema([*records, (ERROR_CLASS, pa.string()), (ERROR_MESSAGE, pa.string()), (REPORT, pa.binary())])


def with_schema(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return records as a task's output: columns that they lack are null."""
    missing = [pa.nulls(len(records), field.type) for field in list(schema)[records.num_columns :]]
    return pa.RecordBatch.from_arrays([*records.columns, *missing], schema=schema)


def reported(report: Report, schema: pa.Schema) -> pa.RecordBatch:
    """Return a report as a row of a task's output."""
    return pa.RecordBatch.from_pylist([{**dict.fromkeys(schema.names), REPORT: dumped_report(report)}], schema)


def without_refused(
    batch: pa.RecordBatch, places: Places, reasons: Sequence[tuple[str, str]]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the records that may become rows; and the refused ones, with ``error_class`` and ``error_message``."""
    numbers = np.full(len(batch), -1, dtype=np.int32)
    partitions, offsets = (batch.column(name).to_numpy() for name in ("partition", "offset"))
    for partition, (refused, reason) in places.items():
        rows = np.flatnonzero(partitions == partition)
        if not len(rows):
            continue
        at = np.minimum(np.searchsorted(refused, offsets[rows]), len(refused) - 1)
        is_refused = refused[at] == offsets[rows]
        numbers[rows[is_refused]] = reason[at[is_refused]]
    apart = numbers >= 0
    chosen = pa.array(numbers[apart])
    classes, messages = (pa.array([reason[part] for reason in reasons], pa.string()).take(chosen) for part in (0, 1))
    return batch.filter(pa.array(~apart)), _failing(batch.filter(pa.array(apart)), classes, messages)


def decode(
    batch: pa.RecordBatch, work: Work, decoder: RecordDecoder
) -> tuple[pa.Table, pa.RecordBatch, pa.RecordBatch, Decoded]:
    """Decode records; return rows, their records, the failed records, and the decoder's result."""
    decoded = decoder.decode_records(batch)
    rows, kept = decoded.made, batch
    if len(rows) < len(batch):
        kept = batch.take(pa.array(decoded.places))
    bad = pc.is_valid(decoded.error_class)
    failed = _failing(batch.filter(bad), decoded.error_class.filter(bad), decoded.error_message.filter(bad))
    arrays, names = [*rows.flatten(), _metadata(kept, work)], [*(field.name for field in rows.type), METADATA_COLUMN]
    return pa.Table.from_arrays(arrays, names=names), kept, failed, decoded


def _failing(records: pa.RecordBatch, classes: pa.Array, messages: pa.Array) -> pa.RecordBatch:
    return records.append_column(ERROR_CLASS, classes).append_column(ERROR_MESSAGE, messages)


def _metadata(kept: pa.RecordBatch, work: Work) -> pa.StructArray:
    count, kinds = len(kept), kept.column("timestampType")
    names = pa.array(_TIMESTAMP_TYPES)
    known = pc.if_else(pc.and_(pc.greater_equal(kinds, 0), pc.less(kinds, len(names))), kinds, None)
    headers = kept.column("headers")
    if len(headers.values):
        headers = pc.if_else(pc.greater(pc.list_value_length(headers), 0), headers, None)
    else:
        headers = pa.nulls(count, headers.type)
    has_own = TOPIC_ID in kept.schema.names
    columns = {
        "topic": pa.repeat(pa.scalar(work.topic), count),
        "topic_id": kept.column(TOPIC_ID)
        if has_own
        else pa.repeat(pa.scalar(work.topic_id or None, pa.string()), count),
        "partition": kept.column("partition"),
        "offset": kept.column("offset"),
        "timestamp": kept.column("timestamp"),
        "timestamp_type": names.take(known),
        "key": kept.column("key"),
        "headers": headers,
    }
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def bytes_of(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch's keys, values and headers."""
    headers = batch.column("headers").flatten()
    columns = [batch.column("key"), batch.column("value"), *(headers.field(number) for number in range(2))]
    return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns)


def _counted(report: Report, batch: pa.RecordBatch, failed: pa.RecordBatch) -> Report:
    stamps = pc.fill_null(batch.column("timestamp").cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    # Kafka writes -1 where a record has no time.
    timed = stamps[stamps >= 0]
    ends = [int(end) // 1000 for end in (timed.min(), timed.max())] if len(timed) else []
    known = [end for end in (report.oldest_ms, report.newest_ms, *ends) if end is not None]
    return replace(
        report,
        records=report.records + len(batch),
        bytes_read=report.bytes_read + bytes_of(batch),
        tombstones=report.tombstones + batch.column("value").null_count,
        failed=report.failed + len(failed),
        untimed=report.untimed + batch.column("timestamp").null_count,
        oldest_ms=min(known, default=None),
        newest_ms=max(known, default=None),
    )


def _by_table(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the records of each table; they are sorted by table."""
    encoded = batch.column(TABLE).dictionary_encode()
    numbers = encoded.indices.to_numpy()
    begins = [0, *(np.flatnonzero(np.diff(numbers)) + 1)]
    for begin, end in zip(begins, [*begins[1:], len(batch)], strict=True):
        yield encoded.dictionary[int(numbers[begin])].as_py(), batch.slice(begin, end - begin)
