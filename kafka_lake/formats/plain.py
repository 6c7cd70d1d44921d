"""Formats ``string`` and ``bytes``: the whole value is the one column."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T

from kafka_lake.engine.interop import packed
from kafka_lake.formats.base import Part
from kafka_lake.formats.columns import Target
from kafka_lake.formats.decoder import COLUMN, Decoder
from kafka_lake.formats.task.plain import PlainDecoder

_TYPES: dict[str, T.DataType] = {"string": T.StringType(), "bytes": T.BinaryType()}


def decoder(part: Part) -> Decoder:
    """Return the decoder of a part."""
    return Plain(part.format.name)


@dataclass(frozen=True)
class Plain(Decoder):
    """Takes values as they are.

    Args:
        kind: ``string`` or ``bytes``.
    """

    kind: str

    @property
    def fixed(self) -> Target:
        """The one column."""
        return Target(T.StructType([T.StructField(COLUMN, _TYPES[self.kind])]))

    def for_tasks(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return the data of the tasks' decoder."""
        return {"decoder": packed(PlainDecoder), "kind": self.kind, "max_bytes": max_record_bytes}
