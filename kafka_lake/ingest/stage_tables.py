"""Stage each table that a commit is for; the table of a route may refuse its records, and the others go on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from kafka_lake.ingest.audit import schema_refused
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.finding import Finding
from kafka_lake.ingest.gate import AuditedSide, GateFailedError, audited, refused_if_main_moved
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.routes.refused import as_warnings, may_refuse, refused
from kafka_lake.ingest.routes.sides import Shares, Side
from kafka_lake.ingest.stage.schema_plan import SchemaRefusedError
from kafka_lake.ingest.stage.stage import stage
from kafka_lake.ingest.stage.staged import Staged
from kafka_lake.ingest.table_state import Tables

_FailedSoFar = Mapping[tuple[str, str], tuple[int, int]]


def stage_table(
    context: Context, found: Tables, todo: Plan, records: DataFrame, others: DataFrame | None = None
) -> Staged:
    """Stage what a table gets.

    Args:
        context: Of the run, with the table's settings.
        found: The table as the plan saw it, and its dead-letter table.
        todo: The table's plan.
        records: Its records, lazy.
        others: What names the records of other tables; None if it can have no rows of theirs.

    Raises:
        GateFailedError: If the schema of the records doesn't fit the table's, or isn't allowed. Nothing is staged.
    """
    assert found.table is not None, "it has been created"
    try:
        return stage(context, found.table, todo, records, dead_letters_before=found.dead_letters, others=others)
    except SchemaRefusedError as error:
        raise GateFailedError(error.message, [schema_refused(error)], error.remedy, context.spec.identifier) from error


@dataclass(frozen=True)
class StagedSide:
    """What a commit has for the table of a route.

    Args:
        side: The table's share of the plan.
        staged: What became of it.
        refusal: Why the table takes none of its records, which are dead letters then; empty if it takes them.
    """

    side: Side
    staged: Staged
    refusal: tuple[Finding, ...] = ()


def stage_sides(shares: Shares) -> list[StagedSide]:
    """Stage what the tables of routes get. If one can't, nothing of any is left.

    Args:
        shares: The plan, shared out; the tables are there.

    Raises:
        GateFailedError: If the schema of a table refuses its records, and the others don't go on without it.
        PublishRefusedError: If others moved ``main`` of a table.
    """
    sides: list[StagedSide] = []
    try:
        for side in shares.sides:
            try:
                sides.append(StagedSide(side, _staged(side)))
            except GateFailedError as error:
                sides.append(_refused(side, error))
    except BaseException:
        discard(sides)
        raise
    return sides


def audit_sides(sides: Sequence[StagedSide], own: Staged, failed_so_far: _FailedSoFar) -> list[AuditedSide]:
    """Audit what the tables of routes get. If one can't have it, nothing of any is left.

    Args:
        sides: What is staged for them.
        own: What is staged for the topic's own table.
        failed_so_far: Dead letters and records of the run's commits before this one, by table.

    Raises:
        GateFailedError: If a table refuses its records, and the others don't go on without it.
        PublishRefusedError: If others moved ``main`` of a table that is staged once more.
    """
    left, done = list(sides), list[AuditedSide]()
    try:
        for number, each in enumerate(sides):
            try:
                done.append(_audited(each, failed_so_far))
            except GateFailedError as error:
                each.staged.discard()
                left[number] = _refused(each.side, error)
                done.append(_audited(left[number], failed_so_far))
    except BaseException:
        discard(left)
        own.discard()
        raise
    return done


def discard(sides: Iterable[StagedSide]) -> None:
    """Take away what was staged."""
    for each in sides:
        each.staged.discard()


def _refused(side: Side, error: GateFailedError) -> StagedSide:
    """Stage the records of a table that refuses them as its dead letters, if the others go on without it."""
    is_refused = side.plan.share is not None and side.plan.share.refused
    if is_refused or not may_refuse(side):
        raise error
    side.context.observer.warn(f"{error.message} Its records of this commit become dead letters.")
    instead = refused(side, error.message)
    return StagedSide(instead, _staged(instead), tuple(as_warnings(error.findings)))


def _staged(side: Side) -> Staged:
    context = side.context
    assert side.found.table is not None, "it has been created"
    with refused_if_main_moved(context, side.found.table):
        staged = stage_table(context, side.found, side.plan, side.records, others=side.others)
    context.effort.done("stage")
    return staged


def _audited(each: StagedSide, failed_so_far: _FailedSoFar) -> AuditedSide:
    findings, by_partition = audited(each.side.context, each.side.plan, each.staged, failed_so_far)
    return AuditedSide(each.side, each.staged, [*findings, *each.refusal], by_partition)
