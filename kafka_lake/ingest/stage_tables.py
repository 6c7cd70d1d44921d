"""Stage each table that a commit is for; the table of a route may refuse its records, and the others go on."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from pyspark.sql import DataFrame

from kafka_lake.ingest.audit import schema_refused
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.gate import AuditedSide, GateFailedError, audited, refused_if_main_moved
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.routes.refused import as_warnings, may_refuse, refused
from kafka_lake.ingest.routes.shared import Shares, Side
from kafka_lake.ingest.stage.arrow_tables import Prewritten
from kafka_lake.ingest.stage.schema_plan import SchemaRefusedError
from kafka_lake.ingest.stage.stage import stage
from kafka_lake.ingest.stage.staged import Staged
from kafka_lake.ingest.table_state import Tables

_FailedSoFar = Mapping[tuple[str, str], tuple[int, int]]


def stage_table(
    context: Context,
    found: Tables,
    todo: Plan,
    records: DataFrame,
    *,
    held: ExitStack,
    others: DataFrame | None = None,
    written: Prewritten | None = None,
) -> Staged:
    """Stage what a table gets.

    Args:
        context: Of the run, with the table's settings.
        found: The table as the plan saw it, and its dead-letter table.
        todo: The table's plan.
        records: Its records, lazy.
        held: Gets what lets Spark forget what it keeps for the commit.
        others: What names the records of other tables; None if it can have no rows of theirs.
        written: Its rows, if they have been written together with those of other tables.

    Raises:
        GateFailedError: If the schema of the records doesn't fit the table's, or isn't allowed. Nothing is staged.
    """
    assert found.table is not None, "it has been created"
    try:
        return stage(
            context,
            found.table,
            todo,
            records,
            held=held,
            dead_letters_before=found.dead_letters,
            others=others,
            written=written,
        )
    except SchemaRefusedError as error:
        raise GateFailedError(error.message, [schema_refused(error)], error.remedy, context.spec.identifier) from error


def stage_sides(shares: Shares, failed_so_far: _FailedSoFar, held: ExitStack) -> list[AuditedSide]:
    """Stage and audit what the tables of routes get. If one can't, nothing of any is left.

    Args:
        shares: The plan, shared out; the tables are there.
        failed_so_far: Dead letters and records of the run's commits before this one, by table.
        held: Gets what lets Spark forget what it keeps for the commit.

    Raises:
        GateFailedError: If a table refuses its records, and the others don't go on without it.
        PublishRefusedError: If others moved ``main`` of a table.
    """
    sides: list[AuditedSide] = []
    try:
        for side in shares.sides:
            sides.append(_staged_or_refused(side, failed_so_far, held))
    except BaseException:
        discard(sides)
        raise
    return sides


def discard(sides: Iterable[AuditedSide]) -> None:
    """Take away what was staged."""
    for each in sides:
        each.staged.discard()


def _staged_or_refused(side: Side, failed_so_far: _FailedSoFar, held: ExitStack) -> AuditedSide:
    try:
        return _staged(side, failed_so_far, held)
    except GateFailedError as error:
        if not may_refuse(side):
            raise
        side.context.observer.warn(f"{error.message} Its records of this commit become dead letters.")
        instead = _staged(refused(side, error.message), failed_so_far, held)
        return replace(instead, findings=[*instead.findings, *as_warnings(error.findings)])


def _staged(side: Side, failed_so_far: _FailedSoFar, held: ExitStack) -> AuditedSide:
    context = side.context
    assert side.found.table is not None, "it has been created"
    with refused_if_main_moved(context, side.found.table):
        staged = stage_table(
            context, side.found, side.plan, side.records, held=held, others=side.others, written=side.written
        )
        context.effort.done("stage")
        try:
            findings, by_partition = audited(context, side.plan, staged, failed_so_far)
        except BaseException:
            staged.discard()
            raise
    return AuditedSide(side, staged, findings, by_partition)
