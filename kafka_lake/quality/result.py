"""Results of rules, and the records that they refuse."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.common.text import is_over, limit_of
from kafka_lake.quality.custom_check import Checked
from kafka_lake.quality.task import rules
from kafka_lake.spec.rule import Rule

FEW = 10
"""Up to this number of rows no share is too large: one bad row of three must not stop a topic."""


@dataclass(frozen=True)
class RuleResult:
    """Result of a rule for one commit.

    Args:
        failed: Rows that break the rule; 1 if the commit as a whole breaks it.
        first: The least partition and offset of a row that breaks it.
        unknown: Columns that the rule names and the table doesn't have yet.
        snapshot: For a `foreign_key`: snapshot of the referenced table.
    """

    rule: Rule
    evaluated: int
    failed: int
    nulls: int = 0
    first: tuple[int, int] | None = None
    unknown: tuple[str, ...] = ()
    snapshot: int | None = None
    checked: Checked | None = None

    @property
    def passed(self) -> int:
        """Return the number of rows that pass."""
        return self.evaluated - self.failed if self.rule.is_of_rows else self.evaluated

    @property
    def is_over_limit(self) -> bool:
        """Return whether more rows break the rule than the settings allow."""
        return self.rule.is_of_rows and exceeds(self.rule.fail_above, self.failed, self.evaluated)

    @property
    def fails(self) -> bool:
        """Return whether the rule fails the commit."""
        return bool(self.failed) if self.rule.on_failure == "fail" else self.is_over_limit

    @property
    def refuses_rows(self) -> bool:
        """Return whether rows become dead letters."""
        return bool(self.failed) and self.rule.on_failure == "dead_letter"

    @property
    def facts(self) -> dict[str, object]:
        """Return the figures for the check's metadata."""
        rule = self.rule
        facts: dict[str, object] = {"rule": rule.description, "on_failure": rule.on_failure}
        if rule.kind == "check":
            facts |= {"rows": self.evaluated, **(self.checked.facts if self.checked is not None else {})}
        elif rule.counts_rows:
            facts["rows"] = self.evaluated
        else:
            facts |= {
                "evaluated": self.evaluated,
                "passed": self.passed,
                "failed": self.failed,
                "null": self.nulls,
            }
        if rule.entry.foreign_key is not None:
            facts["table"] = rule.entry.foreign_key.table
            facts["snapshot"] = "none yet" if self.snapshot is None else str(self.snapshot)
        if self.unknown:
            facts["not_in_table"] = ", ".join(self.unknown)
        if self.first is not None:
            facts["first_broken"] = "partition {}, offset {}".format(*self.first)
        return facts

    @property
    def problem(self) -> str:
        """Return what breaks the rule, as a part of a sentence."""
        rule = self.rule
        if self.checked is not None:
            return f"of {self.evaluated} rows, {self.checked.description}"
        if rule.counts_rows:
            return f"the commit has {self.evaluated} rows, and {rule.description}"
        first = "" if self.first is None else ", the first in partition {} at offset {}".format(*self.first)
        return f"{self.failed} of {self.evaluated} rows break it ({rule.description}){first}"

    @property
    def limit(self) -> str:
        """Return the limit that the rule has."""
        if self.rule.on_failure == "fail":
            return "on_failure is fail"
        return f"the limit is {self.rule.fail_above} (fail_above)"


def exceeds(limit: int | str | None, failed: int, evaluated: int) -> bool:
    """Return whether more rows fail than a count or a share allows.

    >>> exceeds("5%", 11, 200), exceeds("5%", 10, 10), exceeds(10, 11, 1_000_000), exceeds(None, 5, 5)
    (True, False, True, False)
    """
    allowed = limit_of(limit, "fail_above")
    return is_over(allowed, failed, of=evaluated) and not (isinstance(allowed, float) and failed <= FEW)


def count_result(rule: Rule, rows: int) -> RuleResult:
    """Return the result of a `row_count` for a commit."""
    count = rule.entry.row_count
    assert count is not None, "the rule is a row_count"
    return RuleResult(rule, rows, int(rows < (count.min or 0) or (count.max is not None and rows > count.max)))


def reason_of(broken: Sequence[Rule]) -> tuple[str, str]:
    """Return error class and message of a dead letter that breaks these rules."""
    return rules.reason_of([(rule.name, rule.description, rule.error_class) for rule in broken])


REFUSED = "kafka-lake.refused-by-rules"
"""Snapshot property: number of dead letters by rule, as JSON."""
_PLACE = ("topic_id", "partition", "offset")


def refused_mark(by_rule: Mapping[str, int]) -> dict[str, str]:
    """Return the snapshot property for dead letters by rule."""
    some = {name: count for name, count in by_rule.items() if count}
    return {REFUSED: json.dumps(some)} if some else {}


@dataclass(frozen=True)
class Refused:
    """Records that become dead letters.

    Args:
        records: Each once, with ``topic_id``, ``partition``, ``offset`` and ``reason``, an index in ``reasons``.
    """

    records: pa.Table
    reasons: tuple[tuple[str, str], ...]
    by_rule: Mapping[str, int]

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.records)

    def and_(self, other: "Refused") -> "Refused":
        """Return these and other, different records together."""
        reasons = pc.add(other.records.column("reason"), pa.scalar(len(self.reasons), pa.int32()))
        records = pa.concat_tables([self.records, other.records.set_column(len(_PLACE), "reason", reasons)])
        return Refused(records, self.reasons + other.reasons, {**self.by_rule, **other.by_rule})

    def by_partition(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return ascending offsets and reasons for each partition of one topic."""
        partitions, offsets, reasons = (
            self.records.column(name).to_numpy() for name in ("partition", "offset", "reason")
        )
        order = np.lexsort((offsets, partitions))
        by_partition = {}
        for partition in np.unique(partitions):
            rows = order[partitions[order] == partition]
            by_partition[int(partition)] = (offsets[rows].astype(np.int64), reasons[rows].astype(np.int32))
        return by_partition

    def set_apart(self, decoded: DataFrame) -> DataFrame:
        """Return decoded records, the refused ones with error class and message."""
        refused = decoded.sparkSession.createDataFrame(self.records)
        refused = refused.select(*[F.col(name).alias(f"refused_{name}") for name in (*_PLACE, "reason")])
        same = (F.col("partition") == F.col("refused_partition")) & (F.col("offset") == F.col("refused_offset"))
        if "topic_id" in decoded.columns:
            # A recreated topic has the same offsets.
            same &= F.nullif(F.col("topic_id"), F.lit("")).eqNullSafe(F.col("refused_topic_id"))
        joined = decoded.join(F.broadcast(refused), same, "left")
        columns = {"error_class": 0, "error_message": 1}
        return joined.select(
            *[self._reason(columns[name]).alias(name) if name in columns else F.col(name) for name in decoded.columns]
        )

    def left(self, rows: DataFrame, column: str) -> DataFrame:
        """Return the rows of other records."""
        refused = rows.sparkSession.createDataFrame(self.records)
        refused = refused.select(*[F.col(name).alias(f"__kafka_lake_refused_{name}") for name in _PLACE])
        place = F.col(f"`{column}`")
        same = F.lit(True)
        for name in _PLACE:
            same &= place[name].eqNullSafe(F.col(f"__kafka_lake_refused_{name}"))
        return rows.join(F.broadcast(refused), same, "left_anti")

    def _reason(self, part: int) -> Column:
        name = ("error_class", "error_message")[part]
        entries = [F.lit(value) for number, reason in enumerate(self.reasons) for value in (number, reason[part])]
        reasons = F.create_map(*entries)
        return F.coalesce(F.col(name), reasons[F.col("refused_reason")])
