"""Undecodable: a decoder for one record, of which only that is known that no other decoder gets along with it."""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.ingest.decode import UNDECODABLE
from kafka_lake.ingest.decode.decoder import MESSAGE, Nothing
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
        failed = F.lit(True) if self.also_none else F.col("value").isNotNull()
        return records.select(
            *records.columns,
            F.lit(None).cast(target.columns).alias("decoded"),
            F.when(failed, F.lit(self.error_class)).alias("error_class"),
            F.when(failed, F.lit(self.message[:MESSAGE])).alias("error_message"),
        )
