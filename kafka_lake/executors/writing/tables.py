"""From batches of records to data files of several tables, in one task: one table after the other."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.packing import Batches
from kafka_lake.executors.task import single_threaded
from kafka_lake.executors.writing.report import Report
from kafka_lake.executors.writing.task import LARGE, Writer, given_back, reported, returned
from kafka_lake.executors.writing.work import Work

TABLE = "table"


def decode_and_write_tables(told: Mapping[str, Any]) -> Batches:
    """Return the function for ``mapInArrow`` that writes each record to its table.

    A table's files are closed before the next table's are begun, so that the memory is that of one table, however many
    there are.

    Args:
        told: ``works``, the fields of a `Work` for each table that is written; ``unwanted``, tables whose records are
            counted, and no more; ``withheld``, whether large records come without what makes them large.

    Its input has the columns of `decode_and_write`, and ``table``, by which it is sorted. Its output has them too, and

    also ``error_class``, ``error_message`` and ``report``. Records of tables that aren't written are given back without

    an error. For each table, there is a row with nothing but a `Report`.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        single_threaded()
        works, withheld = told["works"], told["withheld"]
        schema, table, writer = None, None, None
        for batch in batches:
            schema = schema or returned(batch.schema)
            for its, part in _by_table(batch):
                if writer is None or its != table:
                    if writer is not None:
                        yield reported(replace(writer.close(), table=table), schema)
                    unwritten = _Unwritten(withheld, wanted=its not in told["unwanted"])
                    table, writer = its, Writer(Work(**works[its])) if its in works else unwritten
                back = writer.add(part)
                if len(back):
                    yield given_back(back, schema)
        if writer is not None:
            yield reported(replace(writer.close(), table=table), schema)

    return run


class _Unwritten:
    """Gives the records of a table that isn't written back, and counts them.

    Args:
        withheld: Whether large records come without what makes them large; they are left out then.
        wanted: Whether to give any back.
    """

    def __init__(self, withheld: bool, wanted: bool) -> None:
        self._withheld, self._wanted, self._report = withheld, wanted, Report()

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take records, and return them."""
        large = pc.sum(batch.column(LARGE)).as_py()
        if large and self._withheld:
            batch = batch.filter(pc.invert(batch.column(LARGE)))
        report = self._report
        self._report = replace(report, large=report.large + large, records=report.records + len(batch))
        return batch if self._wanted else batch.slice(0, 0)

    def close(self) -> Report:
        """Return how many there were."""
        return self._report


def _by_table(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Give the records of each table, of which each is in a row."""
    encoded = batch.column(TABLE).dictionary_encode()
    numbers = encoded.indices.to_numpy()
    begins = [0, *(np.flatnonzero(np.diff(numbers)) + 1)]
    for begin, end in zip(begins, [*begins[1:], len(batch)], strict=True):
        yield encoded.dictionary[int(numbers[begin])].as_py(), batch.slice(begin, end - begin)
