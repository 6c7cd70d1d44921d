"""The policy of schema evolution, the records' schemas, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyiceberg.types import StructType

    from kafka_lake.schema.rules import Change

EvolutionMode = Literal["evolve", "freeze", "ignore_new"]
OnIncompatible = Literal["dead_letter", "fail", "new_column"]


@dataclass(frozen=True)
class Policy:
    """A topic's settings about schema changes.

    Args:
        evolution: ``evolve`` makes every safe change; ``freeze`` refuses them all; ``ignore_new`` makes all but new
            columns.
        renames: Old path of a column → its new name, without a path.
    """

    evolution: EvolutionMode = "evolve"
    on_incompatible: OnIncompatible = "dead_letter"
    renames: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Incoming:
    """A schema of records.

    Args:
        label: Its name in messages: ``schema id 7``, ``the records``.
        columns: The fields with their names in the records, which may be any text; field ids don't count. Fields of
            type ``unknown`` were always null and are ignored.
    """

    label: str
    columns: StructType


@dataclass(frozen=True)
class Conflict:
    """Values that a column can't take, and where they go.

    Args:
        column: Path of the column.
        label: The schema that has it.
        new_column: The column that gets them; None if their records become dead letters.
    """

    column: str
    have: str
    got: str
    label: str
    new_column: str | None = None


@dataclass(frozen=True)
class Evolution:
    """The outcome of `evolve`.

    Args:
        columns: The value columns that decoding must produce; ids of new ones mean nothing.
        sources: Path of a column → name of the field that feeds it, where the two differ.
        refused: Changes that stop the run: any under ``freeze``, incompatible ones under ``fail``.
        also: Path of a column → further names of fields that feed it, from before a rename. If a record has several,
            the column's source, or else its own name, comes first.
    """

    columns: StructType
    sources: Mapping[str, str]
    changes: tuple[Change, ...] = ()
    ignored: tuple[Change, ...] = ()
    refused: tuple[Change, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    also: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))


class Ledger:
    """Collects the outcome.

    Args:
        quiet: Whether the table or column is new as a whole, so that nothing within it counts as a change.
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
        """Record a safe change and return whether the policy allows it."""
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

    def absorb(self, other: Ledger) -> None:
        """Add the content of another ledger, except its changes."""
        self.refused += other.refused
        self.conflicts += other.conflicts
        self.sources |= other.sources
        self.also |= other.also
