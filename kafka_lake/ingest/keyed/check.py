"""What the audit of a keyed table asks: is each key of the batch as its newest change left it?"""

from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import DELETE
from kafka_lake.ingest.decode.rows import DELETED
from kafka_lake.ingest.keyed.bounds import Bounds
from kafka_lake.ingest.keyed.keys import DOES, KEPT, Keys
from kafka_lake.ingest.keyed.truncates import Emptied
from kafka_lake.ingest.rules.asked import Verdict

_EACH = ("missing", "older", "undeleted", "brought", "outside")


@dataclass(frozen=True)
class KeyCheck:
    """What was found of a batch's keys in the staged table.

    Args:
        doubled: Keys with several rows.
        missing: Keys whose change brings a row, and that have none.
        older: Keys whose row is older than their change.
        undeleted: Keys whose delete is newer than the row that they still have.
        brought: Keys whose row is what the batch's change made.
        outside: Keys that are outside of the bounds by which files of the table were skipped.
    """

    doubled: int
    missing: int
    older: int
    undeleted: int
    brought: int
    outside: int = 0

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong."""
        said = {
            "have several rows": self.doubled,
            "have no row though a change brings one": self.missing,
            "have a row that is older than their change": self.older,
            "have a row though a newer change deletes it": self.undeleted,
            "are outside of the bounds by which files were skipped": self.outside,
        }
        return tuple(f"{count} keys {what}" for what, count in said.items() if count)


NOTHING_FOUND = KeyCheck(doubled=0, missing=0, older=0, undeleted=0, brought=0)


@dataclass(frozen=True)
class NotSent:
    """A change that lacks values which its source didn't send, and nothing else has.

    Args:
        partition: Kafka partition of the record.
        offset: Its offset.
        columns: Names of the columns.
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
        deletes: Deletes among the changes.
        late: Keys whose change was older than a delete that is remembered.
        inserted: Rows that came.
        updated: Rows that were changed.
        deleted: Rows that went.
        check: What the audit found of the batch's keys in the staged table.
        not_sent: The changes that couldn't be applied, in the order of partition and offset.
        emptied: The truncate before which nothing counts; None if there is none.
        verdict: What the topic's rules found of the changes that bring rows.
    """

    changes: int
    keys: int
    deletes: int
    late: int
    inserted: int
    updated: int
    deleted: int
    check: KeyCheck
    not_sent: tuple[NotSent, ...] = ()
    emptied: Emptied | None = None
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def ignored(self) -> int:
        """Return how many keys' changes changed nothing: older than the row, or a delete of no row."""
        return self.keys - self.inserted - self.updated - self.deleted

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong."""
        found = [*self.check.problems, *(self.emptied.problems if self.emptied else ())]
        if self.check.brought != self.inserted + self.updated:
            found.append(
                f"{self.inserted} rows were inserted and {self.updated} updated, but {self.check.brought} are as the "
                "batch left them"
            )
        return tuple(found)

    @property
    def facts(self) -> dict[str, int]:
        """Return the figures by the names that a check's page has for them."""
        return {
            "keys": self.keys,
            "rows_inserted": self.inserted,
            "rows_updated": self.updated,
            "rows_deleted": self.deleted,
            "keys_ignored": self.ignored,
            "keys_later_deleted": self.late,
            **(self.emptied.facts if self.emptied else {}),
        }


def check_keys(staged: DataFrame, changes: DataFrame, keys: Keys, within: Bounds) -> KeyCheck:
    """Look for each change's key in the table as it is staged.

    Args:
        staged: The table's rows.
        changes: What was merged, one for each key.
        keys: Tell rows apart, and changes older from newer.
        within: Between which values the changes' keys lie.
    """
    is_soft = keys.is_soft
    condition = " AND ".join([keys.same("t", "s"), *within.hold_for("t")])
    numbered = changes.withColumn("__kafka_lake_number", F.monotonically_increasing_id()).alias("s")
    joined = numbered.join(staged.withColumn("__kafka_lake_there", F.lit(True)).alias("t"), F.expr(condition), "left")
    there, own = "t.__kafka_lake_there", f"{keys.order('s')} = {keys.order('t')}"
    newer = keys.is_newer("s", "t")
    goes = f"s.{DOES} = '{DELETE}'"
    # A row that is only marked stays, if there was one or the batch itself brought it.
    stays = f"s.{DOES} <> '{DELETE}'" + (f" OR size(s.{KEPT}) = 0" if is_soft else "")
    facts = joined.select(
        F.col("s.__kafka_lake_number").alias("number"),
        F.expr(f"{there} IS NOT NULL").alias("there"),
        F.expr(f"({stays}) AND {there} IS NULL").alias("missing"),
        F.expr(f"{there} IS NOT NULL AND {newer} AND NOT ({own})" + ("" if is_soft else f" AND NOT ({goes})")).alias(
            "older"
        ),
        F.expr(f"{there} IS NOT NULL AND {goes} AND {newer}" + (f" AND NOT t.{DELETED}" if is_soft else "")).alias(
            "undeleted"
        ),
        F.expr(f"{there} IS NOT NULL AND {own}").alias("brought"),
        F.expr(f"NOT ({' AND '.join(['true', *within.hold_for('s')])})").alias("outside"),
    )
    each = facts.groupBy("number").agg(
        F.count_if("there").alias("rows"),
        *[F.count_if(name).alias(name) for name in _EACH],
    )
    found = each.agg(
        F.count_if(F.col("rows") > 1).alias("doubled"),
        *[F.count_if(F.col(name) > 0).alias(name) for name in _EACH],
    ).collect()[0]
    return KeyCheck(**found.asDict())
