"""Again: parts of a topic read a second time, dead letters decoded a second time, and a position set by hand.

All three are runs like any other, staged, audited and published by `pipeline`; only their plans differ.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.common.errors import ConfigurationError, DataLossError, PublishRefusedError, TableError
from kafka_lake.common.offsets import OffsetRange, Watermarks
from kafka_lake.ingest.connections import Systems
from kafka_lake.ingest.dead_letters.due import due
from kafka_lake.ingest.dead_letters.reconcile import settle
from kafka_lake.ingest.decode.fit_columns import any_of
from kafka_lake.ingest.decode.rows import records_from_dead_letters
from kafka_lake.ingest.pipeline import Run, existing, ignore, log, reading
from kafka_lake.ingest.plan import Plan, is_time, offsets_of, replacement, resetting, start_timestamp_ms
from kafka_lake.ingest.record_keys import at_version, origin_of
from kafka_lake.ingest.report import Commit, RunReport
from kafka_lake.ingest.retry import call
from kafka_lake.ingest.stage.staged import Staged
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import TableState, head_of, read_state


@dataclass(frozen=True)
class Extent:
    """Which part of a topic is to be read again.

    Args:
        start: ``earliest``, an offset, an ISO 8601 time, or offsets by partition as in ``0:17,1:4``; inclusive.
        end: The same, or ``latest``; exclusive. Never beyond the table's position.
        partitions: Kafka partitions; None for all.
        keep_missing: Keep rows whose records Kafka no longer has, instead of refusing.
    """

    start: str = "earliest"
    end: str = "latest"
    partitions: frozenset[int] | None = None
    keep_missing: bool = False


def replay(
    spec: TopicTable,
    systems: Systems,
    run_id: str,
    extent: Extent,
    on_commit: Callable[[Commit, Plan], None] = ignore,
    on_step: Callable[[str], None] = ignore,
    say: Callable[[str], None] = log.warning,
) -> RunReport:
    """Read a part of the topic again and swap the table's rows of it for what today's schema and transform give.

    Args:
        spec: The topic and its table.
        systems: Cluster, catalog and Spark.
        run_id: Goes into branch names, snapshot summaries and dead letters.
        extent: What to read again; more than ``max_records_per_commit`` becomes several commits.
        on_commit: Called after each published commit with it and its plan.
        on_step: Called with the name of each step that has been done.
        say: Gets a line for whatever a person reading the run's log should know.

    Returns:
        What was done; the position is as it was.

    Raises:
        DataLossError: If Kafka no longer has what the table has there, unless told to keep it. Nothing is changed.
        GateFailedError: If the swap would lose rows of records that Kafka compacted away, or another gate refused.
        KafkaLakeError: For anything else a user can mend; ``main`` holds whole commits only.
    """
    origin_of(spec)
    run = Run(spec, systems, run_id, on_commit, on_step, say)
    wanted = _ranges(spec, systems, extent, run.now)
    reached: dict[int, int] = {}

    def next_plan(found: TableState | None) -> Plan | None:
        state = existing(spec, found)
        assert state.position is not None
        if not reached and not extent.keep_missing:
            _refuse_older_rows(spec, systems, extent, run.now, state)
        left = [
            OffsetRange(r.partition, start, r.end)
            for r in wanted
            if (start := max(r.start, reached.get(r.partition, 0))) < r.end
        ]
        plans = replacement(state.position, run.now, left, spec.max_records_per_commit, extent.keep_missing)
        return plans[0] if plans else None

    def published(commit: Commit, todo: Plan) -> None:
        reached.update({r.partition: r.end for r in todo.ranges})
        on_commit(commit, todo)

    run.on_commit = published
    return run.go(next_plan, reading(run))


def _ranges(spec: TopicTable, systems: Systems, extent: Extent, now: Watermarks) -> list[OffsetRange]:
    first = offsets_of(extent.start, spec.topic, systems.cluster, now)
    last = offsets_of(extent.end, spec.topic, systems.cluster, now)
    chosen = set(now.partitions) if extent.partitions is None else extent.partitions
    if unknown := sorted((chosen | set(first) | set(last)) - set(now.partitions)):
        raise ConfigurationError(
            f"Topic {spec.topic} has no partition {unknown[0]}; it has {', '.join(map(str, now.partitions))}.",
            "Choose among those.",
        )
    both = sorted(chosen & set(first) & set(last))
    return [OffsetRange(p, first[p], last[p]) for p in both if first[p] < last[p]]


def _refuse_older_rows(spec: TopicTable, systems: Systems, extent: Extent, now: Watermarks, state: TableState) -> None:
    """Refuse a start by time if the table has rows from then on that Kafka no longer has."""
    if not is_time(extent.start):
        return
    cut = {p: o for p, o in now.low.items() if o and (extent.partitions is None or p in extent.partitions)}
    if not cut or state.head is None:
        return
    origin, moment = origin_of(spec), F.timestamp_millis(F.lit(start_timestamp_ms(extent.start, "--from")))
    older = any_of([(origin("partition") == p) & (origin("offset") < low) for p, low in cut.items()])
    rows = at_version(systems.spark(), systems.catalog.spark_name(spec.identifier), state.head)
    gone = rows.filter(older & (origin("timestamp") >= moment)).groupBy(origin("partition").alias("partition"))
    found = gone.agg(F.min(origin("offset")).alias("first"), F.max(origin("offset")).alias("last")).collect()
    if found:
        listed = "; ".join(f"partition {r['partition']} offsets {r['first']} to {r['last']}" for r in sorted(found))
        raise DataLossError(
            f"Topic {spec.topic}: the table has rows from {extent.start} on that Kafka no longer has: {listed}.",
            "Nothing was changed. Begin later, or keep those rows (--keep-missing).",
        )


def plan_reset(spec: TopicTable, systems: Systems, to: str, partitions: Collection[int] | None = None) -> Plan | None:
    """Return what a reset would do, without doing it; None if the position is there already.

    Args:
        spec: The topic and its table.
        systems: Brokers and catalog are asked; Spark only if the position must be rebuilt.
        to: As `plan.offsets_of` understands it.
        partitions: Only these Kafka partitions; None for all.

    Raises:
        TableError: If there is no table yet.
        ConfigurationError: If a target lies outside of what the topic holds.
    """
    return _next_reset(Run(spec, systems, "plan", sets_position=True), to, partitions)(None)


def _next_reset(run: Run, to: str, partitions: Collection[int] | None) -> Callable[[TableState | None], Plan | None]:
    def next_plan(_: TableState | None) -> Plan | None:
        spec, systems = run.spec, run.systems
        table = systems.catalog.table(spec.identifier)
        if table is None:
            raise TableError(
                f"Table {'.'.join(spec.identifier)} of topic {spec.topic} doesn't exist yet.",
                "Say where it begins with start: in the topic's YAML.",
            )
        state = run.state()
        position = state.position if state else None
        targets = offsets_of(to, spec.topic, systems.cluster, run.now)
        chosen = {p: o for p, o in targets.items() if partitions is None or p in partitions}
        todo = resetting(position, run.now, chosen)
        return None if position == todo.after else todo

    return next_plan


def reset(
    spec: TopicTable,
    systems: Systems,
    run_id: str,
    to: str,
    partitions: Collection[int] | None = None,
    on_step: Callable[[str], None] = ignore,
    say: Callable[[str], None] = log.warning,
) -> RunReport:
    """Set the table's position by hand, in a commit of its own.

    Rows at and beyond a target before the position are removed, since they will be read again; offsets between the
    position and a target beyond it are recorded as skipped.

    Args:
        spec: The topic and its table.
        systems: Cluster, catalog and Spark.
        run_id: Goes into branch name and summary.
        to: As `plan.offsets_of` understands it.
        partitions: Only these Kafka partitions; None for all.
        on_step: Called with the name of each step that has been done.
        say: Gets a line for whatever a person reading the run's log should know.

    Returns:
        What was done; no commit if the position is there already.

    Raises:
        TableError: If there is no table yet.
        ConfigurationError: If a target lies outside of what the topic holds, or rows would have to be removed and
            there is no metadata column to tell them by.
    """
    run = Run(spec, systems, run_id, on_step=on_step, say=say, sets_position=True)
    return run.go(_next_reset(run, to, partitions), reading(run))


@dataclass(frozen=True)
class Redelivered:
    """What became of dead letters that were decoded again.

    Args:
        report: The run's report: ``records`` were examined, ``rows`` moved into the table.
        moved: Letters that are rows now.
        remaining: Letters that still don't fit, with their new reasons.
    """

    report: RunReport
    moved: int
    remaining: int


def redeliver(
    spec: TopicTable,
    systems: Systems,
    run_id: str,
    where: str | None = None,
    on_step: Callable[[str], None] = ignore,
    say: Callable[[str], None] = log.warning,
) -> Redelivered:
    """Decode dead letters again with today's schema and transform, and move those that now fit into the table.

    They are appended in the order of their offsets. The table is published first; the letters are taken out after
    that, by this run or, if it dies, by the next run of whatever kind (see `settle`).

    Args:
        spec: The topic and its table.
        systems: Catalog and Spark; Kafka is asked for the topic's identity only.
        run_id: Goes into branch names, snapshot summaries and the letters that stay.
        where: SQL condition on the columns of the dead-letter table; None for all.
        on_step: Called with the name of each step that has been done.
        say: Gets a line for whatever a person reading the run's log should know.

    Returns:
        What was done.

    Raises:
        ConfigurationError: If there is no metadata column, or the condition isn't understood.
        GateFailedError: If a gate refused the rows. Nothing is moved.
        TableError: If there is no table yet.
    """
    origin_of(spec)
    run = Run(spec, systems, run_id, on_step=on_step, say=say)
    done: list[Staged] = []
    if _letters(spec, systems) is None:
        return Redelivered(run.go(lambda _: None, reading(run)), 0, 0)
    _chosen(spec, systems, where)

    def make_good() -> int:
        # Metadata may have been expired that would tell of an unfinished one: look at the data.
        return settle(spec, systems, run_id, forced=True, among=_chosen(spec, systems, where) if where else None)

    call(systems.retry, say, f"Topic {spec.topic}", make_good)
    chosen: list[DataFrame] = []

    def next_plan(found: TableState | None) -> Plan | None:
        state = existing(spec, found)
        letters = _letters(spec, systems)
        if done or letters is None or state.position is None:
            return None
        # The letters are looked at after the table: what others made rows of by then is due, or taken out already.
        if due(state, letters):
            raise PublishRefusedError(f"Another run moves dead letters of topic {spec.topic} into the table.")
        chosen[:] = [_chosen(spec, systems, where, letters)]
        return Plan((), state.position, 0, "redeliver")

    def letters(_: Plan) -> object:
        return records_from_dead_letters(chosen[0]).coalesce(1).sortWithinPartitions("partition", "offset")

    def published(staged: Staged) -> None:
        done.append(staged)
        try:
            settle(spec, systems, run_id, relabelled=staged.letters, on_step=on_step)
        except Exception as error:
            say(f"Topic {spec.topic}: the letters that were moved will be taken out by the next run: {error}")

    report = run.go(next_plan, letters, published)
    return Redelivered(report, report.total("rows"), report.total("dead_letters"))


def _letters(spec: TopicTable, systems: Systems) -> TableState | None:
    table = systems.catalog.table(spec.dead_letter_table)
    return None if table is None or head_of(table) is None else read_state(table)


def _chosen(spec: TopicTable, systems: Systems, where: str | None, letters: TableState | None = None) -> DataFrame:
    found = letters or _letters(spec, systems)
    assert found is not None, "the caller has seen that there are letters"
    assert found.head is not None, "the caller has seen that there are letters"
    frame = at_version(systems.spark(), systems.catalog.spark_name(spec.dead_letter_table), found.head)
    try:
        chosen = frame.filter(where) if where else frame
        chosen.schema  # noqa: B018  Connect analyses the condition only when it is asked for the schema.
    except AnalysisException as error:
        reason = str(error).splitlines()[0].partition(" SQLSTATE")[0].rstrip(" ;.")
        raise ConfigurationError(
            f"where: {where!r} is no condition on table {'.'.join(spec.dead_letter_table)}: {reason}.",
            f"Its columns are {', '.join(frame.columns)}.",
        ) from error
    return chosen
