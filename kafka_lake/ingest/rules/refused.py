"""Records that rules refuse, as plain data that names them by partition and offset."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

REFUSED = "kafka-lake.refused-by-rules"
"""In a snapshot's summary: how many of its records each rule made dead letters of, as JSON, if there are any."""
_PLACE = ("topic_id", "partition", "offset")


def refused_mark(by_rule: Mapping[str, int]) -> dict[str, str]:
    """Return what a snapshot's summary tells of the records that rules refused.

    Args:
        by_rule: How many rows break each rule that makes dead letters, by its name.
    """
    some = {name: count for name, count in by_rule.items() if count}
    return {REFUSED: json.dumps(some)} if some else {}


@dataclass(frozen=True)
class Refused:
    """Records whose rows break rules that make dead letters.

    Args:
        records: Columns ``topic_id``, ``partition``, ``offset`` and ``reason``: a place in `reasons`. Each record once.
        reasons: Error class and message.
        by_rule: How many rows break each rule that makes dead letters, by its name.
    """

    records: pa.Table
    reasons: tuple[tuple[str, str], ...]
    by_rule: Mapping[str, int]

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.records)

    def and_(self, other: "Refused") -> "Refused":
        """Return these and other records together; none is among both."""
        reasons = pc.add(other.records.column("reason"), pa.scalar(len(self.reasons), pa.int32()))
        others = other.records.set_column(len(_PLACE), "reason", reasons)
        return Refused(
            pa.concat_tables([self.records, others]), self.reasons + other.reasons, {**self.by_rule, **other.by_rule}
        )

    def by_partition(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return offsets, ascending, and reasons for each Kafka partition; of one topic's records only."""
        partitions, offsets, reasons = (
            self.records.column(name).to_numpy() for name in ("partition", "offset", "reason")
        )
        order = np.lexsort((offsets, partitions))
        found = {}
        for partition in np.unique(partitions):
            of_it = order[partitions[order] == partition]
            found[int(partition)] = (offsets[of_it].astype(np.int64), reasons[of_it].astype(np.int32))
        return found

    def set_apart(self, decoded: DataFrame) -> DataFrame:
        """Return decoded records, those that are refused with error class and message, as if they hadn't decoded.

        Args:
            decoded: Records with ``error_class`` and ``error_message``; their ``topic_id`` counts if there is one.
        """
        told = decoded.sparkSession.createDataFrame(self.records)
        told = told.select(*[F.col(name).alias(f"refused_{name}") for name in (*_PLACE, "reason")])
        same = (F.col("partition") == F.col("refused_partition")) & (F.col("offset") == F.col("refused_offset"))
        if "topic_id" in decoded.columns:
            # Dead letters may be of a topic that was recreated since, which has the same offsets.
            same &= F.nullif(F.col("topic_id"), F.lit("")).eqNullSafe(F.col("refused_topic_id"))
        joined = decoded.join(F.broadcast(told), same, "left")
        columns = {"error_class": 0, "error_message": 1}
        return joined.select(
            *[self._reason(columns[name]).alias(name) if name in columns else F.col(name) for name in decoded.columns]
        )

    def left(self, rows: DataFrame, column: str) -> DataFrame:
        """Return the rows of a table that are of other records.

        Args:
            rows: The rows.
            column: Their metadata column.
        """
        told = rows.sparkSession.createDataFrame(self.records)
        told = told.select(*[F.col(name).alias(f"__kafka_lake_refused_{name}") for name in _PLACE])
        place = F.col(f"`{column}`")
        same = F.lit(True)
        for name in _PLACE:
            same &= place[name].eqNullSafe(F.col(f"__kafka_lake_refused_{name}"))
        return rows.join(F.broadcast(told), same, "left_anti")

    def _reason(self, part: int) -> Column:
        name = ("error_class", "error_message")[part]
        told = F.create_map(*[F.lit(each) for n, reason in enumerate(self.reasons) for each in (n, reason[part])])
        return F.coalesce(F.col(name), told[F.col("refused_reason")])
