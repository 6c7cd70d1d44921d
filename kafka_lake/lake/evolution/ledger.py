"""What has been found so far: changes, those that are ignored or refused, and conflicts."""

from kafka_lake.lake.evolution.model import Conflict, Policy
from kafka_lake.lake.schema import Change


class Ledger:
    """What has been found so far.

    Args:
        policy: Says whether a change is made, ignored or refused.
        quiet: Within what is new as a whole, a change of its own is none.
    """

    def __init__(self, policy: Policy, quiet: bool) -> None:
        self.policy = policy
        self.quiet = quiet
        self.changes: list[Change] = []
        self.ignored: list[Change] = []
        self.refused: list[Change] = []
        self.conflicts: list[Conflict] = []
        self.sources: dict[str, str] = {}
        self.also: dict[str, tuple[str, ...]] = {}

    def permits(self, change: Change) -> bool:
        """Write a safe change down and return whether it is to be made."""
        if self.quiet:
            return True
        if self.policy.evolution == "freeze":
            self.refused.append(change)
            return False
        if self.policy.evolution == "ignore_new" and change.kind == "added":
            self.ignored.append(change)
            return False
        self.changes.append(change)
        return True

    def absorb(self, other: "Ledger") -> None:
        """Take over what another ledger holds, but for its changes."""
        self.refused += other.refused
        self.conflicts += other.conflicts
        self.sources |= other.sources
        self.also |= other.also
