"""From batches of records to data files of a table, in one task; records that become no row are given back."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.decoders import RecordDecoder, record_decoder
from kafka_lake.executors.json.decoder import Decoded
from kafka_lake.executors.packing import Batches
from kafka_lake.executors.task import ERROR_CLASS, ERROR_MESSAGE, dumped, single_threaded
from kafka_lake.executors.writing.files import Files
from kafka_lake.executors.writing.refused import split
from kafka_lake.executors.writing.report import Report, dumped_report, failures_of, merged
from kafka_lake.executors.writing.rules import Asked
from kafka_lake.executors.writing.spans import Spans
from kafka_lake.executors.writing.work import Work

REPORT = "report"
LARGE = "large"
TOPIC_ID = "topic_id"
_TIMESTAMP_TYPES = ["CreateTime", "LogAppendTime"]


def decode_and_write(told: Mapping[str, Any]) -> Batches:
    """Return the function for ``mapInArrow`` that takes records, and gives those back that failed, and a `Report`.

    Args:
        told: The fields of a `Work`.

    Its input has the columns key, value, partition, offset, timestamp, timestampType, headers and large, and perhaps

    topic_id, its output

    also ``error_class`` and ``error_message``, and ``report``, which is null where there is a record and the only one

    that isn't null in its last row.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        single_threaded()
        writer, schema = Writer(Work(**told)), None
        for batch in batches:
            schema = schema or returned(batch.schema)
            failed = writer.add(batch)
            if len(failed):
                yield given_back(failed, schema)
        if schema is not None:
            yield reported(writer.close(), schema)

    return run


class Writer:
    """Makes data files of a table of the records that it is given, and counts what becomes of each."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._files, self._report, self._spans = Files(work), Report(), Spans()
        self._decoder = record_decoder(work.decoding)
        self._asked = Asked(work.tests, self._files.columns)

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take records, and return those of them that failed, with ``error_class`` and ``error_message``."""
        report, work = self._report, self._work
        if large := pc.sum(batch.column(LARGE)).as_py():
            report = replace(report, large=report.large + large)
            if work.withheld:
                batch = batch.filter(pc.invert(batch.column(LARGE)))
        whole, apart = batch, None
        if work.refused:
            batch, apart = _without_refused(batch, work)
        rows, kept, failed, decoded = decode(batch, work, self._decoder)
        if apart is not None:
            failed = pa.concat_batches([failed, apart])
        if work.tests and len(rows):
            rows, kept, failed = self._judged(rows, kept, failed)
        report = _counted(report, whole, failed)
        if decoded.seen or decoded.seen.alone:
            report = replace(report, seen=(*report.seen, dumped(decoded.seen, batch)))
        if len(rows):
            self._spans.add(kept)
            self._files.add(rows)
        if len(failed):
            report = replace(report, failures=merged((*report.failures, *failures_of(failed))))
        self._report = report
        return failed

    def _judged(
        self, rows: pa.Table, kept: pa.RecordBatch, failed: pa.RecordBatch
    ) -> tuple[pa.Table, pa.RecordBatch, pa.RecordBatch]:
        """Ask rows the table's rules, and set those apart that are to be dead letters."""
        broken = self._asked.add(rows, kept)
        bad = self._asked.refuses(broken)
        if not bad.any():
            return rows, kept, failed
        apart = kept.filter(pa.array(bad))
        for name, each in zip((ERROR_CLASS, ERROR_MESSAGE), self._asked.reasons(broken[bad]), strict=True):
            apart = apart.append_column(name, each)
        stays = pa.array(~bad)
        return rows.filter(stays), kept.filter(stays), pa.concat_batches([failed, apart])

    def close(self) -> Report:
        """Write what is left, and return what was done."""
        files = tuple(self._files.close())
        asked, answers = self._asked.answers()
        return replace(self._report, files=files, spans=self._spans.all(), asked=asked, answers=answers)


def returned(given: pa.Schema) -> pa.Schema:
    """Return the schema of what a task returns, by that of what it is given."""
    return pa.schema([*given, (ERROR_CLASS, pa.string()), (ERROR_MESSAGE, pa.string()), (REPORT, pa.binary())])


def given_back(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return records as a task returns them: what they lack of the columns is null."""
    missing = [pa.nulls(len(records), field.type) for field in list(schema)[records.num_columns :]]
    return pa.RecordBatch.from_arrays([*records.columns, *missing], schema=schema)


def reported(report: Report, schema: pa.Schema) -> pa.RecordBatch:
    """Return a report as a task returns it."""
    return pa.RecordBatch.from_pylist([{**dict.fromkeys(schema.names), REPORT: dumped_report(report)}], schema)


def _without_refused(batch: pa.RecordBatch, work: Work) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the records that may become rows; and the others, with ``error_class`` and ``error_message``."""
    kept, apart, told = split(batch, work.refused, work.reasons)
    for name, each in zip((ERROR_CLASS, ERROR_MESSAGE), told, strict=True):
        apart = apart.append_column(name, each)
    return kept, apart


def decode(
    batch: pa.RecordBatch, work: Work, decoder: RecordDecoder
) -> tuple[pa.Table, pa.RecordBatch, pa.RecordBatch, Decoded]:
    """Turn records into a table's rows.

    Args:
        batch: Records as `decode_and_write` gets them.
        work: The metadata column, and what is in it.

    Returns:
        Rows with the table's columns by name; the records that they were; the records that failed, with
        ``error_class`` and ``error_message``; and what the decoder said.
    """
    decoded = decoder.decode(batch)
    rows, kept = decoded.made, batch
    if len(rows) < len(batch):
        kept = batch.take(pa.array(decoded.places))
    bad = pc.is_valid(decoded.error_class)
    failed = batch.filter(bad)
    for name, each in ((ERROR_CLASS, decoded.error_class), (ERROR_MESSAGE, decoded.error_message)):
        failed = failed.append_column(name, each.filter(bad))
    table = pa.Table.from_arrays(rows.flatten(), names=[field.name for field in rows.type])
    if work.metadata_column is not None:
        table = table.append_column(work.metadata_column, _metadata(kept, work))
    return table, kept, failed, decoded


def _metadata(kept: pa.RecordBatch, work: Work) -> pa.StructArray:
    count, kinds = len(kept), kept.column("timestampType")
    names = pa.array(_TIMESTAMP_TYPES)
    known = pc.if_else(pc.and_(pc.greater_equal(kinds, 0), pc.less(kinds, len(names))), kinds, None)
    headers = kept.column("headers")
    if len(headers.values):
        headers = pc.if_else(pc.greater(pc.list_value_length(headers), 0), headers, None)
    else:
        headers = pa.nulls(count, headers.type)
    columns = {
        "topic": pa.repeat(pa.scalar(work.topic), count),
        "topic_id": _topic_ids(kept, work),
        "partition": kept.column("partition"),
        "offset": kept.column("offset"),
        "timestamp": kept.column("timestamp"),
        "timestamp_type": names.take(known),
        "key": kept.column("key"),
        "headers": headers,
    }
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def _topic_ids(kept: pa.RecordBatch, work: Work) -> pa.Array:
    """Return the ids of the records' topics: their own, if they have a column that tells it."""
    if TOPIC_ID in kept.schema.names:
        return kept.column(TOPIC_ID)
    return pa.repeat(pa.scalar(work.topic_id or None, pa.string()), len(kept))


def bytes_of(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch's keys, values and headers."""
    headers = batch.column("headers").flatten()
    columns = [batch.column("key"), batch.column("value"), *(headers.field(number) for number in range(2))]
    return sum(pc.sum(pc.binary_length(each)).as_py() or 0 for each in columns)


def _counted(report: Report, batch: pa.RecordBatch, failed: pa.RecordBatch) -> Report:
    stamps = pc.fill_null(batch.column("timestamp").cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    # Kafka writes -1 where a record has no time.
    timed = stamps[stamps >= 0]
    oldest = [report.oldest_ms] if report.oldest_ms is not None else []
    newest = [report.newest_ms] if report.newest_ms is not None else []
    if len(timed):
        oldest.append(int(timed.min()) // 1000)
        newest.append(int(timed.max()) // 1000)
    return replace(
        report,
        records=report.records + len(batch),
        bytes_read=report.bytes_read + bytes_of(batch),
        tombstones=report.tombstones + batch.column("value").null_count,
        failed=report.failed + len(failed),
        untimed=report.untimed + batch.column("timestamp").null_count,
        oldest_ms=min(oldest, default=None),
        newest_ms=max(newest, default=None),
    )
