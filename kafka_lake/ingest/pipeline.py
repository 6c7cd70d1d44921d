"""One run, the seven steps in a row: plan, read, decode and stage, audit, publish, report.

Exactly once rests on three things alone: the plan begins at the position of the very head that the branch starts from,
the position is part of the snapshot that holds the rows, and a fast-forward is refused if the head has moved.
"""

import logging
import time
from collections.abc import Callable, Collection

from kafka_lake.errors import AuditFailedError, KafkaError, PublishRefusedError, TableError
from kafka_lake.ingest.audit import Finding, audit
from kafka_lake.ingest.plan import Plan, opening, plan, start_offsets
from kafka_lake.ingest.publish import publish
from kafka_lake.ingest.read import read
from kafka_lake.ingest.report import Commit, RunReport
from kafka_lake.ingest.stage import create_table, stage
from kafka_lake.ingest.systems import Systems
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.offsets import Position
from kafka_lake.lake.positions import TableState, read_state, row_count

log = logging.getLogger(__name__)

_ATTEMPTS = 5


class GateFailedError(AuditFailedError):
    """A gate refused a staged commit; `findings` says why."""

    def __init__(self, message: str, findings: list[Finding]) -> None:
        super().__init__(message, "main is as it was and the staged snapshot is gone; mend the cause and run again.")
        self.findings = findings


def ingest(
    spec: TopicTable,
    systems: Systems,
    run_id: str,
    partitions: Collection[int] | None = None,
    on_commit: Callable[[Commit, Plan], None] = lambda commit, plan: None,
    on_step: Callable[[str], None] = lambda step: None,
) -> RunReport:
    """Bring a table up to where its topic ends now.

    Args:
        spec: The topic and its table.
        systems: Cluster, catalog and Spark; Spark isn't touched if there is nothing to do.
        run_id: Goes into branch names, snapshot summaries and dead letters.
        partitions: Only these Kafka partitions; None for all.
        on_commit: Called after each published commit with it and its plan.
        on_step: Called with the name of each step that has been done.

    Returns:
        What was done.

    Raises:
        GateFailedError: If a gate refused a commit; commits before it stay.
        DataLossError: If Kafka no longer has what comes next.
        PublishRefusedError: If others kept moving ``main`` ahead of this run.
        KafkaLakeError: For anything else a user can mend; ``main`` holds whole commits only.
    """
    began = time.monotonic()
    now = systems.cluster.watermarks_of(spec.topic)
    starts = None
    commits: list[Commit] = []
    refused = 0
    while True:
        state = _state(spec, systems)
        position = state.position if state else None
        if position is None and starts is None:
            starts = start_offsets(spec, systems.cluster, now)
        todo = plan(position, now, starts or {}, spec.max_records_per_commit, partitions)
        if todo is None and position is None:
            todo = opening(spec, now, starts or {})
        on_step("planned")
        if todo is None:
            break
        records = read(systems.spark(), systems.kafka_options, todo, spec.topic)
        if state is None or state.head is None:
            create_table(spec, systems, records)
            on_step("table created")
            continue
        staged = stage(spec, systems, state, todo, records, run_id, on_step)
        try:
            findings, by_partition = audit(spec, systems, todo, staged)
            if failed := [f for f in findings if not f.passed]:
                reasons = "; ".join(f"{f.check}: {p}" for f in failed for p in f.problems)
                raise GateFailedError(f"Topic {spec.topic}, table {'.'.join(spec.identifier)}: {reasons}.", findings)
            on_step("audited")
            publish(staged, on_step)
        except PublishRefusedError as error:
            staged.discard()
            refused += 1
            if refused >= _ATTEMPTS:
                raise
            log.warning("%s Planning again from the new position (%s of %s).", error, refused, _ATTEMPTS)
            continue
        except BaseException:
            staged.discard()
            raise
        commit = Commit(
            staged.primary.snapshot,
            todo.ranges,
            todo.after,
            staged.records,
            staged.primary.rows,
            staged.failed,
            staged.tombstones,
            staged.primary.files,
            staged.primary.size,
            by_partition,
            tuple(findings),
        )
        commits.append(commit)
        _mirror(spec, systems, commit.after)
        on_commit(commit, todo)
    return RunReport(spec.topic, ".".join(spec.identifier), run_id, now, position, commits, time.monotonic() - began)


def _state(spec: TopicTable, systems: Systems) -> TableState | None:
    table = systems.catalog.table(spec.identifier)
    if table is None:
        return None
    state = read_state(table)
    if state.position is None and row_count(table):
        raise TableError(
            f"Table {'.'.join(spec.identifier)} has rows, but no snapshot in the history of main carries a position "
            f"in topic {spec.topic}.",
            "Nothing was read, since rows could double. Choose another table: in the topic's YAML, or roll main back "
            "to a snapshot that kafka_lake wrote.",
        )
    return state


def _mirror(spec: TopicTable, systems: Systems, position: Position) -> None:
    try:
        systems.cluster.commit_group(spec.group, position)
    except KafkaError as error:
        log.warning("The table is up to date; lag tools may not be: %s", error)
