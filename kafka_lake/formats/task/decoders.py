"""Decoders of values and of records: what a format's task side implements, and how a decoder travels to tasks."""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.task.columns import Column, arrow_type
from kafka_lake.formats.task.decoded import Decoded


class RecordDecoder(Protocol):
    """Decodes records."""

    def decode_records(self, batch: pa.RecordBatch) -> Decoded:
        """Decode records, by their columns ``key`` and ``value``."""


class ValueDecoder(ABC):
    """Decodes values or keys."""

    @abstractmethod
    def decode(self, values: pa.Array) -> Decoded:
        """Decode bytes. Nulls are tombstones, and stay null."""

    def decode_records(self, batch: pa.RecordBatch) -> Decoded:
        """Decode records by their column ``value``."""
        return self.decode(batch.column("value"))


def unpack_decoder(data: Mapping[str, Any]) -> Any:
    """Return the decoder that plain data describes.

    Args:
        data: ``decoder`` has the packed class: a task gets the code of its own formats only. The other items are the
            arguments. An argument of this form, or a list of them, becomes a decoder, too.
    """
    make: Callable[..., Any] = pickle.loads(data["decoder"])
    return make(**{name: _argument(value) for name, value in data.items() if name != "decoder"})


def _argument(value: Any) -> Any:
    if isinstance(value, list):
        return [_argument(element) for element in value]
    return unpack_decoder(value) if isinstance(value, dict) and "decoder" in value else value


class RejectAll:
    """Gives all records one error.

    Args:
        tombstones: Whether records without a value get it, too.
    """

    def __init__(self, columns: Sequence[Column], error_class: str, message: str, tombstones: bool) -> None:
        self._kind, self._error, self._tombstones = arrow_type(("struct", columns)), (error_class, message), tombstones

    def decode_records(self, batch: pa.RecordBatch) -> Decoded:
        """Decode records."""
        values = batch.column("value")
        failed = pa.repeat(True, len(values)) if self._tombstones else pc.is_valid(values)
        error_class, message = (pc.if_else(failed, text, pa.scalar(None, pa.string())) for text in self._error)
        return Decoded(pa.nulls(0, self._kind), np.array([], dtype=np.int64), error_class, message)
