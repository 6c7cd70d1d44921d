"""Values taken as they are: text, bytes, or the whole of a JSON value as a variant; one column, ``value``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.executors.fit import SHOWN
from kafka_lake.executors.task import OBSERVED
from kafka_lake.ingest.decode import NOT_JSON, NOT_TEXT
from kafka_lake.ingest.decode.decoder import Nothing, Verdict, judged
from kafka_lake.ingest.decode.in_tasks import decoded_in_tasks
from kafka_lake.ingest.decode.target import Target

COLUMN = "value"
_KINDS: dict[str, T.DataType] = {"string": T.StringType(), "bytes": T.BinaryType(), "variant": T.VariantType()}
_VARIANT = "__kafka_lake_variant"


@dataclass(frozen=True)
class Plain(Nothing):
    """Decodes nothing: the value is the column."""

    kind: Literal["string", "bytes", "variant"]

    @property
    def fixed(self) -> Target:
        """The one column."""
        return Target(T.StructType([T.StructField(COLUMN, _KINDS[self.kind])]))

    def decode(
        self, records: DataFrame, target: Target, *, max_record_bytes: int | None = None, messages: bool = True
    ) -> DataFrame:
        """Add the three columns of every decoder's result to records."""
        work = self.work(target, max_record_bytes)
        if work is not None:
            return decoded_in_tasks(records, target.columns, work).drop(OBSERVED)
        value = F.col("value")
        text = value.cast("string")
        not_text = F.concat(
            F.lit("The value is not UTF-8; it begins with 0x"), F.hex(F.substring("value", 1, 8)), F.lit(".")
        )
        bad = [Verdict(~F.is_valid_utf8(text), F.lit(NOT_TEXT), not_text)]
        parse = F.is_valid_utf8(text)
        if max_record_bytes is not None:
            parse = parse & (F.octet_length(value) <= max_record_bytes)
        prepared = records.withColumn(_VARIANT, F.when(parse, F.try_parse_json(text)))
        parsed = F.col(_VARIANT)
        said = F.concat(F.lit("The value is no JSON; it begins with "), _cut(F.ltrim(text)), F.lit("."))
        bad.append(Verdict(parsed.isNull(), F.lit(NOT_JSON), said))
        row = F.when(parsed.isNotNull(), F.struct(parsed.alias(COLUMN)))
        return judged(records, prepared, row, bad, nulls=None, max_record_bytes=max_record_bytes, messages=messages)

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any] | None:
        """Return what tasks are told; None for variants, which Spark alone makes."""
        if self.kind == "variant":
            return None
        return {"decoder": "plain", "text": self.kind == "string", "max_bytes": max_record_bytes}


def _cut(text: Column) -> Column:
    """Return the beginning of a text, fit to be shown in a message."""
    start = F.when(F.char_length(text) > SHOWN, F.concat(F.substring(text, 1, SHOWN), F.lit("…"))).otherwise(text)
    return F.regexp_replace(start, r"\p{Cntrl}", "\ufffd")
