"""Undecodable: a decoder for one record, of which only that is known that no other decoder gets along with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka_lake.ingest.decode import UNDECODABLE
from kafka_lake.ingest.decode.decoder import MESSAGE, Nothing
from kafka_lake.ingest.decode.json.columns import columns_of
from kafka_lake.ingest.decode.target import Target


@dataclass(frozen=True)
class Unreadable(Nothing):
    """Makes a dead letter of every value, whatever it is.

    Args:
        also_none: Whether a record without a value becomes one, too: in a keyed table it deletes a row.
    """

    message: str
    error_class: str = UNDECODABLE
    also_none: bool = False
    fixed: Target | None = None

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what tasks are told."""
        told = {"error_class": self.error_class, "message": self.message[:MESSAGE], "also_none": self.also_none}
        return {"decoder": "refusing", "columns": columns_of(target.columns, target), **told}
