"""What Spark's tasks do with batches of records that are changes: tell them from their envelope."""

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

CHANGE, ORIGINAL = "__kafka_lake_change", "__kafka_lake_original_value"
ROWS_TOLD = {"maxwell": maxwell, "canal": canal}
"""Envelopes whose records tell the columns of the source's key, by the modules that know them."""
FIELDS = pa.struct(
    [
        ("does", pa.string()),
        ("order", pa.list_(pa.int64())),
        ("error_class", pa.string()),
        ("error_message", pa.string()),
        ("at", pa.int64()),
        ("snapshot", pa.string()),
        ("source", pa.string()),
        ("old", pa.binary()),
        ("unavailable", pa.list_(pa.string())),
        ("key", pa.binary()),
    ]
)
"""The column `CHANGE`, beside which a source may have any names."""


def changes(work: Mapping[str, Any]) -> Batches:
    """Return the function that makes of records what they say.

    The column ``value`` becomes the row, null where there is none; the value that the record had goes into a column of
    its own, and what the record says beside the row into another one.

    Args:
        work: Plain data: ``envelope``, the ``columns`` of the key, whether they are those ``of_record``, the
            ``schemas`` of envelopes in Avro, and the ``placeholder`` of values that aren't sent.
    """
    change_of = _teller(work)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys, values = batch.column("key").to_pylist(), batch.column("value")
            told = [change_of(key, value) for key, value in zip(keys, values.to_pylist(), strict=True)]
            at = batch.schema.get_field_index("value")
            rows = pa.array([each.row for each in told], pa.binary())
            made = batch.set_column(at, "value", rows)
            yield pa.RecordBatch.from_arrays(
                [*made.columns, pa.array([_data(each) for each in told], FIELDS), values],
                names=[*batch.schema.names, CHANGE, ORIGINAL],
            )

    return run


def _teller(work: Mapping[str, Any]) -> Callable[[bytes | None, bytes | None], Change]:
    key = {"columns": work["columns"], "of_record": work["of_record"]}
    if work["envelope"] == "debezium":
        types, placeholders = ConnectTypes(), Placeholders(work["placeholder"])
        return partial(debezium.change_of, **key, types=types, placeholders=placeholders)
    if work["envelope"] == "debezium_avro":
        return partial(AvroEnvelopes(work["schemas"], Placeholders(work["placeholder"])).change_of, **key)
    if work["envelope"] in ROWS_TOLD:
        return partial(ROWS_TOLD[work["envelope"]].change_of, **key)
    return partial(plain.change_of, columns=work["columns"])


def _data(change: Change) -> dict[str, Any]:
    return {
        "does": change.does or None,
        "order": change.order,
        "error_class": change.error_class or None,
        "error_message": change.error_message or None,
        "at": change.at,
        "snapshot": change.snapshot or None,
        "source": change.source or None,
        "old": change.old,
        "unavailable": change.unavailable or None,
        "key": change.key,
    }
