"""A published commit: its figures and the results of its checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from kafka_lake.common.offsets import OffsetRange, Position
from kafka_lake.errors import AuditFailedError
from kafka_lake.spec.rule import RULE_CHECK

if TYPE_CHECKING:
    from kafka_lake.quality.result import RuleResult
    from kafka_lake.runtime.task.report import DeadLetterClass

CHECKS = ("row_count", "offset_continuity", "schema_evolution", "dead_letters", "data_loss")
# `data_loss` reports, and doesn't prevent a publication.
GATES = frozenset(CHECKS) - {"data_loss"}
NOT_KEPT = "not kept"
"""The note of a column that doesn't keep all of the records' values."""


@dataclass(frozen=True)
class ColumnNote:
    """A change of a column, or a change that was not made and the reason."""

    column: str
    what: str
    before: str
    after: str
    why: str = ""


@dataclass(frozen=True)
class PublishedNote(ColumnNote):
    """A change of a column, with its commit.

    Args:
        when: When the commit was published, ISO 8601; empty if unknown.
        snapshot: The commit's snapshot id, as text; empty if there is none yet.
    """

    when: str = ""
    snapshot: str = ""


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Args:
        problems: Problems with place and count; empty if the check passed.
        warns: Whether a problem is only a warning, and the commit is published.
    """

    check: str
    problems: tuple[str, ...]
    facts: Mapping[str, Any]
    changes: tuple[ColumnNote, ...] = ()
    warns: bool = False

    @property
    def places(self) -> list[str]:
        """Return the facts that are about partitions, by topic and partition."""
        if self.check not in ("offset_continuity", "data_loss"):
            return []
        return [name for name in self.facts if "/" in name]

    @property
    def is_rule(self) -> bool:
        """Return whether the check is one of the topic's rules."""
        return self.check.startswith(RULE_CHECK)

    @property
    def passed(self) -> bool:
        """Return whether there is no problem."""
        return not self.problems

    @property
    def refuses(self) -> bool:
        """Return whether the result prevents the publication."""
        return not self.passed and not self.warns and (self.check in GATES or self.is_rule)


RULES_REMEDY = (
    "main is unchanged. Correct the producer, or change the rule, its on_failure: or its fail_above:. Then run again."
)


def rule_finding(result: "RuleResult") -> Finding:
    """Return the check result of a rule.

    A rule passes if the rows that break it became dead letters: the figures show them. A rule about a column that the
    table doesn't have warns, since the name may be misspelled.
    """
    rule, facts = result.rule, result.facts
    unknown: tuple[str, ...] = ()
    if result.unknown:
        unknown = (f"the table has no column {', '.join(result.unknown)} yet, which counts as null",)
    if result.fails:
        return Finding(rule.check, (f"{result.problem}; {result.limit}", *unknown), facts)
    broken = (result.problem,) if result.failed and rule.on_failure == "warn" else ()
    return Finding(rule.check, (*broken, *unknown), facts, warns=bool(broken or unknown))


@dataclass(frozen=True)
class Commit:
    """One published snapshot.

    Args:
        rows_by_partition: Rows by Kafka partition; empty without a metadata column.
        waited: The age of the records at publication; None if no record has a timestamp, or for a replay.
        published_at: When readers could see the commit, in seconds since the epoch; None if unknown.
        ignored: Records that no table takes, with ``unmatched: ignore``.
        without_table: Records whose value has no table.
    """

    snapshot: int
    ranges: tuple[OffsetRange, ...]
    after: Position
    records: int
    rows: int
    dead_letters: int
    tombstones: int
    files: int
    size: int
    rows_by_partition: Mapping[int, int]
    findings: tuple[Finding, ...]
    kind: str = "append"
    classes: "tuple[DeadLetterClass, ...]" = ()
    waited: "Waited | None" = None
    published_at: float | None = None
    bytes_read: int = 0
    elsewhere: int = 0
    ignored: int = 0
    without_table: int = 0
    untimed: int = 0
    decoded_singly: int = 0

    @property
    def topic(self) -> str:
        """Return the topic's name."""
        return self.after.identity.topic

    @property
    def invisible(self) -> int:
        """Return the number of offsets without a record: aborted, transaction markers, compacted."""
        return max(0, sum(len(r) for r in self.ranges) - self.records - self.elsewhere)

    def stamped_findings(self) -> list[Finding]:
        """Return the check results, with the commit's time and snapshot in the notes about columns."""
        when = "" if self.published_at is None else moment(datetime.fromtimestamp(self.published_at, UTC))
        stamp = {"when": when, "snapshot": str(self.snapshot)}
        return [
            replace(finding, changes=tuple(PublishedNote(**vars(note), **stamp) for note in finding.changes))
            for finding in self.findings
        ]


def moment(at: datetime) -> str:
    """Return a time in ISO 8601, to the second."""
    return at.isoformat(timespec="seconds")


@dataclass(frozen=True)
class Waited:
    """The age of records when readers could see them, by their Kafka timestamps."""

    oldest: float
    newest: float

    def merged(self, other: "Waited") -> "Waited":
        """Return the ages of both sets of records together."""
        return Waited(max(self.oldest, other.oldest), min(self.newest, other.newest))


class CheckFailedError(AuditFailedError):
    """Checks of a commit failed, so the staged snapshot has been removed. `main` is unchanged."""

    what_to_do: ClassVar[str] = (
        "The message names the check. `dead_letters`: run `kafka-lake dead-letters TOPIC`, then fix the producer or "
        "schema, or raise `dead_letters: limit`. `schema_evolution`: see `SchemaRefusedError`. `rule_…`: see "
        "[rules](rules.md#when-a-rule-fails-a-run). `row_count`, `offset_continuity`: a transform must return one row "
        "per input row and keep the metadata column; without a transform, please report it."
    )

    def __init__(
        self, message: str, findings: Sequence[Finding], remedy: str = "", table: tuple[str, str] | None = None
    ) -> None:
        usual = "main is unchanged and the staged snapshot has been removed; fix the cause and run again."
        super().__init__(message, remedy or usual)
        self.findings, self.table = list(findings), table

    @property
    def is_about_counts(self) -> bool:
        """Return whether the number of records or rows is the only problem."""
        return {result.check for result in self.findings if result.refuses} == {"row_count"}
