"""The command line's tables and progress bars. What they show is found elsewhere."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from rich import box, filesize
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kafka_lake.cli.console import FullWidth
from kafka_lake.cli.doctor import Diagnosis
from kafka_lake.cli.repair import DeadLetterOffsets, DeadLetters, PartitionReset
from kafka_lake.cli.status import TopicStatus
from kafka_lake.common.environment import LOG
from kafka_lake.common.text import counted, printable
from kafka_lake.ingest.jobs.dead_letter_replay import Replayed
from kafka_lake.ingest.report import Progress as RunProgress
from kafka_lake.ingest.report import RunReport
from kafka_lake.maintenance.clean import Cleaned
from kafka_lake.maintenance.maintain import Due, HasTables, Preview
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Observer
from kafka_lake.runtime.plan import Plan
from kafka_lake.spec.topic_table import TopicTable, full_topic

_PARTITIONS = 6
_FILES = 10


def overview(found: Sequence[TopicStatus], now: datetime) -> Iterator[RenderableType]:
    """Give the status of tables as one table with a row for each of them, and below it why topics can't be asked."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
    for heading in ("topic", "table"):
        shown.add_column(heading, overflow="fold")
    for heading in ("rows", "dead", "lag", "last commit"):
        shown.add_column(heading, justify="right")
    for each in found:
        shown.add_row(
            escape(full_topic(each.cluster, each.topic)),
            escape(each.table),
            f"{each.rows:,}",
            f"{each.dead_letters:,}",
            "[red]?[/]" if each.lag is None else f"{each.lag:,}",
            _ago(now - datetime.fromisoformat(each.committed_at)) if each.committed_at else "no table",
        )
    yield shown
    for error in dict.fromkeys(each.error for each in found if each.error):
        yield Text(error, "red")


def _ago(age: timedelta) -> str:
    seconds = max(int(age.total_seconds()), 0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:,} {unit} ago"
    return f"{seconds} s ago"


def status_table(status: TopicStatus) -> Table:
    """Return one topic's status as a table, a row per Kafka partition."""
    if status.error:
        caption = f"[red]{escape(status.error)}[/]"
    elif status.snapshot_id is None:
        caption = "no table yet"
    else:
        caption = f"snapshot {status.snapshot_id}, {status.committed_at}"
    caption += f"\n{counted(status.rows, 'row')}, {counted(status.dead_letters, 'dead letter')}"
    if status.lag is not None:
        caption += f", lag {status.lag:,}"
    title = escape(f"{full_topic(status.cluster, status.topic)} → {status.table}")
    table = Table("partition", title=title, caption=caption, min_width=60)
    for heading in ("position", "end", "lag"):
        table.add_column(heading, justify="right")
    for each in status.partitions:
        position = "none" if each.position is None else f"{each.position:,}"
        table.add_row(str(each.partition), position, f"{each.end:,}", f"{each.lag:,}")
    return table


def health_table(spec: HasTables, tables: Sequence[Due]) -> Table:
    """Return how the tables of a topic, or a derived table, fare as a table, a row each."""
    shown = Table(title=spec.full_topic if isinstance(spec, TopicTable) else ".".join(spec.identifier), min_width=60)
    for heading in ("table", "rows", "deleted", "data files", "average", "delete files", "snapshots", "needs"):
        shown.add_column(heading, justify="left" if heading in ("table", "needs") else "right")
    for each in tables:
        health = each.needs.health
        needs = "; ".join(each.needs.reasons) or "nothing"
        shown.add_row(
            each.name,
            f"{health.rows:,}",
            f"{health.deleted_rows:,}",
            f"{health.data_files:,}",
            filesize.decimal(health.average_size),
            f"{health.delete_files:,}",
            f"{health.snapshots:,}",
            f"left alone: {needs}" if each.left_alone else needs,
        )
    return shown


def file_lines(tables: Sequence[Due]) -> Iterator[str]:
    """Give, as lines, who keeps files of each table's older snapshots."""
    for each in tables:
        health = each.needs.health
        if text := health.held_by:
            yield f"{each.name}: old files are held by {printable(text)}"


def preview_lines(found: Preview) -> Iterator[str]:
    """Give, as lines, the rows of a table that maintenance would delete."""
    if found.rows is not None:
        whole = counted(found.rows.dropped, "whole file")
        files = f"{whole}, and {found.rows.partly:,} that would be written again without them"
        rows = counted(found.rows.rows, "row")
        yield f"{found.due.name}: {rows} would expire: {files if found.rows.rows else 'none is old'}"


def diagnosis_table(diagnoses: Sequence[Diagnosis]) -> Table:
    """Return the doctor's findings as a table, a row per part."""
    table = Table("", "part", "finding")
    for each in diagnoses:
        mark = "[green]✓[/]" if each.healthy else "[red]✗[/]"
        finding = escape(each.finding) if each.healthy else f"{escape(each.finding)}\n[bold]{escape(each.remedy)}[/]"
        table.add_row(mark, each.part, finding)
    return table


@contextmanager
def followed(topic: str, console: Console, backlog: int | None = None) -> Iterator[Observer]:
    """Show a progress bar as long as the block runs, and above it what the run warns of; nothing if that is logged."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rest, no_bar = TextColumn("{task.fields[rest]}"), bool(LOG.value())
    with Progress(*columns, rest, console=console, transient=True, disable=no_bar) as progress:
        task = progress.add_task(escape(topic), total=backlog, rest="")
        so_far = [RunProgress(time.monotonic())]

        def on_commit(_commit: Commit, plan: Plan) -> None:
            done = int(progress.tasks[0].completed) + plan.records_at_most
            so_far.append(so_far.pop().plus(plan, time.monotonic()))
            progress.update(task, completed=done, total=done + plan.remaining, rest=so_far[0].time_left())

        def step_done(step: str) -> None:
            progress.update(task, description=escape(f"{topic}: {step}"))

        def warn(line: str) -> None:
            if not no_bar:
                progress.console.print(escape(line), highlight=False, soft_wrap=True)

        yield Observer(step_done, on_commit, warn)


def run_line(report: RunReport) -> str:
    """Return what a run did in one line."""
    rows, failed = counted(report.total("rows"), "row"), counted(report.total("dead_letters"), "dead letter")
    return f"{report.table}: {rows} in {counted(len(report.commits), 'commit')}, {failed}, {report.seconds:.1f} s"


def dead_letter_tables(found: DeadLetters) -> list[RenderableType]:
    """Return a topic's dead letters as tables: the classes, and samples of them if there are any."""
    if not found.classes:
        return [f"{escape(found.table)}: no dead letters"]
    classes = FullWidth("class", title=_title(found.topic, found.table), box=box.SIMPLE_HEAD)
    classes.add_column("count", justify="right")
    classes.add_column("offsets", no_wrap=True)
    classes.add_column("newest (UTC)", no_wrap=True)
    for each in found.classes:
        name = f"[bold]{escape(each.name)}[/]\n[dim]{escape(each.meaning)}[/]"
        classes.add_row(name, f"{each.count:,}", _offsets(each.offsets), _moment(each.failed_at))
    if not any(each.samples for each in found.classes):
        return [classes]
    samples = FullWidth("class", box=box.SIMPLE_HEAD)
    samples.add_column("place", justify="right", no_wrap=True)
    samples.add_column("time (UTC)", no_wrap=True)
    samples.add_column("reason", ratio=3)
    samples.add_column("value", ratio=2, no_wrap=True, overflow="ellipsis")
    for each in found.classes:
        for number, sample in enumerate(each.samples):
            samples.add_row(
                "" if number else f"[bold]{escape(each.name)}[/]",
                f"{sample.partition}:{sample.offset}",
                _moment(sample.timestamp),
                escape(printable(sample.reason)),
                escape(printable(sample.value)),
                end_section=number == len(each.samples) - 1,
            )
    return [classes, samples]


def replayed_tables(spec: TopicTable, done: Replayed) -> list[RenderableType]:
    """Return what became of dead letters in a line, and those that remain as a table, a row per class."""
    moved, name = counted(done.moved, "dead letter"), ".".join(spec.identifier)
    line = f"{escape(name)}: {moved} moved into the table, {done.remaining:,} of those examined remain"
    if not done.remaining:
        return [line]
    table = FullWidth("class", box=box.SIMPLE_HEAD)
    table.add_column("count", justify="right")
    table.add_column("first", justify="right", no_wrap=True)
    table.add_column("its reason", ratio=1)
    for each in done.report.classes():
        place = f"{each.partition}:{each.offset}"
        table.add_row(f"[bold]{escape(each.name)}[/]", f"{each.count:,}", place, escape(printable(each.message)))
    return [line, table]


def reset_table(spec: TopicTable, resets: Sequence[PartitionReset]) -> Table:
    """Return what a reset will do as a table, a row per Kafka partition."""
    table = Table(title=_title(spec.topic, ".".join(spec.identifier)), box=box.SIMPLE_HEAD, min_width=60)
    for heading in ("partition", "position now", "new position", "rows removed", "offsets skipped"):
        table.add_column(heading, justify="right")
    for each in resets:
        removed = _extent(*each.removed) if each.removed else ""
        skipped = _extent(*each.skipped) if each.skipped else ""
        if each.reason not in ("", "skipped"):
            skipped += f"\n[yellow]{escape(each.reason)}[/]"
        after = "gone" if each.after is None else f"{each.after:,}"
        style = "" if each.before != each.after or removed or skipped else "dim"
        table.add_row(str(each.partition), _number(each.before), after, removed, skipped, style=style)
    return table


def cleaned_lines(spec: TopicTable, cleaned: Cleaned, removed: bool) -> list[str]:
    """Return what was cleaned away, or would be: a line for the table, and one for each branch and the first files."""
    counts = f"{counted(len(cleaned.branches), 'branch', 'es')} and {counted(len(cleaned.files), 'file')}"
    counts += " removed" if removed else " to remove"
    names = [*cleaned.branches, *cleaned.files[:_FILES]]
    if len(cleaned.files) > _FILES:
        names.append(f"… {len(cleaned.files) - _FILES:,} files more")
    return [f"{'.'.join(spec.identifier)}: {counts}", *(f"  {name}" for name in names)]


def _title(topic: str, table: str) -> str:
    return escape(f"{topic} → {table}")


def _number(number: int | None) -> str:
    return "none" if number is None else f"{number:,}"


def _extent(start: int, end: int | None) -> str:
    """Return offsets as a person counts them: first to last, both inclusive."""
    if end is None:
        return f"from {start:,} on"
    return f"{start:,} to {end - 1:,}" if end - start > 1 else f"{start:,}"


def _moment(text: str) -> str:
    return text[:19].replace("T", " ")


def _offsets(found: Sequence[DeadLetterOffsets]) -> str:
    lines = [f"{each.partition}: {_extent(each.first, each.last + 1)}" for each in found[:_PARTITIONS]]
    if len(found) > _PARTITIONS:
        lines.append(f"… {len(found) - _PARTITIONS} partitions more")
    return "\n".join(lines)
