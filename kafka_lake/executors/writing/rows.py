"""From rows that Spark has read to data files of a table, in one task."""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from kafka_lake.executors.packing import Batches
from kafka_lake.executors.task import single_threaded
from kafka_lake.executors.writing.files import Files
from kafka_lake.executors.writing.work import Work

FILES = "files"


def write_rows(told: Mapping[str, Any]) -> Batches:
    """Return the function for ``mapInArrow`` that writes rows, and gives one row with the pickled `DataFile`s.

    Args:
        told: The fields of a `Work`, whose metadata and io count.

    Its input has columns by the names of the table's.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        single_threaded()
        files = Files(Work(**told))
        for batch in batches:
            if len(batch):
                files.add(pa.Table.from_batches([batch]))
        yield pa.RecordBatch.from_pydict({FILES: pa.array([pickle.dumps(tuple(files.close()))], pa.binary())})

    return run
