"""What rules are asked of, and what they find of it, whichever engine asks."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from kafka_lake.executors.writing.rules import BROKEN, PLACE
from kafka_lake.ingest.rule import Rule
from kafka_lake.ingest.rules.referred import Referred
from kafka_lake.ingest.rules.result import Refused, RuleResult, reason_of


@dataclass(frozen=True)
class Asked:
    """What rules are asked of.

    Args:
        topic: The topic's name, for errors; or what else the rows are of, as `what` says.
        rules: The rules, in the order of the settings.
        column: The metadata column; None if rows don't tell records. Then no row can be named nor refused.
        declared: Whether the settings declare all columns.
        others: Rows that are in the table already, where each `unique` is to look at those too; None if it isn't.
        earlier: Rows that are in the table already, for a `unique` with `within`; None if there are none.
        what: What has the name, for errors.
        untold: The column that names those which a row doesn't tell; None if each row tells all of them.
        tables: Those that foreign keys refer to.
        samples: Whether messages of your own checks may be shown.
        mask: Regular expressions; ``***`` takes the place of what they find in those messages.
    """

    topic: str
    rules: tuple[Rule, ...]
    rows: DataFrame
    column: str | None
    declared: bool = False
    others: DataFrame | None = None
    what: str = "Topic"
    untold: str | None = None
    earlier: DataFrame | None = None
    tables: Mapping[str, Referred] = field(default_factory=dict)
    samples: bool = False
    mask: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """Return whose rows they are, for errors."""
        return f"{self.what} {self.topic}"


@dataclass(frozen=True)
class Verdict:
    """What became of it.

    Args:
        refused: The records whose rows are to become dead letters; None if there are none, or if a rule fails anyway.
    """

    results: tuple[RuleResult, ...] = ()
    refused: Refused | None = None


def places(column: str | None) -> list[Column]:
    """Return where rows come from; in some order, if no column tells that."""
    if column is None:
        told = (F.lit(None).cast("string"), F.lit(0), F.monotonically_increasing_id())
    else:
        told = tuple(F.col(f"`{column}`")[name] for name in PLACE)
    return [each.alias(name) for each, name in zip(told, PLACE, strict=True)]


def where() -> Column:
    """Return the place of a row in its topic."""
    return F.struct("partition", "offset")


def first_place(asked: Asked, place: Row | None) -> tuple[int, int] | None:
    """Return partition and offset of a place; None if rows don't tell records."""
    return None if place is None or asked.column is None else (place["partition"], place["offset"])


def refused_by(found: pa.Table, broken: Callable[[Any], list[Rule]]) -> Refused:
    """Return records that rules refuse.

    Args:
        found: Places of records, and in the column `BROKEN` what says which rules each breaks.
        broken: Returns the rules that it says, in the order of the settings.
    """
    codes = found.column(BROKEN).combine_chunks().dictionary_encode()
    rules = [broken(code) for code in codes.dictionary.to_pylist()]
    counts = {row["values"]: row["counts"] for row in codes.indices.value_counts().to_pylist()}
    by_rule = Counter[str]()
    for n, each in enumerate(rules):
        by_rule.update({rule.name: counts[n] for rule in each if rule.error_class})
    records = found.select(PLACE).append_column("reason", codes.indices.cast(pa.int32()))
    return Refused(records, tuple(map(reason_of, rules)), dict(by_rule))
