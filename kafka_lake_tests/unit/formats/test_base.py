"""A format is one module that registers itself: here CSV lines by declared columns."""

import csv
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from kafka_lake.engine.interop import packed
from kafka_lake.errors import ConfigurationError
from kafka_lake.formats.base import Format, Part, format_named, register
from kafka_lake.formats.columns import Target, columns_of
from kafka_lake.formats.decoder import Decoder
from kafka_lake.formats.task.batches import decode
from kafka_lake.formats.task.columns import Column, arrow_type
from kafka_lake.formats.task.decoded import Decoded, failed_at, small_enough
from kafka_lake.formats.task.decoders import ValueDecoder
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.decoding import decoder_of
from kafka_lake.spec.topic_table import TopicTable


class CsvDecoder(ValueDecoder):
    """The task side."""

    def __init__(self, columns: Sequence[Column], max_bytes: int | None) -> None:
        self._type, self._max_bytes = arrow_type(("struct", columns)), max_bytes

    def decode(self, values: pa.Array) -> Decoded:
        errors: dict[int, tuple[str, str]] = {}
        rows, places = [], []
        for place in small_enough(values, self._max_bytes, errors).tolist():
            cells = next(csv.reader([values[place].as_py().decode()]))
            if len(cells) == self._type.num_fields:
                rows.append(cells)
                places.append(place)
            else:
                errors[place] = "malformed", f"The line has {len(cells)} cells, not {self._type.num_fields}."
        columns = [
            pa.array([row[number] for row in rows], pa.string()).cast(field.type)
            for number, field in enumerate(self._type)
        ]
        made = pa.StructArray.from_arrays(columns, fields=list(self._type))
        return Decoded(made, np.array(places, dtype=np.int64), *failed_at(errors, len(values)))


class Csv(Decoder):
    """The driver side."""

    def __init__(self, declared: Target) -> None:
        self._declared = declared

    @property
    def fixed(self) -> Target:
        return self._declared

    def for_tasks(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        return {
            "decoder": packed(CsvDecoder),
            "columns": columns_of(target.columns, target),
            "max_bytes": max_record_bytes,
        }


def decoder(part: Part) -> Decoder:
    return Csv(part.declared or Target(T.StructType().add("id", "long").add("name", "string")))


register(Format("csv", __name__, takes_columns=True))
RECORDS = pa.RecordBatch.from_pydict(
    {
        "key": pa.array([b"k", None, None], pa.binary()),
        "value": pa.array([b"1,a", b"2", None], pa.binary()),
        "partition": [0, 0, 0],
        "offset": [5, 6, 7],
    }
)


@pytest.mark.parametrize("key_format", [None, "bytes"])
def test_registered_format_decodes_records(key_format: str | None) -> None:
    spec = TopicTable("orders", format="csv", key_format=key_format)
    chosen = decoder_of(spec, cast(Connections, Connections), None)
    assert chosen.fixed is not None
    (batch,) = decode(chosen.for_tasks(chosen.fixed, None))([RECORDS])
    row = {"id": 1, "name": "a"} if key_format is None else {"id": 1, "name": "a", "_key": b"k"}
    assert batch.column("decoded").to_pylist() == [row, None, None]
    assert batch.column("error_class").to_pylist() == [None, "malformed", None]
    assert batch.column("error_message")[1].as_py() == "The line has 1 cells, not 2."


def test_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"Format xml is unknown.*json, avro"):
        format_named("xml")
