"""What an audit finds, as plain data: one finding for each check, of a staged commit or of the published table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka_lake.ingest.rule import RULE_CHECK

CHECKS = ("row_count", "offset_continuity", "schema_evolution", "dead_letters", "data_loss")
# The others tell what happened, and don't keep a commit from being published.
GATES = frozenset(CHECKS) - {"data_loss"}
NOT_KEPT = "not kept"
"""What a note says of a column that lacks something of the records' values."""


@dataclass(frozen=True)
class ColumnNote:
    """One line about a column: what was done to it, or was not, and why."""

    column: str
    what: str
    before: str
    after: str
    why: str = ""


@dataclass(frozen=True)
class Finding:
    """The outcome of one gate.

    Args:
        check: Its name: one of `CHECKS`, or a rule's.
        problems: What is wrong, where, and how much; empty if all is well.
        facts: Figures that the check's page shows.
        changes: What happened to columns, as a table: column, what, before, after, why.
        warns: Whether a problem is to be seen only, and the commit is published.
    """

    check: str
    problems: tuple[str, ...]
    facts: Mapping[str, Any]
    changes: tuple[ColumnNote, ...] = ()
    warns: bool = False

    @property
    def is_rule(self) -> bool:
        """Return whether it is about one of the topic's rules."""
        return self.check.startswith(RULE_CHECK)

    @property
    def passed(self) -> bool:
        """Return whether there is no problem."""
        return not self.problems

    @property
    def refuses(self) -> bool:
        """Return whether a commit must not be published because of this."""
        return not self.passed and not self.warns and (self.check in GATES or self.is_rule)
