"""Values that are all of one schema, which stands in a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.executors.json.columns import Rules
from kafka_lake.executors.task import OBSERVED
from kafka_lake.ingest.decode.by_schema.shares import Share, decoded_shares
from kafka_lake.ingest.decode.by_schema.writer import Writer
from kafka_lake.ingest.decode.decoder import Learned, Nothing
from kafka_lake.ingest.decode.json.decoder import decode_observed, observed_in
from kafka_lake.ingest.decode.json.open_content import OpenContent
from kafka_lake.ingest.decode.target import Target


@dataclass(frozen=True)
class FromFile(Nothing):
    """Decodes values that are all of one schema, which stands in a file.

    Args:
        writer: The schema.
        rules: The topic's, for JSON.
        watches: Whether to see what JSON records have beside the schema's fields.
        beside: What they have shown.
    """

    writer: Writer
    rules: Rules = field(default_factory=Rules)
    watches: bool = True
    beside: OpenContent = field(default_factory=OpenContent)

    @property
    def fixed(self) -> Target | None:
        """None: the file may change, and the table evolves."""
        return None

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return the schema, and what records have beside it."""
        return [(self.writer.label, self.writer.fields), *(("the records", fields) for fields in self.beside.shown)]

    def decode(
        self, records: DataFrame, target: Target, *, max_record_bytes: int | None = None, messages: bool = True
    ) -> DataFrame:
        """Add the three columns of every decoder's result to records."""
        if self.writer.schema.kind == "JSON":
            return decode_observed(records, target, self._rules(target), max_record_bytes)
        alone = [Share(F.lit(True), F.col("value"), self.writer)]
        return decoded_shares(
            records, records, alone, [], target=target, max_record_bytes=max_record_bytes, messages=messages
        )

    def metrics(self, max_record_bytes: int | None = None) -> Sequence[Column]:
        """Return how many batches had something that is in no column."""
        return [F.count(OBSERVED).alias(OBSERVED)] if self.watches and self.writer.schema.kind == "JSON" else []

    def learn(self, counts: Mapping[str, Any], records: DataFrame, target: Target) -> Learned | None:
        """Return a decoder that knows what JSON records have beside the schema's fields."""
        if not (self.watches and counts.get(OBSERVED)):
            return (
                Learned(replace(self, beside=self.beside.forgetting()), again=False) if self.beside.kept_out else None
            )
        seen = observed_in(records, target, self._rules(target))
        known = self.beside.knowing(seen, [self.writer.schema], target)
        return Learned(replace(self, beside=known), again=False)

    def unkept(self) -> Mapping[str, str]:
        """Return what was in the records and is in no column: path → what is said of it."""
        return dict(self.beside.kept_out)

    def _rules(self, target: Target) -> Rules:
        return replace(self.rules, infer=True, any_case=target.any_case)
