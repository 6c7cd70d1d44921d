"""What tells changes from their envelope, record by record."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from kafka_lake.executors.changes import canal, debezium, maxwell, plain
from kafka_lake.executors.changes.change import Change
from kafka_lake.executors.changes.connect_types import ConnectTypes
from kafka_lake.executors.changes.debezium_avro import AvroEnvelopes
from kafka_lake.executors.changes.unavailable import Placeholders
from kafka_lake.executors.packing import Batches

ROWS_TOLD = {"maxwell": maxwell, "canal": canal}
"""Envelopes whose records tell the columns of the source's key, by the modules that know them."""


def change_teller(work: Mapping[str, Any]) -> Callable[[bytes | None, bytes | None], Change]:
    """Return what tells the change that a record is, by its key and value.

    Args:
        work: Plain data: ``envelope``, the ``columns`` of the key, whether they are those ``of_record``, the
            ``schemas`` of envelopes in Avro, and the ``placeholder`` of values that aren't sent.
    """
    key = {"columns": work["columns"], "of_record": work["of_record"]}
    if work["envelope"] == "debezium":
        types, placeholders = ConnectTypes(), Placeholders(work["placeholder"])
        return partial(debezium.change_of, **key, types=types, placeholders=placeholders)
    if work["envelope"] == "debezium_avro":
        return partial(AvroEnvelopes(work["schemas"], Placeholders(work["placeholder"])).change_of, **key)
    if work["envelope"] in ROWS_TOLD:
        return partial(ROWS_TOLD[work["envelope"]].change_of, **key)
    return partial(plain.change_of, columns=work["columns"])


def rows_told(work: Mapping[str, Any]) -> Batches:
    """Return the function for ``mapInArrow`` that gives records the rows that they tell as values."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tell = change_teller(work)
        for batch in batches:
            pairs = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
            rows = pa.array([tell(key, value).row for key, value in pairs], pa.binary())
            yield batch.set_column(batch.schema.get_field_index("value"), "value", rows)

    return run
