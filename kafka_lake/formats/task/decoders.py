"""Which decoder plain data names. Each turns batches of records into Arrow columns, in a task or anywhere else."""

import pickle
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.json.task.decoder import JsonDecoder
from kafka_lake.formats.task.columns import Rules, arrow_type
from kafka_lake.formats.task.decoded import Decoded
from kafka_lake.formats.task.key import KeyDecoder
from kafka_lake.formats.task.plain_values import PlainValues
from kafka_lake.formats.task.registered import RegisteredDecoder


class ValueDecoder(Protocol):
    """Decodes the values, or the keys, of records."""

    def decode(self, values: pa.Array) -> Decoded:
        """Decode bytes; nulls are tombstones, and stay null."""


class RecordDecoder(Protocol):
    """Decodes records."""

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Decode records, by their columns ``key`` and ``value``."""


class OfValues:
    """Decodes records by their values alone."""

    def __init__(self, values: ValueDecoder) -> None:
        self._values = values

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Decode records, by their column ``value``."""
        return self._values.decode(batch.column("value"))


class _Refusing:
    """Refuses every record that it is given."""

    def __init__(self, work: Mapping[str, Any]) -> None:
        self._class, self._message = work["error_class"], work["message"]
        self._also_none, self._kind = work["also_none"], arrow_type(("struct", work["columns"]))

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        values = batch.column("value")
        failed = pa.array(np.ones(len(values), dtype=bool)) if self._also_none else pc.is_valid(values)
        none = pa.nulls(len(values), pa.string())
        return Decoded(
            pa.nulls(0, self._kind),
            np.array([], dtype=np.int64),
            pc.if_else(failed, self._class, none),
            pc.if_else(failed, self._message, none),
        )


def record_decoder(work: Mapping[str, Any]) -> RecordDecoder:
    """Return a decoder of records."""
    if work["decoder"] == "refusing":
        return _Refusing(work)
    if work["decoder"] == "with_key":
        key = value_decoder(work["key"]) if work["key"] is not None else None
        return KeyDecoder(value_decoder(work["value"]), key, **work["told"])
    if work["decoder"] == "changes":
        parts = [None if work[part] is None else record_decoder(work[part]) for part in ("rows", "keys")]
        decoder: RecordDecoder = pickle.loads(work["packed"])(*parts, **work["told"])
        return decoder
    return OfValues(value_decoder(work))


def value_decoder(work: Mapping[str, Any]) -> ValueDecoder:
    """Return a decoder of values, or of keys, by plain data as in `record_decoder`."""
    told = {name: each for name, each in work.items() if name != "decoder"}
    make: Callable[[Mapping[str, Any]], ValueDecoder] = _KINDS[work["decoder"]]
    return make(told)


def _json(told: Mapping[str, Any]) -> ValueDecoder:
    return JsonDecoder(told["columns"], Rules(**told["rules"]), told["max_bytes"], told["plain"])


def _packed(told: Mapping[str, Any]) -> ValueDecoder:
    """Return a decoder whose class comes with its data: tasks for other formats need neither it nor what it imports."""
    make: Callable[..., ValueDecoder] = pickle.loads(told["packed"])
    return make(**{name: each for name, each in told.items() if name != "packed"})


def _registered(told: Mapping[str, Any]) -> ValueDecoder:
    return RegisteredDecoder(**{**told, "decoders": [value_decoder(each) for each in told["decoders"]]})


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], ValueDecoder]] = {
    "json": _json,
    "plain": lambda told: PlainValues(**told),
    "avro": _packed,
    "protobuf": _packed,
    "registered": _registered,
}
