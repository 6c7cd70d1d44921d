"""What the audit of a keyed table asks: did the merge write as many rows as the batch's changes can account for?"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_lake.ingest.keyed.truncates import Emptied
from kafka_lake.ingest.rules.asked import Verdict

_MERGED = "spark.merge-into.num-target-rows-"


@dataclass(frozen=True)
class Merged:
    """What a merge did, as Spark and the writers of its files have counted it.

    Args:
        added: Rows of the data files that the snapshot adds, without those that were only copied.
        gone: Rows that the snapshot's delete files take away; None where data files were rewritten instead.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    added: int = 0
    gone: int | None = 0

    @classmethod
    def of(cls, summary: Mapping[str, str]) -> "Merged":
        """Return what the summary of a merge's snapshot says."""
        found = {name: int(summary.get(f"{_MERGED}{name}", 0)) for name in ("inserted", "updated", "deleted", "copied")}
        added = int(summary.get("added-records", 0)) - found.pop("copied")
        # A deletion vector has the rows that the one before it had too.
        deletes = [int(summary.get(f"{each}-position-deletes", 0)) for each in ("added", "removed")]
        return cls(**found, added=added, gone=None if "deleted-data-files" in summary else deletes[0] - deletes[1])

    def problems(self, keys: int, brings: int) -> tuple[str, ...]:
        """Return what is wrong.

        Args:
            keys: How many keys were merged.
            brings: How many of them have a change that brings a row.
        """
        written, gone = self.inserted + self.updated, self.updated + self.deleted
        found = []
        if written > brings:
            found.append(
                f"{written} rows were inserted or updated, but only {brings} keys have a change that brings one"
            )
        if written + self.deleted > keys:
            found.append(f"{written + self.deleted} rows were changed by the changes of {keys} keys: a key has several")
        if self.added != written:
            found.append(
                f"{self.inserted} rows were inserted and {self.updated} updated, but the new files have {self.added}"
            )
        if self.gone not in (None, gone):
            found.append(
                f"{self.updated} rows were updated and {self.deleted} deleted, but the delete files have {self.gone}"
            )
        return tuple(found)


@dataclass(frozen=True)
class NotSent:
    """A change that lacks values which its source didn't send, and nothing else has.

    Args:
        partition: Kafka partition of the record.
    """

    partition: int
    offset: int
    columns: str


@dataclass(frozen=True)
class KeyedBatch:
    """What became of a batch of changes.

    Args:
        changes: How many records were changes that could be applied.
        keys: How many keys they were of.
        late: Keys whose change was older than a delete that is remembered.
        brings: Keys that were merged and have a change that brings a row.
        not_sent: The changes that couldn't be applied, in the order of partition and offset.
        emptied: The truncate before which nothing counts; None if there is none.
        verdict: What the topic's rules found of the changes that bring rows.
    """

    changes: int
    keys: int
    deletes: int
    late: int
    brings: int = 0
    merged: Merged = field(default_factory=Merged)
    not_sent: tuple[NotSent, ...] = ()
    emptied: Emptied | None = None
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def ignored(self) -> int:
        """Return how many keys' changes changed nothing: older than the row, or a delete of no row."""
        return self.keys - self.merged.inserted - self.merged.updated - self.merged.deleted

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong."""
        emptied = self.emptied.problems if self.emptied else ()
        return (*self.merged.problems(self.keys - self.late, self.brings), *emptied)

    @property
    def facts(self) -> dict[str, int]:
        """Return the figures by the names that a check's page has for them."""
        return {
            "keys": self.keys,
            "rows_inserted": self.merged.inserted,
            "rows_updated": self.merged.updated,
            "rows_deleted": self.merged.deleted,
            "keys_ignored": self.ignored,
            "keys_later_deleted": self.late,
            **(self.emptied.facts if self.emptied else {}),
        }
