"""What a table needs, by its health: pure, so that a sensor can ask it for a thousand tables."""

from dataclasses import dataclass

from pyiceberg.table import Table

from kafka_lake.lake.maintenance.expire import Limits, expirable
from kafka_lake.lake.maintenance.health import TableHealth, is_ours, table_health
from kafka_lake.lake.maintenance.settings import Maintenance

# Compacting for a few rows costs more than reading them does.
_FEW_COMMITS = 10
_DELETED_SHARE = 0.2
# Expiry reads the metadata of what goes: once for many.
_MANY_SNAPSHOTS = 100
_FAR_TOO_MANY_SNAPSHOTS = 5000
_FAR_TOO_MANY_COMMITS = 500
_SMALL_FILE_BYTES = 8 << 20
MOST_SNAPSHOTS = 2000
"""So many are kept at most, however young they are: thousands of them make commits slow."""


@dataclass(frozen=True)
class Needs:
    """What a table needs.

    Args:
        compaction: Why it shall be compacted; empty if it needn't.
        expiring: How many snapshots may expire.
        expiry: Why they shall; empty if they needn't yet.
        rows: Why rows shall expire; empty if they needn't yet.
    """

    health: TableHealth
    compaction: str = ""
    expiring: int = 0
    expiry: str = ""
    rows: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return what is to be done, and why; empty if nothing is."""
        return tuple(filter(None, (self.rows, self.compaction, self.expiry)))

    @property
    def overdue(self) -> str:
        """Return what a table should have had long ago; empty if nothing."""
        health = self.health
        if health.snapshots > _FAR_TOO_MANY_SNAPSHOTS:
            return f"{health.snapshots:,} snapshots make commits slow"
        if health.delete_files > _FAR_TOO_MANY_COMMITS:
            return f"{health.delete_files:,} delete files make reading slow"
        if health.commits > _FAR_TOO_MANY_COMMITS and health.average_size < _SMALL_FILE_BYTES:
            return f"{health.data_files:,} small files make reading slow; {health.commits:,} commits without compaction"
        return ""


def applies_to(policy: Maintenance, table: Table) -> bool:
    """Return whether a policy is for a table that nobody has named."""
    return is_ours(table) if policy.enabled is None else policy.enabled


def needs_of(table: Table, policy: Maintenance, now_ms: int) -> Needs:
    """Return what a table needs.

    Args:
        now_ms: The time, in milliseconds since 1970.

    Raises:
        ConfigurationError: If `expire_after` is no duration.
    """
    health = table_health(table)
    compaction = expiry = ""
    if policy.compact_every is not None:
        if health.commits >= policy.compact_every:
            compaction = f"{health.commits:,} commits since the last compaction"
        elif health.deleted_share >= _DELETED_SHARE and health.commits >= _FEW_COMMITS:
            compaction = f"{health.deleted_share:.0%} of the rows in its files are deleted"
    limits = limits_of(table, policy, now_ms)
    if limits is None:
        return Needs(health, compaction)
    found = expirable(table, limits).times
    # One that is a tenth older than it should be, or many at once.
    if len(found) >= _MANY_SNAPSHOTS or (found and found[0] < now_ms - 1.1 * (now_ms - limits.older_than_ms)):
        expiry = f"{len(found):,} old snapshots"
    return Needs(health, compaction, len(found), expiry)


def limits_of(table: Table, policy: Maintenance, now_ms: int) -> Limits | None:
    """Return which snapshots a table keeps; None if none of them may expire.

    What its owner has set as properties of the table counts where it keeps more than the policy. Nothing expires if
    the table forbids it, or if its main branch has rules of its own.

    Args:
        now_ms: The time, in milliseconds since 1970.

    Raises:
        ConfigurationError: If `expire_after` is no duration.
    """
    age, main = policy.expire_after_seconds, table.metadata.refs.get("main")
    if age is None or main is None or table.properties.get("gc.enabled", "true").lower() == "false":
        return None
    if main.max_snapshot_age_ms is not None or main.min_snapshots_to_keep is not None:
        return None
    own = [table.properties.get(f"history.expire.{name}") for name in ("max-snapshot-age-ms", "min-snapshots-to-keep")]
    own_age, own_keep = (int(each) if each is not None and each.isdigit() else 0 for each in own)
    return Limits(
        older_than_ms=now_ms - max(int(age * 1000), own_age),
        keep=max(policy.keep_snapshots, own_keep),
        most=None if any(own) else MOST_SNAPSHOTS,
    )
