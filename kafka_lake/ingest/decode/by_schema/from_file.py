"""Values that are all of one schema, which stands in a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from kafka_lake.executors.json.columns import Rules
from kafka_lake.executors.task import OBSERVED, loaded
from kafka_lake.ingest.decode.by_schema.writer import Writer
from kafka_lake.ingest.decode.decoder import Learned, Nothing
from kafka_lake.ingest.decode.json.columns import columns_of
from kafka_lake.ingest.decode.json.decoder import work_of
from kafka_lake.ingest.decode.json.open_content import OpenContent
from kafka_lake.ingest.decode.target import Target


@dataclass(frozen=True)
class FromFile(Nothing):
    """Decodes values that are all of one schema, which stands in a file.

    Args:
        watches: Whether to see what JSON records have beside the schema's fields.
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

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what tasks are told."""
        if self.writer.schema.kind == "JSON":
            rules = replace(self.rules, infer=True, any_case=target.any_case)
            return work_of(target, rules, max_record_bytes)
        return self.writer.work(columns_of(target.columns, target), max_record_bytes)

    def learn(self, counts: Mapping[str, Any], records: DataFrame, target: Target) -> Learned | None:
        """Return a decoder that knows what JSON records have beside the schema's fields."""
        if not (self.watches and counts.get(OBSERVED)):
            return (
                Learned(replace(self, beside=self.beside.forgetting()), again=False) if self.beside.kept_out else None
            )
        seen = loaded(counts[OBSERVED], self.rules.max_columns)
        known = self.beside.knowing(seen, [self.writer.schema], target)
        return Learned(replace(self, beside=known), again=False)

    def unkept(self) -> Mapping[str, str]:
        """Return what was in the records and is in no column: path → what is said of it."""
        return dict(self.beside.kept_out)
