"""Values taken as they are: text or bytes; one column, ``value``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import types as T

from kafka_lake.ingest.decode.decoder import Nothing
from kafka_lake.ingest.decode.target import Target

COLUMN = "value"
_KINDS: dict[str, T.DataType] = {"string": T.StringType(), "bytes": T.BinaryType()}


@dataclass(frozen=True)
class Plain(Nothing):
    """Decodes nothing: the value is the column."""

    kind: Literal["string", "bytes"]

    @property
    def fixed(self) -> Target:
        """The one column."""
        return Target(T.StructType([T.StructField(COLUMN, _KINDS[self.kind])]))

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what tasks are told."""
        return {"decoder": "plain", "kind": self.kind, "max_bytes": max_record_bytes}
