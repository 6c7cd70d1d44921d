"""Undecodable: a decoder for one record, of which only that is known that no other decoder gets along with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from kafka_lake.executors.task import OBSERVED
from kafka_lake.ingest.decode import UNDECODABLE
from kafka_lake.ingest.decode.decoder import MESSAGE, Nothing
from kafka_lake.ingest.decode.in_tasks import decoded_in_tasks
from kafka_lake.ingest.decode.json.columns import columns_of
from kafka_lake.ingest.decode.target import Target


@dataclass(frozen=True)
class Unreadable(Nothing):
    """Makes a dead letter of every value, whatever it is.

    Args:
        message: Why.
        error_class: Of these dead letters.
        also_none: Whether a record without a value becomes one, too: in a keyed table it deletes a row.
    """

    message: str
    error_class: str = UNDECODABLE
    also_none: bool = False
    fixed: Target | None = None

    def decode(
        self, records: DataFrame, target: Target, *, max_record_bytes: int | None = None, messages: bool = True
    ) -> DataFrame:
        """Add ``decoded``, ``error_class`` and ``error_message``: null and the same for all. See `Decoder.decode`."""
        return decoded_in_tasks(records, target.columns, self.work(target, max_record_bytes)).drop(OBSERVED)

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what tasks are told."""
        told = {"error_class": self.error_class, "message": self.message[:MESSAGE], "also_none": self.also_none}
        return {"decoder": "refusing", "columns": columns_of(target.columns, target), **told}
