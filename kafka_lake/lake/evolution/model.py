"""What decides about the evolution of a table and what comes of it: the policy, the records' schemas, the outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from pyiceberg.types import StructType

from kafka_lake.lake.schema import Change

EvolutionMode = Literal["evolve", "freeze", "ignore_new"]
OnIncompatible = Literal["dead_letter", "fail", "new_column"]


@dataclass(frozen=True)
class Policy:
    """What a topic's settings say about changes of its records.

    Args:
        evolution: ``evolve`` makes every safe change; ``freeze`` refuses them all; ``ignore_new`` leaves new columns
            out and makes the others.
        on_incompatible: What becomes of values whose type the column can't take.
        renames: Path of a column as it was → its new name, the last component alone.
    """

    evolution: EvolutionMode = "evolve"
    on_incompatible: OnIncompatible = "dead_letter"
    renames: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Incoming:
    """What records look like, as one schema says.

    Args:
        label: What messages call it: ``schema id 7``, ``the records``.
        columns: The fields with their names in the records, which may be anything; field ids don't count. Those of
            type ``unknown`` were always null and count as not there.
    """

    label: str
    columns: StructType


@dataclass(frozen=True)
class Conflict:
    """Values that a column can't take, and where they go.

    Args:
        column: Path of the column that has another type.
        got: The type that the records bring.
        action: Whether such records are dead letters, or the values go to another column.
        new_column: Path of that column, None for dead letters.
    """

    column: str
    have: str
    got: str
    label: str
    action: Literal["dead_letter", "new_column"]
    new_column: str | None = None


@dataclass(frozen=True)
class Evolution:
    """What records need of a table, by the policy.

    Args:
        columns: The value columns that decoding shall give, by column names; ids of new ones mean nothing.
        sources: Path of a column → name of the field that feeds it, at its level, where the two differ.
        changes: What is to be done to the table, all of it safe; none for a table that is yet to be made.
        ignored: What would have been added but for ``ignore_new``.
        refused: What forbids to go on: any change under ``freeze``, an incompatible one under ``fail``.
        conflicts: Values that don't fit, and where they go.
        also: Path of a column → further names of fields that feed it: those it had before a rename. Where a record
            has several, the column's source in `sources`, or else its own name, counts first.
    """

    columns: StructType
    sources: Mapping[str, str]
    changes: tuple[Change, ...] = ()
    ignored: tuple[Change, ...] = ()
    refused: tuple[Change, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    also: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))


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
