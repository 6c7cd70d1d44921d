"""Row retention: Spark deletes a table's old rows on a staging branch, which is audited and published.

The commit carries the table's position: after the delete, other snapshots with it may expire.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import tenacity
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from kafka_lake.catalog.branches import StagingBranch, branch_name
from kafka_lake.catalog.lake_catalog import LakeCatalog, quoted
from kafka_lake.catalog.positions import (
    EXPIRE_ROWS,
    POSITION,
    TableState,
    ancestors,
    author_summary,
    head_of,
    read_state,
    removes_property,
)
from kafka_lake.catalog.tables import Totals, added, totals_of
from kafka_lake.common.offsets import Positions, positions_from_json, positions_to_json
from kafka_lake.errors import AuditFailedError, PublishRefusedError, TableError
from kafka_lake.spec.maintenance import Maintenance

EXPIRED = "kafka-lake.expired-rows"
"""A table property: the last expiry of rows. It outlives the snapshot."""
_DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1_MS = -62_135_596_800_000
# Rows are deleted once a tenth of their retention has passed since the last time, within these bounds.
_PAUSE_SHARE, _LONGEST_PAUSE_MS, _SHORTEST_PAUSE_MS = 0.1, _DAY_MS, 60_000
_ATTEMPTS = 6


@dataclass(frozen=True)
class OldRows:
    """The rows of a table that expire. Rows without a time never do.

    Args:
        path: Names of the column with their time, and of the field within it.
        before_ms: Rows with an earlier time expire; milliseconds since 1970.
        needs_position: Whether rows may expire only while a snapshot has the position: without one, the next run
            recovers it from the rows.
    """

    path: tuple[str, ...]
    before_ms: int
    needs_position: bool = True

    @property
    def sql(self) -> str:
        """Return the condition for Spark; it doesn't depend on the session's time zone."""
        moment = _EPOCH + timedelta(milliseconds=self.before_ms)
        text = moment.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
        return f"{'.'.join(map(quoted, self.path))} < TIMESTAMP '{text}Z'"


@dataclass(frozen=True)
class Expired:
    """The last expiry of rows.

    Args:
        before_ms: Rows with an earlier time were deleted; milliseconds since 1970.
        sequence: Sequence number of the snapshot; 0 in a table of format version 1.
        positions: The table's, which may no longer be recoverable from its rows.
    """

    before_ms: int
    sequence: int = 0
    positions: Positions = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the value of the property."""
        content: dict[str, Any] = {"before": self.before_ms, "sequence": self.sequence}
        if self.positions:
            content["positions"] = positions_to_json(self.positions.values())
        return json.dumps(content)


def last_expiry(table: Table) -> Expired | None:
    """Return a table's last expiry of rows; None if there was none, or if the property can't be read."""
    try:
        content = json.loads(table.properties.get(EXPIRED, "null"))
        if content is None:
            return None
        positions = positions_from_json(content["positions"]) if "positions" in content else {}
        return Expired(int(content["before"]), int(content["sequence"]), positions)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def proven_positions(table: Table) -> Positions:
    """Return the positions that a table had when rows expired; none if that commit was rolled back.

    They are needed if another program has expired all snapshots with a position.
    """
    last = last_expiry(table)
    if last is None or not last.sequence:
        return {}
    history = [snapshot.sequence_number or 0 for snapshot in ancestors(table, head_of(table))]
    follows = last.sequence in history or (bool(history) and min(history) > last.sequence)
    return last.positions if follows else {}


def cutoff_ms(policy: Maintenance, now_ms: int) -> int | None:
    """Return the moment before which rows expire, in milliseconds since 1970; None if no rows expire."""
    age = policy.row_retention_seconds
    return None if age is None else max(now_ms - int(age * 1000), _YEAR_1_MS)


def expiry_reason(table: Table, policy: Maintenance, now_ms: int) -> str:
    """Return the reason to expire rows of a table now; empty if the last time was a short while ago."""
    cutoff, last = cutoff_ms(policy, now_ms), last_expiry(table)
    if cutoff is None or head_of(table) is None:
        return ""
    pause = min(_LONGEST_PAUSE_MS, max(_SHORTEST_PAUSE_MS, (now_ms - cutoff) * _PAUSE_SHARE))
    if last is not None and cutoff - last.before_ms < pause:
        return ""
    return f"rows older than {policy.row_retention}"


def expire_rows(
    spark: Callable[[], Any], catalog: LakeCatalog, identifier: tuple[str, str], old_rows: OldRows, run_id: str
) -> int:
    """Delete a table's old rows and return their number.

    If ``main`` moves meanwhile, nothing is published, and the delete is made again, a few times.
    """
    # Without a pause: the time until a fast writer's next commit is all there is.
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        retry=tenacity.retry_if_exception_type(PublishRefusedError),
        reraise=True,
    )
    return retrying(_Expiry(spark(), catalog, identifier, old_rows, run_id=run_id).attempt)


@dataclass(frozen=True)
class _Expiry:
    spark: Any
    catalog: LakeCatalog
    identifier: tuple[str, str]
    old_rows: OldRows
    run_id: str

    def attempt(self) -> int:
        table = self.catalog.table(self.identifier)
        if table is None or (head := head_of(table)) is None:
            return 0
        state = read_state(table)
        rows = self._count(head, self.old_rows.sql)
        if not rows:
            self._record_nothing_old(table)
            return 0
        if self.old_rows.needs_position and not state.positions:
            raise TableError(
                f"Table {'.'.join(self.identifier)}: no snapshot has its position, which may have to be recovered from "
                "its rows, so no row may expire.",
                "Run its topic once, which recovers the position; rows expire after that.",
            )
        name = branch_name(self.run_id, head, "expire")
        branch = StagingBranch(self.spark, self.catalog, self.identifier, name, head=head, table=table)
        branch.create()
        try:
            self._stage_and_publish(branch, state, rows)
        finally:
            branch.discard()
        return rows

    def _stage_and_publish(self, branch: StagingBranch, state: TableState, rows: int) -> None:
        deleted = branch.delete(self.old_rows.sql)
        # SQL statements set no snapshot properties: an empty snapshot carries the position.
        positions = {POSITION: positions_to_json(state.positions.values())} if state.positions else {}
        branch.append((), {**author_summary(self.run_id, EXPIRE_ROWS), **removes_property(deleted), **positions})
        staged = branch.written(deleted)
        before, after = self._count(branch.head), self._count(staged.snapshot_id)
        if after != before - rows:
            raise AuditFailedError(
                f"Table {'.'.join(self.identifier)}: {rows} of its {before} rows expire, but {after} would be left.",
                "Nothing was published, and the table is unchanged. This is a bug in kafka_lake: please report it.",
            )
        expired = Expired(self.old_rows.before_ms, staged.sequence_number or 0, state.positions)

        def properties(table: Table) -> dict[str, str]:
            # Dead-letter tables have no totals.
            totals = added(table, Totals(expired=rows)) if totals_of(table) else {}
            return {EXPIRED: expired.to_json(), **totals}

        branch.publish(staged.snapshot_id, properties)

    def _count(self, snapshot: int, condition: str = "true") -> int:
        rows = f"{self.catalog.spark_name(self.identifier)} VERSION AS OF {snapshot} WHERE {condition}"
        return int(self.spark.sql(f"SELECT count(*) AS found FROM {rows}").collect()[0]["found"])

    def _record_nothing_old(self, table: Table) -> None:
        last = last_expiry(table)
        sequence, positions = (last.sequence, last.positions) if last else (0, {})
        expired = Expired(self.old_rows.before_ms, sequence, positions)
        # If another commit comes first, the next run looks again.
        with suppress(CommitFailedException), table.transaction() as transaction:
            transaction.set_properties({EXPIRED: expired.to_json()})
