"""What the rows of a commit were found to be by one rule. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kafka_lake.executors.writing import rules
from kafka_lake.ingest.rule import Rule
from kafka_lake.ingest.rules.check import Checked
from kafka_lake.ingest.rules.volume import VolumeFound
from kafka_lake.ingest.topic_table import is_over, limit_of

FEW = 10
"""So many rows are never too large a share: a commit may have three rows, and one of them must not stop a topic."""


@dataclass(frozen=True)
class RuleResult:
    """What a rule found.

    Args:
        rule: The rule.
        evaluated: Rows that it was asked of.
        failed: Rows that break it. Of a rule about commits: 1 if the commit breaks it.
        nulls: Rows for which the answer is neither yes nor no, since something is null; they pass. Of a `null_share`:
            rows whose column is null.
        first: Partition and offset of the first row that breaks it, by partition and then by offset.
        unknown: Columns that it names and the table doesn't have yet.
        snapshot: Of a `foreign_key`: the snapshot of the other table that was looked at; None if it has none.
        volume: Of a `volume`: how many rows the last period has beside the band; None if it wasn't asked.
        checked: Of a `check`: what your function found; None if the commit has no rows.
    """

    rule: Rule
    evaluated: int
    failed: int
    nulls: int = 0
    first: tuple[int, int] | None = None
    unknown: tuple[str, ...] = ()
    snapshot: int | None = None
    volume: VolumeFound | None = None
    checked: Checked | None = None

    @property
    def passed(self) -> int:
        """Return how many rows keep it."""
        return self.evaluated - self.failed if self.rule.is_of_rows else self.evaluated

    @property
    def is_over_limit(self) -> bool:
        """Return whether more rows break it than its settings allow."""
        return self.rule.is_of_rows and exceeds(self.rule.fail_above, self.failed, self.evaluated)

    @property
    def fails(self) -> bool:
        """Return whether the commit must not be published because of it."""
        return bool(self.failed) if self.rule.on_failure == "fail" else self.is_over_limit

    @property
    def refuses_rows(self) -> bool:
        """Return whether the rows that break it are to become dead letters."""
        return bool(self.failed) and self.rule.on_failure == "dead_letter"

    def with_failed(self, failed: int) -> "RuleResult":
        """Return the result with another number of rows that break it."""
        return replace(self, failed=failed)


def exceeds(limit: int | str | None, failed: int, evaluated: int) -> bool:
    """Return whether more rows break a rule than a limit allows; a few never are too large a share.

    Args:
        limit: A count, a share, or None for no limit.
        failed: Rows that break the rule.
        evaluated: All rows.

    >>> exceeds("5%", 11, 200), exceeds("5%", 10, 10), exceeds(10, 11, 1_000_000), exceeds(None, 5, 5)
    (True, False, True, False)
    """
    allowed = limit_of(limit, "fail_above")
    return is_over(allowed, failed, of=evaluated) and not (isinstance(allowed, float) and failed <= FEW)


def commit_result(rule: Rule, rows: int, nulls: int = 0) -> RuleResult:
    """Return what a rule about commits finds of one.

    Args:
        rule: A `row_count` or a `null_share`.
        rows: How many rows the commit has.
        nulls: Of a `null_share`: in how many its column is null.
    """
    count, share = rule.entry.row_count, rule.entry.null_share
    if count is not None:
        broken = rows < (count.min or 0) or (count.max is not None and rows > count.max)
        return RuleResult(rule, rows, int(broken))
    assert share is not None, "there are two kinds"
    allowed = limit_of(share.max, "max")
    assert isinstance(allowed, float), "the settings were checked"
    return RuleResult(rule, rows, int(is_over(allowed, nulls, of=rows)), nulls)


def reason_of(broken: Sequence[Rule]) -> tuple[str, str]:
    """Return error class and message of a row's dead letter, as those have it who write rows.

    Args:
        broken: Rules, in the order of the settings; one of them at least makes dead letters.
    """
    return rules.reason_of([(rule.name, rule.said, rule.error_class) for rule in broken])
