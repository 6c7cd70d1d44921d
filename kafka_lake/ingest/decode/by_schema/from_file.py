"""Values that are all of one schema, which stands in a file."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.decode.by_schema.shares import Share, decoded_shares
from kafka_lake.ingest.decode.by_schema.writer import Writer
from kafka_lake.ingest.decode.decoder import Nothing
from kafka_lake.ingest.decode.json.decoder import decode_json
from kafka_lake.ingest.decode.target import Target


@dataclass(frozen=True)
class FromFile(Nothing):
    """Decodes values that are all of one schema, which stands in a file.

    Args:
        writer: The schema.
    """

    writer: Writer

    @property
    def fixed(self) -> Target | None:
        """None: the file may change, and the table evolves."""
        return None

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return the schema."""
        return [(self.writer.label, self.writer.fields)]

    def decode(
        self, records: DataFrame, target: Target, *, max_record_bytes: int | None = None, messages: bool = True
    ) -> DataFrame:
        """Add the three columns of every decoder's result to records."""
        if self.writer.schema.kind == "JSON":
            return decode_json(records, target, max_record_bytes=max_record_bytes)
        alone = [Share(F.lit(True), F.col("value"), self.writer)]
        return decoded_shares(
            records, records, alone, [], target=target, max_record_bytes=max_record_bytes, messages=messages
        )
