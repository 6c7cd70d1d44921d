"""What Spark's tasks do with batches of records: decode them, or only see what they have that no column takes."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from kafka_lake.engine.task.packing import Batches
from kafka_lake.formats.task.decoded import NOTHING, Observed
from kafka_lake.formats.task.decoders import RecordDecoder, unpack_decoder

DECODED, ERROR_CLASS, ERROR_MESSAGE, OBSERVED = "decoded", "error_class", "error_message", "observed"
CHANGE = "__kafka_lake_change"
"""What a record does to a row, beside which a source may have columns of any names."""
HEADER_KEYS, HEADER_VALUES = "header_keys", "header_values"
"""Columns of a task's input: lists of the keys and values of each record's headers; see `with_headers`."""


def decode(work: Mapping[str, Any]) -> Batches:
    """Return the function that adds a decoder's columns to records, and ``observed`` to the first of a batch.

    If records are changes, they get the column `CHANGE`, too.

    Its input has columns ``key`` and ``value``, ``partition`` and ``offset``, and perhaps headers; see `with_headers`.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        single_threaded()
        decoder: RecordDecoder = unpack_decoder(work)
        for batch in map(with_headers, batches):
            made = decoder.decode_records(batch)
            observed = [dumped(made.seen, batch) if made.seen != NOTHING else None] + [None] * (len(batch) - 1)
            added = [made.rows, made.error_class, made.error_message, pa.array(observed[: len(batch)], pa.string())]
            names = [*batch.schema.names, DECODED, ERROR_CLASS, ERROR_MESSAGE, OBSERVED]
            if made.change is not None:
                added.append(made.change)
                names.append(CHANGE)
            yield pa.RecordBatch.from_arrays([*batch.columns, *added], names=names)

    return run


def observe(work: Mapping[str, Any]) -> Batches:
    """Return the function that gives what batches of records have that no column takes, as `dumped` says it."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        single_threaded()
        decoder: RecordDecoder = unpack_decoder(work)
        for batch in map(with_headers, batches):
            seen = decoder.decode_records(batch).seen
            if seen:
                yield pa.RecordBatch.from_pydict({OBSERVED: pa.array([dumped(seen, batch)], pa.string())})

    return run


def with_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return records with ``headers`` in the place of `HEADER_KEYS` and `HEADER_VALUES`, if they have those."""
    place = batch.schema.get_field_index(HEADER_KEYS)
    if place < 0:
        return batch
    keys, values = batch.column(place), batch.column(place + 1)
    headers = pa.StructArray.from_arrays([keys.values, values.values], names=["key", "value"])
    columns, names = batch.columns, batch.schema.names
    columns[place : place + 2] = [pa.ListArray.from_arrays(keys.offsets, headers)]
    names[place : place + 2] = ["headers"]
    return pa.RecordBatch.from_arrays(columns, names=names)


def dumped(seen: Observed, batch: pa.RecordBatch) -> str:
    """Return as text what a batch had, and the least partition and offset of it."""
    first = min(zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True))
    return json.dumps({"at": first, **seen.data()})


def loaded(texts: Iterable[str], max_columns: int) -> Observed:
    """Return the observations of all batches, in the order of the records."""
    seen = NOTHING
    for batch in sorted(map(json.loads, texts), key=lambda batch: tuple(batch.pop("at"))):
        seen = seen.and_(Observed.of(batch)).within(max_columns + 1)
    return seen


def single_threaded() -> None:
    """Leave the other cores to the other tasks: Spark runs a worker for each."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
