"""Publish: a staged commit is audited, then made visible by a compare-and-set on the planned head."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from kafka_lake.catalog.branches import nothing
from kafka_lake.catalog.positions import TableState, head_of
from kafka_lake.catalog.totals import Totals, added
from kafka_lake.errors import AuditFailedError, KafkaLakeError, PublishRefusedError
from kafka_lake.ingest.audit import audit
from kafka_lake.ingest.table_state import Tables, dead_letters_head
from kafka_lake.runtime.commit import RULES_REMEDY, Finding
from kafka_lake.runtime.context import Context, short_pauses
from kafka_lake.runtime.plan import Plan
from kafka_lake.writers.rebase import can_follow, follow
from kafka_lake.writers.staged import Staged

_STEPS = {
    "primary": "primary published",
    "dead_letters": "dead letters published",
    "deletes": "deletes published",
}

_NOTHING: Mapping[str, str] = MappingProxyType({})


def publish(context: Context, staged: Staged, done: Totals, also: Mapping[str, str] = _NOTHING) -> float:
    """Make an audited commit visible."""
    visible_at = 0.0
    for table in staged.tables():
        is_primary = table is staged.primary
        table.branch.publish(
            table.snapshot, (lambda before: {**added(before, done), **also}) if is_primary else nothing
        )
        visible_at = time.time()
        context.observer.step_done(_STEPS[next(name for name in _STEPS if table is getattr(staged, name))])
    return visible_at


_FOLLOWED = 30


class GateFailedError(AuditFailedError):
    """A check of the audit refused a commit. `main` is as it was, and the staged snapshot has been removed.

    Args:
        message: Which checks failed, and why.
        findings: The result of each check.
        remedy: What to do next, if there is something better to say than usual.
        table: Namespace and name of the table that they are about.
    """

    what_to_do: ClassVar[str] = (
        "The message names the check. `dead_letters`: look at them with `kafka-lake dead-letters TOPIC`, then fix "
        "the producer or the schema, or raise `dead_letters: limit`. `schema_evolution`: see `SchemaRefusedError`. "
        "`row_count` and `offset_continuity`: a transform must give one row for one row and leave the metadata "
        "column alone; without a transform this is a bug, please report it. `rule_…`: rows break a rule of the "
        "topic's, see [rules](rules.md#when-a-rule-fails-a-run)."
    )

    def __init__(
        self, message: str, findings: list[Finding], remedy: str = "", table: tuple[str, str] | None = None
    ) -> None:
        said = remedy or "main is as it was and the staged snapshot is gone; mend the cause and run again."
        super().__init__(message, said)
        self.findings, self.table = findings, table

    @property
    def is_about_counts(self) -> bool:
        """Return whether all that is wrong is how many records were read, and how many were staged."""
        return {each.check for each in self.findings if each.refuses} == {"row_count"}


class _OvertakenError(PublishRefusedError):
    """Others moved ``main`` after the commit was staged, which is still there."""


@dataclass(frozen=True)
class Published:
    """A commit that is visible.

    Args:
        at: When it became visible, in seconds since the epoch.
    """

    staged: Staged
    findings: list[Finding]
    by_partition: dict[int, int]
    at: float


def audit_and_publish(
    context: Context,
    found: Tables,
    todo: Plan,
    staged: Staged,
    *,
    failed_so_far: tuple[int, int],
    also: Mapping[str, str] = _NOTHING,
) -> Published:
    """Publish what passes its audit."""
    retrying = Retrying(
        stop=stop_after_attempt(_FOLLOWED),
        wait=short_pauses(context.connections.retry),
        retry=retry_if_exception_type(_OvertakenError),
        sleep=context.sleep,
        reraise=True,
    )
    try:
        for each in retrying:
            with each:
                if each.retry_state.attempt_number > 1:
                    staged = _followed(context, todo, staged)
                findings, by_partition = audited(context, todo, staged, failed_so_far)
                visible_at = _published(context, found, todo, staged, also=also)
    except BaseException:
        staged.discard()
        raise
    return Published(staged, findings, by_partition, at=visible_at)


@contextmanager
def refused_if_main_moved(context: Context, state: TableState) -> Iterator[None]:
    """Let an error be a refused publication where others have moved ``main`` meanwhile.

    Who publishes takes the branches of those away who no longer can: that shows as any error.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, KafkaLakeError) and not isinstance(error, GateFailedError):
            raise
        table = context.connections.catalog.table(context.spec.identifier)
        if (head := head_of(table) if table else None) == state.head:
            raise
        raise PublishRefusedError(
            f"Table {context.table_name}: main moved from snapshot {state.head} to {head} meanwhile."
        ) from error


def audited(
    context: Context, todo: Plan, staged: Staged, failed_so_far: tuple[int, int]
) -> tuple[list[Finding], dict[int, int]]:
    """Return what an audit finds of a table that may be published, and its rows by Kafka partition."""
    identifier = context.spec.identifier
    findings, by_partition = audit(context, todo, staged, failed_so_far)
    if failed := [f for f in findings if f.refuses]:
        reasons = "; ".join(f"{f.check}: {p}" for f in failed for p in f.problems)
        remedy = RULES_REMEDY if all(f.is_rule for f in failed) else ""
        said = f"Topic {context.spec.topic}, table {context.table_name}: {reasons}."
        raise GateFailedError(said, findings, remedy, identifier)
    context.observer.step_done("audited")
    context.effort.done("audit")
    return findings, by_partition


def _published(
    context: Context, found: Tables, todo: Plan, staged: Staged, also: Mapping[str, str] | None = None
) -> float:
    if staged.dead_letters is None and dead_letters_head(context) != (
        found.dead_letters.head if found.dead_letters else None
    ):
        # Letters that have come meanwhile may be of records that are rows with this commit.
        raise PublishRefusedError(f"Table {context.table_name}: its dead-letter table has changed meanwhile.")
    try:
        visible_at = publish(context, staged, _totals(context, todo, staged), also or {})
    except PublishRefusedError as error:
        if not can_follow(todo, staged):
            raise
        raise _OvertakenError(error.message) from error
    context.effort.done("publish")
    context.effort.clear()
    return visible_at


def _totals(context: Context, todo: Plan, staged: Staged) -> Totals:
    """Return what a commit does, in numbers."""
    effort = Totals(
        commits=1,
        refused=context.effort.refused,
        rewrites=int(todo.kind != "append"),
        seconds=context.effort.seconds,
    )
    if todo.kind == "dead_letter_replay":
        return replace(effort, moved=staged.primary.rows if staged.keyed is None else staged.keyed.changes)
    # The changes of a keyed table are its rows and its deletes, of which those without a value are tombstones.
    rows = staged.primary.rows if staged.keyed is None else staged.keyed.changes - staged.tombstones
    return replace(
        effort,
        records=staged.records,
        rows=rows,
        dead_letters=staged.failed,
        tombstones=staged.tombstones,
        bytes_read=staged.bytes_read,
    )


def _followed(context: Context, todo: Plan, staged: Staged) -> Staged:
    followed = follow(context, todo, staged)
    if followed is None:
        raise PublishRefusedError(
            f"Table {context.table_name}: main moved from snapshot {staged.primary.branch.head} "
            "meanwhile, and what was written doesn't go with what is there now."
        )
    context.observer.step_done("followed")
    context.effort.refused += 1
    return followed
