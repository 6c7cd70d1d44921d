"""``kafka-lake reset``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from kafka_lake.cli import project
from kafka_lake.cli.arguments import OFFSETS, AsJson, Partitions, Topic, Yes, parse_partitions
from kafka_lake.cli.output import Output, add_columns, confirm
from kafka_lake.cli.progress import run_progress
from kafka_lake.common.offsets import Position
from kafka_lake.common.text import offset_span
from kafka_lake.runtime.plan import Plan

if TYPE_CHECKING:
    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.spec.topic_table import TopicTable


def reset(
    topic: Topic,
    to: Annotated[str, typer.Option("--to", help=f"New position: {OFFSETS}.")],
    partitions: Partitions = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set a table's position. Shows the effect and asks first; --json doesn't ask, and changes nothing without --yes.

    Rows at and after the new offsets are removed, since their records will be read again. Skipped offsets are recorded.
    For a table of several topics, sets only the named topic's position.
    """
    from kafka_lake.ingest import run

    chosen = parse_partitions(partitions)
    specs, output = project.topic_tables(topic), Output(as_json)
    with project.open_connections(with_spark=True, cluster=specs[0].cluster) as connections:
        due, documents = [], list[TableReset]()
        for spec in chain.from_iterable(topic_spec.tables for topic_spec in specs):
            plan = run.plan_reset(spec, connections, to, chosen)
            if plan is None:
                output.lines(f"{'.'.join(spec.identifier)}: the position is already there; nothing to do.")
                continue
            before = position_of(connections.catalog, spec)
            resets = resets_of(before, plan)
            output.show(reset_table(spec, resets))
            if others := [name for name in spec.topics if name != spec.topic]:
                output.lines(f"The positions of the table's other topics stay: {', '.join(others)}.")
            due.append((spec, agreed_targets(before, plan)))
            documents.append(TableReset(spec.topic, ".".join(spec.identifier), tuple(resets), done=yes))
        if as_json and not yes:
            due = []
        elif due and not yes:
            confirm("Set the position?")
        for spec, targets in due:
            with run_progress(topic) as observer:
                run.reset(spec, connections, str(uuid4()), targets, observer=observer)
            output.lines(f"{'.'.join(spec.identifier)}: continues at {targets}.")
    output.json([asdict(document) for document in documents])


@dataclass(frozen=True)
class PartitionReset:
    """The effect of a reset on one Kafka partition.

    Args:
        before: Next offset of the table before the reset; None if it has none.
        after: Next offset after the reset; None for a partition that Kafka no longer has.
        removed: Offsets whose rows are removed, as (start, end), the end exclusive.
        skipped: Offsets that are never read; their end is None if it is unknown.
        reason: Why they are skipped.
    """

    partition: int
    before: int | None
    after: int | None
    removed: tuple[int, int] | None
    skipped: tuple[int, int | None] | None
    reason: str = ""


@dataclass(frozen=True)
class TableReset:
    """The effect of a reset on a table, and whether the position has been set."""

    topic: str
    table: str
    partitions: tuple[PartitionReset, ...]
    done: bool


def resets_of(before: Position | None, plan: Plan) -> list[PartitionReset]:
    """Return the effect of a reset's plan, by partition."""
    known = before.offsets if before else {}
    removed = {r.partition: (r.start, r.end) for r in plan.deletes}
    losses = {loss.partition: loss for loss in plan.losses}
    return [
        PartitionReset(
            partition=p,
            before=known.get(p),
            after=plan.after.offsets.get(p),
            removed=removed.get(p),
            skipped=(losses[p].start, losses[p].end) if p in losses else None,
            reason=losses[p].reason if p in losses else "",
        )
        for p in sorted({*known, *plan.after.offsets})
    ]


def agreed_targets(before: Position | None, plan: Plan) -> str:
    """Return the targets of a reset as offsets by partition, so that the reset does what the user agreed to.

    Partitions whose position stays are left out, since a run may move them meanwhile. A partition whose log was
    replaced, or has another leader since, is named even if its offset stays.
    """
    same = before is not None and before.identity.same_as(plan.after.identity)
    known = before if before and same else Position(plan.after.identity, {})
    moved = [
        (p, o)
        for p, o in sorted(plan.after.offsets.items())
        if (known.offsets.get(p), known.epochs.get(p), known.last.get(p))
        != (o, plan.after.epochs.get(p), plan.after.last.get(p))
    ]
    return ",".join(f"{p}:{o}" for p, o in moved)


def position_of(catalog: LakeCatalog, spec: TopicTable) -> Position | None:
    """Return the position in the table's snapshots, if there is one."""
    from kafka_lake.catalog.positions import state_of

    table = catalog.table(spec.identifier)
    return state_of(spec, table).position if table else None


def reset_table(spec: TopicTable, resets: Sequence[PartitionReset]) -> Table:
    """Return the effect of a reset as a table, a row per Kafka partition."""
    table = Table(title=escape(f"{spec.topic} → {'.'.join(spec.identifier)}"), box=box.SIMPLE_HEAD, min_width=60)
    add_columns(table, "partition", "now at", "new position", justify="right", no_wrap=True)
    add_columns(table, "rows removed", "offsets skipped", justify="right")
    for reset in resets:
        before = "none" if reset.before is None else f"{reset.before:,}"
        after = "gone" if reset.after is None else f"{reset.after:,}"
        removed = offset_span(*reset.removed) if reset.removed else ""
        skipped = offset_span(*reset.skipped) if reset.skipped else ""
        if reset.reason not in ("", "skipped"):
            skipped += f"\n[yellow]{escape(reset.reason)}[/]"
        style = "" if reset.before != reset.after or removed or skipped else "dim"
        table.add_row(str(reset.partition), before, after, removed, skipped, style=style)
    return table
