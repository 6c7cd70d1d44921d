"""Values of binary schemas, each decoded by its own, judged together."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.executors.json.misfit import ANOTHER_TYPE
from kafka_lake.ingest.decode import MALFORMED, WRONG_TYPE
from kafka_lake.ingest.decode.by_schema.writer import Writer
from kafka_lake.ingest.decode.decoder import Verdict, judged
from kafka_lake.ingest.decode.fit_columns import Misfit, null_required, project, reasons
from kafka_lake.ingest.decode.target import Target


@dataclass(frozen=True)
class Share:
    """The values of one binary schema: which they are, their bytes, and how those become fields."""

    mine: Column
    payload: Column
    writer: Writer


def decoded_shares(
    records: DataFrame,
    frame: DataFrame,
    shares: Sequence[Share],
    before: Sequence[Verdict],
    *,
    target: Target,
    max_record_bytes: int | None,
    messages: bool,
    others: Column | None = None,
) -> DataFrame:
    """Add the three columns of every decoder's result to records.

    Args:
        records: The records.
        frame: The same, with whatever columns the shares and verdicts name.
        shares: Which values are of which binary schema.
        before: What is wrong with values, ahead of what decoding finds wrong.
        target: The table's columns.
        max_record_bytes: Longer values are not decoded, they are ``too_large``; None for no limit.
        messages: Whether to say what is wrong.
        others: The rows of the values that are in no share; None if they have none.
    """
    verdicts = list(before)
    row: Column = F.lit(None).cast(target.columns) if others is None else others
    for index, share in enumerate(shares):
        raw = f"__kafka_lake_raw_{index}"
        small = F.lit(True) if max_record_bytes is None else F.octet_length("value") <= max_record_bytes
        frame = frame.withColumn(raw, share.writer.decode(F.when(share.mine & small, share.payload)))
        found, error = share.writer.outcome(F.col(raw))
        made, misfits = project(found, share.writer.fields, target)
        row = F.when(share.mine, made).otherwise(row)
        said = F.lit(f"The bytes don't decode by {share.writer.label}.")
        why = F.coalesce(F.concat(said, F.lit(" "), error), said)
        verdicts.append(Verdict(share.mine & found.isNull(), F.lit(MALFORMED), why))
        verdicts += _wrong(share, misfits)
    nulls = null_required(row, target.columns)
    return judged(records, frame, row, verdicts, nulls=nulls, max_record_bytes=max_record_bytes, messages=messages)


def _wrong(share: Share, misfits: Sequence[Misfit]) -> list[Verdict]:
    if not misfits:
        return []
    any_of_them, said = reasons(misfits)
    message = F.concat(F.lit(f"Written with {share.writer.label}. "), said, F.lit(f" {ANOTHER_TYPE}"))
    return [Verdict(share.mine & any_of_them, F.lit(WRONG_TYPE), message)]
